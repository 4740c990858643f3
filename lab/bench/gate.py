"""The gate's models, cold and with nothing changed, against a plain script that does the same one by one.

The aim of the cold run is for two cores, which can at best do it in half the time: both ways call the same
torch.export, exir and QNN, which take most of it. Ours adds two workers that import and warm up, a fork for
each program and a process for each run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ci.lanes.executorch.suite import all_programs, choose
from lab.bench.frame import Aim, Benchmark, Contender, run_stage, run_whole
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Report
from provisioning.base.settings import (
    DEFAULT_PROFILE,
    DEFAULT_SOC,
    DEFAULT_TARGET,
    ROOT,
    Selection,
    store_path,
)
from provisioning.components import QNN_SDK
from provisioning.dist import runner_of
from provisioning.environment import resolve

COLD, WARM, PLAIN = "ours, cold", "ours, nothing changed", "plain script"
AIMS = (Aim(COLD, PLAIN, 1.5), Aim(WARM, 1.2))
STAGES = ("test_lowering", "test_emulator")


@contextmanager
def prepared(work: Path) -> Iterator[Benchmark]:
    if runner_of(ROOT / "dist" / DEFAULT_TARGET) is None:
        raise EnvironmentLacking("qnn_executor_runner is not built yet", fix=session("build_runner"))
    programs = choose(all_programs([]), tags=["pr"])
    selection = Selection(DEFAULT_PROFILE, DEFAULT_TARGET, DEFAULT_SOC, store_path(), work / "reports")
    environment = resolve(selection, os.environ)
    # As Python is by default: without bytecode, each process compiles what it imports of ours.
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ours = {**usual, "QNN_SDK_ROOT": str(environment.root(QNN_SDK).path)}
    plain = environment.merged(usual)
    kept = work / "kept"
    _ours(ours, kept, work / "first")
    yield Benchmark(
        contenders=(
            Contender(COLD, lambda into: _ours(ours, into / "store", into), _check(len(programs), 0)),
            Contender(PLAIN, lambda into: _plain(plain, into), _check_plain(len(programs))),
            Contender(WARM, lambda into: _ours(ours, kept, into), _check(len(programs), len(programs))),
        ),
        aims=AIMS,
        facts={"programs": len(programs), "sdk": environment.root(QNN_SDK).version or "directory"},
    )


def _ours(environment: Mapping[str, str], store: Path, into: Path) -> None:
    only = [word for stage in STAGES for word in ("--only", stage)]
    run_stage("gate", only, store, into, environment)


def _plain(environment: Mapping[str, str], into: Path) -> None:
    command = [sys.executable, "-m", "lab.bench.gate_plain", str(into)]
    run_whole(command, into / "plain.log", cwd=ROOT, environment=environment)


def _check(programs: int, cached: int) -> Callable[[Path], None]:
    def check(into: Path) -> None:
        for stage in STAGES:
            metrics = Report.read(into / f"{stage}.json").metrics
            counts = metrics.get("selected"), metrics.get("failed")
            # The emulator's stage reuses what lowering has just compiled.
            if counts != (programs, 0) or (stage == STAGES[0] and metrics.get("cached") != cached):
                raise CheckFailed(
                    f"{stage}: expected {programs} good programs, {cached} of them kept, found {metrics}",
                    fix=session(stage, "--tag", "pr"),
                )

    return check


def _check_plain(programs: int) -> Callable[[Path], None]:
    def check(into: Path) -> None:
        count = len(json.loads((into / "done.json").read_text(encoding="utf-8")))
        if count != programs:
            raise CheckFailed(f"the plain script did {count} of {programs} programs")

    return check
