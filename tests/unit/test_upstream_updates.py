"""What a run accepts, beside other runs and after upstream's changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.lanes.upstream.accepted import Judge, load_tests
from ci.lanes.upstream.suite import Part, UpstreamVerdict
from tests.support.own_manifests import own_accepted_tests

SOC = "SM8650"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_accepted_tests(monkeypatch, tmp_path / "manifests")
    return tmp_path


def judge(folder: Path) -> Judge:
    """As a run makes it when it begins."""
    return Judge(load_tests("passes", "wheels", SOC), folder)


def verdict(test: str, outcome: str, seconds: float = 1.0) -> UpstreamVerdict:
    return UpstreamVerdict(test, outcome, outcome, parts=(Part(outcome),), cpu_seconds=seconds, peak=1 << 20)


def update(judge: Judge, *verdicts: UpstreamVerdict, tests: tuple[str, ...] = ("a", "b")) -> Judge:
    return judge.updated(verdicts, tests, "executorch 1")


def test_an_update_removes_what_upstream_has_removed(folder: Path) -> None:
    update(judge(folder), verdict("a", "failed"), verdict("b", "passed"))
    assert judge(folder).gone(["b"]) == ["a"]
    assert judge(folder).gone(["a"]) == ["b"]
    update(judge(folder), verdict("c", "passed"), tests=("c",))
    last = judge(folder)
    assert (set(last.accepted.tests), last.gone(["c"])) == ({"c"}, [])


def test_a_remembered_verdict_does_not_change_what_its_test_costs(folder: Path) -> None:
    update(judge(folder), verdict("a", "passed", seconds=7.0))
    remembered = UpstreamVerdict("a", "passed", cpu_seconds=0.1, cached=True)
    assert update(judge(folder), remembered).accepted.of("a").cost == (7.0, 1)


def test_parts_of_a_suite_add_up_and_a_test_whose_process_ended_keeps_its_cost(folder: Path) -> None:
    update(judge(folder), verdict("a", "passed", seconds=2.0))
    update(judge(folder), verdict("b", "passed"))
    update(judge(folder), verdict("a", "timeout", seconds=900.0))
    tests = judge(folder).accepted.tests
    assert (tests["a"].outcome, tests["a"].cost, set(tests)) == ("timeout", (2.0, 1), {"a", "b"})
