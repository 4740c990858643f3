"""`test_onnx`: the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioning.settings import add_selection

EXAMPLES = """\
  nox -s test_onnx
  nox -s test_onnx -- --tag pr
  nox -s test_onnx -- -k vit/u16u8 --soc SM8750
  nox -s test_onnx -- --suite ../mine/onnx.toml --keep
  nox -s test_onnx -- --list
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    which = parser.add_argument_group("which programs")
    which.add_argument(
        "--suite", type=Path, metavar="FILE", help="cases as in manifests/suites/onnx.toml, the default"
    )
    which.add_argument("--tag", action="append", default=[], help="runs with this tag; may be repeated")
    which.add_argument(
        "-k",
        dest="words",
        action="append",
        default=[],
        metavar="WORD",
        help="part of a name CASE/RUN/SOC; may be repeated",
    )
    which.add_argument("--list", action="store_true", help="list the chosen programs and stop")
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", "-j", type=int, metavar="N", help="models side by side [cores]")
    how.add_argument(
        "--timeout", type=float, default=900, metavar="S", help="end a step after S seconds [%(default)g]"
    )
    how.add_argument("--no-cache", action="store_true", help="do also what has not changed")
    how.add_argument("--keep", action="store_true", help="keep the compiled models in reports/onnx")


def run(args: argparse.Namespace) -> int:
    from ci.onnx.stage import run as run_stage

    return run_stage(args)
