"""`adopter`: gate the branches of a small repository by the real workflows, on this machine."""

from __future__ import annotations

import argparse

from provisioning.base.flags import switch
from provisioning.base.selection import add_selection

EXAMPLES = """\
  nox -s lab -- adopter
  nox -s lab -- adopter toml raises
  nox -s lab -- adopter --accept
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "names", nargs="*", metavar="BRANCH", help="only these of manifests/adopter/branches.toml [all]"
    )
    switch(parser, "--not-shown", "print what this runner cannot show, and stop")
    switch(
        parser,
        "--accept",
        "accept what was seen: write manifests/adopter/accepted.json",
    )


def run(args: argparse.Namespace) -> int:
    from lab.adopter.branches import check_branches
    from lab.adopter.runner import NOT_SHOWN
    from provisioning.base.selection import selection_of

    if args.not_shown:
        print("\n".join(NOT_SHOWN))
        return 0
    return check_branches(args.names, selection_of(args), accept=args.accept)
