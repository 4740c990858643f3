"""The frame of benchmarks."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ci.upkeep import bench
from ci.upkeep.bench.frame import (
    Aim,
    Benchmark,
    Contender,
)
from provisioning.base.command_line import Verb, main
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Outcome, Report

AIM = Aim("fast", "slow", 2.0)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`python -m ci bench` with one benchmark, `stub`, whose slow contender takes the given time."""

    def run(*argv: str, slow: float = 0.0, fault: Exception | None = None) -> int:
        @contextmanager
        def prepared(work: Path, *, quick: bool) -> Iterator[Benchmark]:
            if fault is not None:
                raise fault
            slept = Contender("slow", lambda directory: time.sleep(slow))
            yield Benchmark(
                [Contender("fast", lambda directory: time.sleep(0.01)), slept], [AIM], {"quick": quick}
            )

        module = types.ModuleType("stub_benchmark")
        module.prepared = prepared  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "stub_benchmark", module)
        monkeypatch.setattr(bench, "BENCHMARKS", {"stub": Verb("stub_benchmark", "a stub")})
        verbs = {"bench": Verb("ci.upkeep.bench", "benchmarks")}
        reports = ["--reports", str(tmp_path / "reports"), "--work", str(tmp_path / "work")]
        return main("python -m ci", "", verbs, ["bench", *argv, *reports])

    return run


class TestTheVerb:
    def test_a_missed_aim_fails_when_it_is_to_be_checked(
        self, run: Callable[..., int], tmp_path: Path
    ) -> None:
        assert run("stub", "--rounds", "1", "--check") == 1
        assert Report.read(tmp_path / "reports/bench-stub.json").outcome is Outcome.FAIL

    def test_a_benchmark_that_cannot_run_says_why_and_reports_an_error(
        self, run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("stub", fault=EnvironmentLacking("no such tool", remedy="get it")) == 3
        assert capsys.readouterr().err == "error: no such tool\n  try: get it\n"
        report = Report.read(tmp_path / "reports/bench-stub.json")
        assert (report.outcome, [finding.message for finding in report.findings]) == (
            Outcome.ERROR,
            ["no such tool"],
        )
