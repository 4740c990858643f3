"""`test_onnx`: the command line."""

from __future__ import annotations

import argparse

from ci.lanes.onnx import HEAD
from ci.suite.options import add_stage_flags, stage_options
from provisioning.base.selection import add_selection

EXAMPLES = """\
  nox -s test_onnx
  nox -s test_onnx -- --tag pr
  nox -s test_onnx -- -k vit/16a8w --soc SM8750
  nox -s test_onnx -- --suite ../mine/onnx.toml --keep
  nox -s test_onnx -- --list
  nox -s test_onnx -- --accept
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    add_stage_flags(parser, HEAD.stage("test_onnx"))


def run(args: argparse.Namespace) -> int:
    from ci.lanes.onnx.lane import LANE

    return LANE.run_suite("test_onnx", stage_options(args))
