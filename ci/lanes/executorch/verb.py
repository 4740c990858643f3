"""The command lines of `test_lowering`, `test_emulator` and `test_device`, whose flags are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.lanes.executorch import HEAD
from ci.suite.stage_command import SuiteCommand

if TYPE_CHECKING:
    from ci.suite.lane import AnyLane


def _load_lane() -> AnyLane:
    from ci.lanes.executorch.lane import LANE

    return LANE


LOWERING = SuiteCommand(
    """\
  nox -s test_lowering
  nox -s test_lowering -- --tag pr
  nox -s test_lowering -- -k mobilenet --soc SM8750
  nox -s test_lowering -- --suite ../mine/models.toml
  nox -s test_lowering -- --list
  nox -s test_lowering -- --accept
""",
    HEAD,
    "test_lowering",
    _load_lane,
)
DEVICE = SuiteCommand(
    """\
  nox -s test_device -- --suite models.toml --on folder --outputs from-the-phone
  nox -s test_device -- --suite models.toml --outputs from-the-phone --accept
""",
    HEAD,
    "test_device",
    _load_lane,
)
EMULATION = SuiteCommand(
    """\
  nox -s test_emulator
  nox -s test_emulator -- --tag pr
  nox -s test_emulator -- -k llama_decode/16a4w --soc SM8750
  nox -s test_emulator -- --accept
  nox -s build_android test_emulator
""",
    HEAD,
    "test_emulator",
    _load_lane,
)
