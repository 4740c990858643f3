"""`test_lowering`, `test_emulator` and `test_device`: the command line, whose flags are the same."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ci.lanes.executorch import HEAD
from ci.suite.options import add_stage_flags, stage_options
from provisioning.base.selection import add_selection


@dataclass(frozen=True, slots=True)
class SuiteStage:
    EXAMPLES: str
    name: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_selection(parser)
        add_stage_flags(parser, HEAD.stage(self.name))

    def run(self, args: argparse.Namespace) -> int:
        from ci.lanes.executorch.lane import LANE

        return LANE.run_suite(self.name, stage_options(args))


LOWERING = SuiteStage(
    """\
  nox -s test_lowering
  nox -s test_lowering -- --tag pr
  nox -s test_lowering -- -k mobilenet --soc SM8750
  nox -s test_lowering -- --suite ../mine/models.toml
  nox -s test_lowering -- --list
  nox -s test_lowering -- --accept
""",
    "test_lowering",
)
DEVICE = SuiteStage(
    """\
  nox -s test_device -- --suite models.toml --on folder --outputs from-the-phone
  nox -s test_device -- --suite models.toml --outputs from-the-phone --accept
""",
    "test_device",
)
EMULATION = SuiteStage(
    """\
  nox -s test_emulator
  nox -s test_emulator -- --tag pr
  nox -s test_emulator -- -k llama_decode/16a4w --soc SM8750
  nox -s test_emulator -- --accept
  nox -s build_android test_emulator
""",
    "test_emulator",
)
