"""`mutations`: does a test notice small changes of the product, drawn by chance?"""

from __future__ import annotations

import argparse
import datetime as dt

from provisioning.base.flags import add_timeout, add_valued
from provisioning.base.selection import add_selection

EXAMPLES = """\
  nox -s lab -- mutations
  nox -s lab -- mutations --seed 2026-11-30
  nox -s lab -- mutations ci/work/results.py --count 10
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("files", nargs="*", metavar="FILE", help="change these alone [all of the product]")
    add_valued(parser, "--count", "N", "make this many changes", type=int, default=60)
    add_valued(parser, "--seed", "TEXT", "draw the same changes again [today's date]")
    add_timeout(parser, "the tests of a change", 600)


def run(args: argparse.Namespace) -> int:
    from lab.mutations.stage import MutationOptions, try_mutations
    from provisioning.base.selection import selection_of

    seed = args.seed or dt.datetime.now(dt.timezone.utc).date().isoformat()
    options = MutationOptions(args.count, seed, args.timeout, args.files)
    return try_mutations(options, selection_of(args))
