"""The command lines of `test_onnx` and `test_onnx_device`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.lanes.onnx import HEAD
from ci.suite.stage_command import SuiteCommand

if TYPE_CHECKING:
    from ci.suite.lane import AnyLane


def _load_lane() -> AnyLane:
    from ci.lanes.onnx.lane import LANE

    return LANE


EMULATION = SuiteCommand(
    """\
  nox -s test_onnx
  nox -s test_onnx -- --tag pr
  nox -s test_onnx -- -k vit/16a8w --soc SM8750
  nox -s test_onnx -- --suite ../mine/onnx.toml --keep
  nox -s test_onnx -- --list
  nox -s test_onnx -- --accept
""",
    HEAD,
    "test_onnx",
    _load_lane,
)
DEVICE = SuiteCommand(
    """\
  nox -s test_onnx_device -- --suite onnx.toml --on folder --outputs from-the-phone
  nox -s test_onnx_device -- --suite onnx.toml --outputs from-the-phone --accept
""",
    HEAD,
    "test_onnx_device",
    _load_lane,
)
