"""A suite's programs, cold and with nothing changed, against a plain script that does the same one by one.

The aim of the cold run is for two cores, which can at best do it in half the time: both ways call the same
torch.export, exir and QNN, which take most of it. Ours adds a worker that imports, a fork for each program
and a process for each run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.bench.frame import Aim, Benchmark, Contender, run_stage, run_whole
from lab.bench.gate_plain import programs_of
from provisioning.base import settings
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Report
from provisioning.base.settings import ROOT, Selection, store_path
from provisioning.base.stage_run import RUN
from provisioning.components import QNN_SDK
from provisioning.dist import runner_of
from provisioning.environment import resolve

COLD, WARM, PLAIN = "ours, cold", "ours, nothing changed", "plain script"
AIMS = (Aim(COLD, PLAIN, 1.5), Aim(WARM, 10.0))
"""Models are exported each time, in as many seconds as docs/cache.md says."""
STAGES = ("test_lowering", "test_emulator")
ONLY = [word for stage in STAGES for word in ("--only", stage)]


@contextmanager
def prepared(work: Path) -> Iterator[Benchmark]:
    with benchmark_of(work, None) as benchmark:
        yield benchmark


@contextmanager
def benchmark_of(work: Path, suite: Path | None, aims: Sequence[Aim] = AIMS) -> Iterator[Benchmark]:
    """Of the gate's own programs without a suite."""
    if runner_of(ROOT / "dist" / settings.DEFAULT_TARGET) is None:
        raise EnvironmentLacking("qnn_executor_runner is not built yet", fix=session("build_runner"))
    count = len(programs_of(suite))
    chosen = settings.DEFAULT_PROFILE, settings.DEFAULT_TARGET, settings.DEFAULT_SOC
    resolved = resolve(Selection(*chosen, store_path(), work / "reports"), os.environ)
    # As Python is by default: without bytecode, each process compiles what it imports of ours.
    # And each gate is a run of its own, or the second one would look up what the first one found.
    unusual = "PYTHONDONTWRITEBYTECODE", RUN
    usual = {name: value for name, value in os.environ.items() if name not in unusual}
    sdk = resolved.root(QNN_SDK)
    with_sdk = {**usual, "QNN_SDK_ROOT": str(sdk.path)}
    flags = [*ONLY, *(["--suite", str(suite)] if suite else [])]

    def ours(store: Path, into: Path) -> None:
        run_stage("gate", flags, store, into, with_sdk)

    def plain(into: Path) -> None:
        command = [sys.executable, "-m", "lab.bench.gate_plain", str(into), *([str(suite)] if suite else [])]
        run_whole(command, into / "plain.log", cwd=ROOT, environment=resolved.merged(usual))

    kept = work / "kept"
    ours(kept, work / "first")
    yield Benchmark(
        contenders=(
            Contender(COLD, lambda into: ours(into / "store", into), _check(count, 0)),
            Contender(PLAIN, plain),
            Contender(WARM, lambda into: ours(kept, into), _check(count, count)),
        ),
        aims=aims,
        facts={"programs": count, "sdk": sdk.version or "directory"},
    )


def _check(programs: int, cached: int) -> Callable[[Path], None]:
    def check(into: Path) -> None:
        for stage in STAGES:
            metrics = Report.read(into / f"{stage}.json").metrics
            counts = metrics.get("selected"), metrics.get("failed"), metrics.get("cached")
            if counts != (programs, 0, cached):
                raise CheckFailed(
                    f"{stage}: expected {programs} good programs, {cached} of them kept, found {metrics}",
                    fix=session(stage, "--tag", "pr"),
                )

    return check
