"""`operators`: the table of operators and its page, made of records of `operator_tests`."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = """\
  nox -s lab -- operators reports/
  nox -s lab -- operators nightly/
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="the reports of a run of operators, values or chains, or of several, such as a nightly's",
    )


def run(args: argparse.Namespace) -> int:
    from lab.operators.pages import accept_table

    accept_table(args.folder)
    return 0
