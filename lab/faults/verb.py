"""`faults`: is each known fault still there?"""

from __future__ import annotations

import argparse
import os

from provisioning.base.flags import add_timeout, switch
from provisioning.base.selection import add_selection

EXAMPLES = """\
  nox -s lab -- faults
  nox -s lab -- faults bias-used-twice ceil-16-bit
  nox -s lab -- faults --accept     write what the scripts print into manifests/accepted/faults.json
  nox -s lab -- faults --close      write into manifests/known_faults.toml that what is gone ends here
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "names", nargs="*", metavar="FAULT", help="only these of manifests/faults, without .py [all]"
    )
    switch(parser, "--close", "end the versions of faults that are gone in known_faults.toml")
    switch(
        parser,
        "--accept",
        "accept the figures: write manifests/accepted/faults.json",
    )
    add_timeout(parser, "a script", 600)


def run(args: argparse.Namespace) -> int:
    from lab.faults.stage import HowToRun, check_all, chosen
    from provisioning.base.selection import selection_of
    from provisioning.known_faults import load_faults

    how = HowToRun(args.timeout, args.close, args.accept)
    return check_all(selection_of(args), lambda: chosen(args.names, load_faults()), how, os.environ)
