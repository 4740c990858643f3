"""`profile`: the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioning.base.command_line import add_timeout
from provisioning.base.settings import add_selection

EXAMPLES = """\
  python -m ci profile net.py:make --precision 8a8w --soc SM8650
  python -m ci profile net.py:make --precision 8a8w --json now.json --against before.json
  python -m ci profile net.py:make --page profile.html
  python -m ci profile out/net.pte --input x.npy
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a .pte, or file.py:function or module:function that gives a model and its inputs",
    )
    parser.add_argument("--precision", default="fp16", help="as `scheme` in a suite [%(default)s]")
    parser.add_argument(
        "--input",
        action="append",
        type=Path,
        default=[],
        metavar="FILE.npy",
        help="of a .pte: its inputs in order; may be repeated",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the profile there")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with an earlier --json")
    parser.add_argument("--page", type=Path, metavar="FILE.html", help="write a page with bars and a tree")
    add_timeout(parser, "a step")


def run(args: argparse.Namespace) -> int:
    from ci.executorch import profile

    return profile.run(args)
