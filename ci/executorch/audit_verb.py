"""`audit`: the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioning.base.command_line import add_timeout, count
from provisioning.base.settings import add_selection

SCHEMES = ("fp16", "8a8w", "16a8w", "16a4w")

EXAMPLES = """\
  python -m ci audit net.py:make --soc SM8750
  python -m ci audit net.py:make --precision fp16 --precision 16a8w
  python -m ci audit net.py:make --measure --json audit.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "model", metavar="MODEL", help="file.py:function or module:function that gives a model and its inputs"
    )
    parser.add_argument(
        "--precision",
        action="append",
        metavar="SCHEME",
        help=f"as `scheme` in a suite; may be repeated [{', '.join(SCHEMES)}]",
    )
    parser.add_argument(
        "--measure", action="store_true", help="run each on the emulator too: what the CPU's part takes"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the audit there")
    parser.add_argument("--jobs", "-j", type=count, metavar="N", help="compiles side by side [cores]")
    add_timeout(parser, "a step")


def run(args: argparse.Namespace) -> int:
    from ci.executorch import audit_model

    return audit_model.run(args, args.precision or SCHEMES)
