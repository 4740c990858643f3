"""Stages for the gate's tests: `python -m tests.support.gate_stage NAME --reports DIR` behaves as NAME says.

`python -m tests.support.gate_stage gate --reports DIR NAME…` is a gate over such stages.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from ci.suite.lane_head import judging_stages
from provisioning.base.findings import Artifact, Outcome, Severity
from provisioning.base.guard import guard
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.stage_run import StageRun

MODULE = "tests.support.gate_stage"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    add_selection(parser)
    parser.add_argument("name")
    parser.add_argument("stages", nargs="*")
    parser.add_argument("--suite", action="append")
    parser.add_argument("--tag", action="append")
    args = parser.parse_args(argv)
    if args.name == "gate":
        return _gate(args)
    return max(_behave(name, args.reports, argv) for name in judging_stages() or (args.name,))


def _behave(name: str, reports: Path, argv: list[str]) -> int:
    with (reports / "ran").open("a") as ran:
        ran.write(f"{name}\n")
    behaviour = name.partition("-")[0]
    run = StageRun(name, "wheels", "x86_64-linux", f"nox -s {name}")
    if behaviour == "passes":
        run.artifacts.append(Artifact("thing", f"{name}.so", "ab" * 32, 1500))
        run.finish().write(reports)
        return 0
    if behaviour == "fails":
        run.add("rule", Severity.ERROR, "subject", "is bad", "fix it")
        run.finish().write(reports)
        return 1
    if behaviour in ("odd", "late"):
        run.add("rule", Severity.ERROR, "subject", "is bad")
        run.finish().write(reports)
        if behaviour == "late":
            os.kill(os.getpid(), signal.SIGSEGV)
        return 9
    if behaviour == "lies":
        run.finish(Outcome.FAIL).write(reports)
        return 0
    if behaviour == "breaks":
        with run.reported(reports, "broke"):
            raise LookupError("no such thing")
    if behaviour in ("waits", "stubborn"):
        if behaviour == "stubborn":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (reports / "pid").write_text(str(os.getpid()))
        time.sleep(120)
    if behaviour == "tells":
        print(f"argv={argv}")
        run.finish().write(reports)
        return 0
    # exits3: with that code, and no report
    return int(behaviour.removeprefix("exits"))


def _gate(args: argparse.Namespace) -> int:
    from ci.gate import supervision
    from ci.gate import verb as gate
    from ci.gate.options import GateOptions
    from ci.gate.table import GateStage

    # LANE:NAME is a stage of that lane.
    stages = [
        GateStage(name=name, program=MODULE, lane=lane)
        for lane, _, name in (text.rpartition(":") for text in args.stages)
    ]
    supervision.END_SECONDS = 0.1
    selection = selection_of(args)
    assert selection.reports == Path(args.reports)
    names = [stage.name for stage in stages]
    options = GateOptions(selection, ("--reports", str(args.reports)))
    return guard(lambda: gate.run_gate(stages, names, options), debug=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
