"""`test_emulator`: the command line."""

from __future__ import annotations

import argparse

from ci.lanes.executorch.verb import add_flags
from ci.suite.options import stage_options
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
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    from ci.lanes.executorch import stage

    return stage.run_emulation(stage_options(args))
