"""`accept`: the command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ci.pipeline.flags import check
from provisioning.base.command_line import repeatable

EXAMPLES = """\
  nox -s accept -- --convert ../mine/models.toml
"""


def configure(parser: argparse.ArgumentParser) -> None:
    repeatable(
        parser,
        "--convert",
        "FILE",
        "rewrite this suite, and what was accepted of it, in the form of now; comments stay",
        type=Path,
        required=True,
    )


def run(args: argparse.Namespace) -> int:
    from ci.accept.convert import convert

    check(args.convert, "--convert")
    for suite in args.convert:
        changed = convert(suite.absolute())
        sys.stdout.writelines(f"rewrote {path}\n" for path in changed)
        if not changed:
            sys.stdout.write(f"{suite} and what was accepted of it have the form of now\n")
    return 0
