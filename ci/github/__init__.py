"""`github`: what the workflows and actions under .github/ do, so that they hold no logic themselves.

Their inputs arrive in the environment, where no shell reads them; what they give goes to the files that
GITHUB_OUTPUT, GITHUB_ENV and GITHUB_STEP_SUMMARY name.
"""

from __future__ import annotations

import argparse

EXAMPLES = """\
  python -m ci github plan
  QNN_CI_TARGETS=x86_64-linux python -m ci github place
  QNN_CI_STAGE=validate python -m ci github stage
  QNN_CI_NEEDS='{"stage": {"result": "skipped"}}' python -m ci github verdict
"""

PARTS = {
    "plan": "which rows of manifests/gate.toml a change needs, as the matrix of gate.yml",
    "place": "where the store of this selection is, and the key of its cache",
    "setup": "provision the selection, and export its environment to the steps that follow",
    "packages": "install what a stage needs of the system, where it is not there",
    "stage": "run a session, then annotate the change and summarise the job from its report",
    "verdict": "fail unless every needed job succeeded: skipped and cancelled are no success",
    "release": "the source archive, its bill of materials and checksums, in dist/",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, summary in PARTS.items():
        part = parts.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        part.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


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
            says = "\n→ ".join(filter(None, (error.message, error.remedy)))
            sys.stdout.write(command("error", says, title=args.part) + "\n")
        raise
    return code
