"""`github`: the logic of the workflows and actions under .github/, which hold none themselves.

Inputs arrive in the environment, where no shell reads them. Outputs go to the files that GITHUB_OUTPUT,
GITHUB_ENV and GITHUB_STEP_SUMMARY name.
"""

from __future__ import annotations

import argparse

EXAMPLES = """\
  python -m ci github plan
  QNN_CI_TARGETS=x86_64-linux python -m ci github place
  QNN_CI_STAGE=validate python -m ci github stage
  QNN_CI_RESULT_STAGE=skipped python -m ci github verdict
"""

PARTS = {
    "plan": "choose the rows of manifests/gate.toml for a change, as the matrix of gate.yml",
    "place": "print where the store of this selection is, and the key of its cache",
    "setup": "provision the selection, and export its environment to later steps",
    "packages": "install system packages that a stage needs and the runner lacks",
    "stage": "run a session, then annotate the change and summarise the job from its report",
    "results": "find the results of programs in GitHub's cache, and where to save them",
    "wheels": "download the locked packages as wheels, for GitHub's cache",
    "verdict": "fail unless every needed job succeeded; skipped and cancelled are no success",
    "changes": "write what became worse in a pull request, from the jobs' reports, for `comment`",
    "comment": "write it into the one comment of the pull request, after the run that uploaded it",
    "images": "push a release's images, or record their digests in the manifests",
    "publish": "publish them as a release on GitHub: drafted, filled, then published",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, summary in PARTS.items():
        parts.add_parser(name, help=summary, description=summary)


def run(args: argparse.Namespace) -> int:
    import importlib
    import os
    import sys

    from provisioning.base.errors import ToolkitError
    from provisioning.base.rendering.workflow_commands import command

    module = importlib.import_module(f"ci.github.{args.part}")
    try:
        code: int = module.run(os.environ)
    except ToolkitError as error:
        if os.environ.get("GITHUB_ACTIONS") == "true":
            text = "\n→ ".join(filter(None, (error.message, error.fix)))
            sys.stdout.write(command("error", text, title=args.part) + "\n")
        raise
    return code
