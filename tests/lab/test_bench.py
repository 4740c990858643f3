"""The frame of benchmarks: an aim that is missed fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.bench import run_benchmark
from lab.bench.frame import Aim, Benchmark, Contender
from provisioning.base.findings import Outcome, Report


@contextmanager
def prepared(work: Path) -> Iterator[Benchmark]:
    """Its aim is to be twice as fast as a contender that takes no time.

    On a busy machine that one takes some time too."""
    slow = Contender("slow", lambda directory: time.sleep(0.2))
    yield Benchmark([slow, Contender("quick", lambda directory: None)], [Aim("slow", "quick", 2.0)], {})


@pytest.mark.parametrize(("check", "outcome"), [(True, Outcome.FAIL), (False, Outcome.PASS)])
def test_a_missed_aim_fails_when_it_is_to_be_checked(tmp_path: Path, check: bool, outcome: Outcome) -> None:
    stub = SimpleNamespace(prepared=prepared)
    assert run_benchmark("stub", stub, 1, tmp_path / "reports", check=check) == check
    assert Report.read(tmp_path / "reports/bench-stub.json").outcome is outcome
