"""The delegate suite's fixed sample: ours against the suite's plain run in one process, on the same tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ci.dev.bench.frame import Aim, Benchmark, Contender, default_selection, run_stage, run_whole
from ci.engine.runner import find_runner
from ci.lanes.upstream.ledger import load_ledger
from ci.lanes.upstream.suite import worker_environment
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Report
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, ROOT
from provisioning.components import QNN_SDK
from provisioning.environment import resolve

COLD, CACHED, PLAIN = "ours, cold", "ours, nothing changed", "plain unittest"
AIMS = (Aim(COLD, PLAIN, 2.7), Aim(CACHED, 1.0))

QUICK = 6

PLAIN_RUN = """\
import sys, unittest
from ci.lanes.upstream import shims
shims.install()
unittest.main(module="executorch.backends.qualcomm.tests.test_qnn_delegate_x86", argv=sys.argv)
"""
"""Runs the suite as upstream does. Stand-ins replace missing optional modules, which it could not be imported
without.
"""


@contextmanager
def prepared(work: Path, *, quick: bool) -> Iterator[Benchmark]:
    """The tests of the sample that are expected to pass; `quick` takes the first few."""
    ledger = load_ledger("delegate", DEFAULT_PROFILE)
    passing = [test for test in ledger.sample if ledger.outcome(test, DEFAULT_SOC) == "passed"]
    sample = passing[: QUICK if quick else None]
    if not sample:
        raise EnvironmentLacking("the ledger names no sample", fix="fill sample in its ledger")
    environment = resolve(default_selection(work / "reports"), os.environ)
    sdk = str(environment.root(QNN_SDK).path)
    ours = {**os.environ, "QNN_SDK_ROOT": sdk}
    plain = worker_environment(environment, os.environ, find_runner(os.environ).path, 1)
    for name in ("OMP_NUM_THREADS", "PYTHONWARNINGS"):
        plain.pop(name)
    kept = work / "kept"
    _ours(sample, ours, kept, work / "first")
    yield Benchmark(
        contenders=(
            Contender(COLD, lambda into: _ours(sample, ours, into / "store", into), _check(len(sample), 0)),
            Contender(PLAIN, lambda into: _plain(sample, plain, into)),
            Contender(CACHED, lambda into: _ours(sample, ours, kept, into), _check(len(sample), len(sample))),
        ),
        aims=AIMS,
        facts={"tests": len(sample), "sdk": environment.root(QNN_SDK).version or sdk},
    )


def _ours(sample: Sequence[str], environment: Mapping[str, str], store: Path, into: Path) -> None:
    names = " or ".join(f"*{test}" for test in sample)
    run_stage("test_delegate", ["--sample", "-k", names], store, into, environment)


def _check(tests: int, cached: int) -> Callable[[Path], None]:
    def check(into: Path) -> None:
        metrics = Report.read(into / "test_delegate.json").metrics
        counts = metrics.get("passed"), metrics.get("cached")
        if counts != (tests, cached):
            raise CheckFailed(
                f"expected {tests} passed tests of which {cached} cached, found {counts}",
                fix="nox -s test_delegate -- --sample",
            )

    return check


def _plain(sample: Sequence[str], environment: Mapping[str, str], into: Path) -> None:
    command = [sys.executable, "-c", PLAIN_RUN, *sample]
    environment = {**environment, "PYTHONPATH": str(ROOT)}
    run_whole(command, into / "plain.log", cwd=into, environment=environment)
