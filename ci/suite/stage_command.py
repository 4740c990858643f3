"""The command line of a lane's stage that runs suites: its flags are those that the lane's record names."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.suite.lane_head import LaneHead
from ci.suite.options import add_stage_flags, stage_options
from provisioning.base.selection import add_selection

if TYPE_CHECKING:
    from ci.suite.lane import AnyLane


@dataclass(frozen=True, slots=True)
class SuiteCommand:
    """The command of one stage, as the table of verbs needs it."""

    EXAMPLES: str
    head: LaneHead
    stage: str
    load_lane: Callable[[], AnyLane]
    """Imports the lane, which takes a second: `--help` does not wait for that."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_selection(parser)
        add_stage_flags(parser, self.head.stage(self.stage))

    def run(self, args: argparse.Namespace) -> int:
        return self.load_lane().run_suite(self.stage, stage_options(args))
