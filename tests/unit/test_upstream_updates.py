"""What a run writes into the ledger and the record, beside other runs and after upstream's changes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ci.artifacts.compiler_log import CRASHES
from ci.lanes.upstream.judge import Judge
from ci.lanes.upstream.ledger import RecordedTest, SuiteRecord, load_ledger, load_record, locked
from ci.lanes.upstream.verdict import RecordedPart, UpstreamVerdict
from tests.support.own_manifests import own_ledgers

SOC = "SM8650"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_ledgers(monkeypatch, tmp_path / "manifests")
    return tmp_path


def judge(folder: Path) -> Judge:
    """As a run makes it when it begins."""
    return Judge(load_ledger("passes", "wheels"), SOC, folder, load_record("passes", "wheels", SOC))


def verdict(test: str, outcome: str, seconds: float = 1.0) -> UpstreamVerdict:
    return UpstreamVerdict(
        test, outcome, outcome, parts=(RecordedPart(outcome),), cpu_seconds=seconds, peak=1 << 20
    )


def update(judge: Judge, *verdicts: UpstreamVerdict, tests: tuple[str, ...] = ("a", "b")) -> Judge:
    return judge.updated(verdicts, tests, "executorch 1")


def test_two_runs_at_once_lose_nothing_of_each_other(folder: Path) -> None:
    one, other = judge(folder), judge(folder)
    update(one, verdict("a", "failed"))
    update(other, verdict("b", "dies"))
    last = judge(folder)
    assert {row.test: row.outcome for row in last.ledger.expected} == {"a": "failed", "b": "dies"}
    assert set(last.record.tests) == {"a", "b"}


def test_a_cause_that_names_the_operator_is_no_guess_from_the_log(folder: Path) -> None:
    named = f"AssertionError: Failed to generate Qnn context binary: {CRASHES}aten.add.Tensor"
    (folder / "a.log").write_text("AssertionError: Failed to generate Qnn context binary\n")
    update(judge(folder), UpstreamVerdict("a", "dies", named, parts=(RecordedPart("dies"),)))
    (entry,) = judge(folder).ledger.expected
    assert entry.cause == named


def test_a_run_waits_while_another_writes(folder: Path) -> None:
    writer = threading.Thread(target=update, args=(judge(folder), verdict("a", "failed")))
    with locked():
        writer.start()
        writer.join(0.5)
        assert writer.is_alive() and not judge(folder).ledger.expected
    writer.join(30)
    assert judge(folder).expected("a") == "failed"
    assert {path.name for path in (folder / "manifests").iterdir()} == {"passes"}


def test_an_update_removes_what_upstream_has_removed(folder: Path) -> None:
    update(judge(folder), verdict("a", "failed"), verdict("b", "passed"))
    assert judge(folder).gone(["b"]) == ["a"]
    assert judge(folder).gone(["a"]) == ["b"]
    update(judge(folder), verdict("c", "passed"), tests=("c",))
    last = judge(folder)
    assert (last.ledger.expected, set(last.record.tests), last.gone(["c"])) == ((), {"c"}, [])


def test_a_remembered_verdict_does_not_change_what_its_test_costs(folder: Path) -> None:
    update(judge(folder), verdict("a", "passed", seconds=7.0))
    remembered = UpstreamVerdict("a", "passed", cpu_seconds=0.1, cached=True)
    row = update(judge(folder), remembered).record.tests["a"]
    assert (row.seconds, row.megabytes) == (7.0, 1)


def test_records_of_parts_of_a_suite_add_up() -> None:
    first = UpstreamVerdict("a", "passed", cpu_seconds=2, peak=5 << 20)
    both = SuiteRecord().with_verdicts([first], "x").with_verdicts([UpstreamVerdict("b", "passed")], "y")
    assert (both.tests["a"], set(both.tests)) == (RecordedTest(2, 5, "x"), {"a", "b"})
    ended = UpstreamVerdict("a", "timeout", cpu_seconds=900)
    assert both.with_verdicts([ended], "z").tests["a"] == RecordedTest(2, 5, "z")
