"""`divergence` of a PyTorch model: the search runs in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from ci.engine.installed import ready_environment, ready_runner
from ci.lanes.executorch.stage import chosen_programs
from ci.lanes.executorch.suite import SUITES, Program
from ci.lanes.executorch.user_program import program_named
from ci.pipeline.divergence import LEAST_DB
from provisioning.base.commands import captured_module, session, without_result
from provisioning.base.errors import UsageError
from provisioning.base.settings import Selection

CHILD = "ci.lanes.executorch.cut_programs"


def searched(args: argparse.Namespace, selection: Selection) -> tuple[str, dict[str, Any]]:
    """The program's name, and what the search gave."""
    program = _program(args, selection)
    thresholds = program.run.effective_thresholds
    least = args.least or (thresholds.reference_sqnr_db if thresholds else None) or LEAST_DB
    runner = ready_runner(os.environ, selection.reports)
    environment = ready_environment(selection, os.environ)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-divergence-") as scratch:
        order = {**program.order, "runner": str(runner), "least": least}
        (Path(scratch) / "order.json").write_text(json.dumps(order), encoding="utf-8")
        environ = {**environment.merged(os.environ), "PYTHONWARNINGS": "ignore"}
        done = captured_module(CHILD, [scratch], environ, args.timeout, program.name, cwd=scratch)
        answer = Path(scratch) / "answer.json"
        if not answer.is_file():
            how = ("--precision", program.run.scheme, "--soc", program.soc)
            again = session("audit", args.model, *how) if args.model else SUITES.repeat(program)
            remedy = f"{again} says what does not compile, and what to write instead"
            raise without_result(done, program.name, remedy)
        return program.name, json.loads(answer.read_text(encoding="utf-8"))


def _program(args: argparse.Namespace, selection: Selection) -> Program:
    if args.model:
        return program_named(args, selection)
    args.shard = None
    programs = [each for each in chosen_programs(args, selection) if each.backend == "htp"]
    if len(programs) != 1:
        names = ", ".join(program.name for program in programs[:5])
        raise UsageError(
            f"expected a MODEL or one program of a suite, found {len(programs)} ({names} …)",
            remedy="name the program: --suite FILE -k CASE/RUN/SOC",
        )
    return programs[0]
