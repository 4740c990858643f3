"""`test_onnx` and `test_onnx_device`: the command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ci.lanes.onnx import HEAD
from ci.suite.options import add_stage_flags, stage_options
from provisioning.base.selection import add_selection


@dataclass(frozen=True, slots=True)
class OnnxStage:
    EXAMPLES: str
    name: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_selection(parser)
        add_stage_flags(parser, HEAD.stage(self.name))

    def run(self, args: argparse.Namespace) -> int:
        from ci.lanes.onnx.lane import LANE

        return LANE.run_suite(self.name, stage_options(args))


EMULATION = OnnxStage(
    """\
  nox -s test_onnx
  nox -s test_onnx -- --tag pr
  nox -s test_onnx -- -k vit/16a8w --soc SM8750
  nox -s test_onnx -- --suite ../mine/onnx.toml --keep
  nox -s test_onnx -- --list
  nox -s test_onnx -- --accept
""",
    "test_onnx",
)
DEVICE = OnnxStage(
    """\
  nox -s test_onnx_device -- --suite onnx.toml --on folder --outputs from-the-phone
  nox -s test_onnx_device -- --suite onnx.toml --outputs from-the-phone --accept
""",
    "test_onnx_device",
)
