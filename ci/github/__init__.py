"""`github`: the logic of the workflows and actions under .github/, which hold none themselves.

Inputs arrive in the environment, where no shell reads them. Outputs go to the files that GITHUB_OUTPUT,
GITHUB_ENV and GITHUB_STEP_SUMMARY name.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

EXAMPLES = """\
  python -m ci github plan
  QNN_CI_TARGETS=x86_64-linux python -m ci github place
  QNN_CI_STAGE=validate python -m ci github stage
"""

PARTS = {
    "plan": ("plan", "choose the rows of manifests/gate.toml for a change, as the matrix of gate.yml"),
    "place": ("setup", "print where the store of this selection is, and the key of its cache"),
    "setup": ("setup", "provision the selection, and export its environment to later steps"),
    "stage": ("run_stage", "run a session, then annotate the change and summarise the job from its report"),
    "changes": (
        "comment",
        "write what became worse in a pull request, from the jobs' reports, for `comment`",
    ),
    "comment": (
        "comment",
        "write it into the one comment of the pull request, after the run that uploaded it",
    ),
}
"""Each a function of its name in this module."""


def configure(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, (_, summary) in PARTS.items():
        parts.add_parser(name, help=summary, description=summary)


def run(args: argparse.Namespace) -> int:
    import importlib
    import os
    import sys

    from ci.report.summary import command
    from provisioning.base.errors import ToolkitError

    module = importlib.import_module(f"ci.github.{PARTS[args.part][0]}")
    try:
        code: int = getattr(module, args.part)(os.environ)
    except ToolkitError as error:
        if os.environ.get("GITHUB_ACTIONS") == "true":
            text = "\n→ ".join(filter(None, (error.message, error.fix)))
            sys.stdout.write(
                command("error", text, title=args.part, **_place(error.message, os.environ)) + "\n"
            )
        raise
    return code


def _place(message: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The file and line that a message begins with, if the calling repository has that file."""
    from pathlib import Path

    top = Path(environ.get("GITHUB_WORKSPACE", ""), environ.get("QNN_CI_SOURCE", "")).absolute()
    found = re.search(r"(\S+):([1-9]\d*): ", message)
    if found and Path(found[1]).is_relative_to(top):
        return {"file": Path(found[1]).relative_to(top).as_posix(), "line": found[2]}
    return {}
