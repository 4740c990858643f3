"""The frame of benchmarks: an aim that is missed fails."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ci.dev import bench
from ci.dev.bench.frame import Aim, Benchmark, Contender
from provisioning.base.command_line import Verb, main
from provisioning.base.findings import Outcome, Report


@contextmanager
def prepared(work: Path, *, quick: bool) -> Iterator[Benchmark]:
    """Its aim is to be twice as fast as a contender that takes no time.

    On a busy machine that one takes some time too."""
    slow = Contender("slow", lambda directory: time.sleep(0.2))
    yield Benchmark([slow, Contender("quick", lambda directory: None)], [Aim("slow", "quick", 2.0)], {})


def test_a_missed_aim_fails_when_it_is_to_be_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("stub_benchmark")
    module.prepared = prepared  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stub_benchmark", module)
    monkeypatch.setattr(bench, "BENCHMARKS", {"stub": Verb("stub_benchmark", "a stub")})
    verbs = {"bench": Verb("ci.dev.bench", "benchmarks")}
    flags = ["--rounds", "1", "--reports", str(tmp_path / "reports"), "--work", str(tmp_path / "work")]
    assert main("python -m ci", "", verbs, ["bench", "stub", *flags, "--check"]) == 1
    assert Report.read(tmp_path / "reports/bench-stub.json").outcome is Outcome.FAIL
