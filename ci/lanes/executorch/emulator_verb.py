"""`test_emulator`: the command line."""

from __future__ import annotations

import argparse

from ci.jobs import RUN_TIMEOUT
from ci.lanes.executorch.verb import add_flags
from ci.suite.options import stage_options
from provisioning.base.command_line import add_timeout
from provisioning.base.selection import add_selection

EXAMPLES = """\
  nox -s test_emulator
  nox -s test_emulator -- --tag pr
  nox -s test_emulator -- -k llama_decode/16a4w --soc SM8750
  nox -s test_emulator -- --accept
  nox -s build_android test_emulator
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    group = add_flags(parser)
    add_timeout(group, "a run", RUN_TIMEOUT, flag="--run-timeout")


def run(args: argparse.Namespace) -> int:
    from ci.lanes.executorch import stage

    return stage.run_emulation(stage_options(args))
