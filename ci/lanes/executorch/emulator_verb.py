"""`test_emulator`: the command line."""

from __future__ import annotations

import argparse

from ci.digests import look_ahead
from ci.jobs import RUN_TIMEOUT
from ci.lanes.executorch import KEPT
from ci.lanes.executorch.verb import add_flags
from ci.suite.options import stage_options
from provisioning.base.command_line import add_timeout, switch
from provisioning.base.selection import add_selection

EXAMPLES = """\
  nox -s test_emulator
  nox -s test_emulator -- --tag pr
  nox -s test_emulator -- -k llama_decode/16a4w --soc SM8750
  nox -s test_emulator -- --accept
  nox -s test_emulator -- --reload
  nox -s build_android test_emulator
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    group = add_flags(parser)
    add_timeout(group, "a run", RUN_TIMEOUT, flag="--run-timeout")
    switch(
        group,
        "--reload",
        "also load each program twice, and beside another one, in one process: outputs must stay equal"
        " and memory must not grow",
    )
    switch(group, "--keep-programs", f"copy the programs that passed to the folder {KEPT} of the reports")


def run(args: argparse.Namespace) -> int:
    look_ahead()
    from ci.lanes.executorch import stage

    options = stage_options(args)
    return stage.run_emulation(options, reload=args.reload, keep_programs=args.keep_programs)
