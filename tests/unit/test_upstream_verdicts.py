"""What a test's reports and comparisons make of it, and what of it is a surprise."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.lanes.upstream import stage, worker
from ci.lanes.upstream.accepted import AcceptedTest, AcceptedTests, Judge
from ci.lanes.upstream.adapters import UpstreamComparison, part
from ci.lanes.upstream.stage import verdict_of as verdict_of_result
from ci.lanes.upstream.suite import Part, SuiteKeyContext, UpstreamVerdict, reasons_of, upstream_suites
from ci.lanes.upstream.worker import part_of_report, verdict_of
from ci.suite.runner import Runner
from ci.work import Failure, InTrouble, Result
from ci.work.jobs import Job
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.findings import Finding, Severity
from provisioning.base.stage_run import StageRun
from provisioning.base.units import EXACT_DB


def accepted(tests: dict[str, AcceptedTest]) -> AcceptedTests:
    return AcceptedTests("rework-op", "wheels", "SM8650", tests, names=frozenset(tests))


def findings_of(judge: Judge, *verdicts: UpstreamVerdict) -> list[Finding]:
    stage = StageRun("test_upstream", "wheels", "x86_64-linux")
    judge.findings(stage, verdicts)
    return stage.findings


def report(*, passed: bool = True, text: str = "") -> Any:
    return SimpleNamespace(
        skipped=False, passed=passed, failed=not passed, longreprtext=text, longrepr=None, nodeid="t"
    )


@pytest.mark.parametrize(
    ("passed", "comparisons", "result"),
    [
        (True, [], "passed"),
        (True, [UpstreamComparison(60.0, agrees=True), UpstreamComparison(20.0, agrees=True)], "passed"),
        # ExecuTorch's limits let them pass, and they are wrong.
        (True, [UpstreamComparison(60.0, agrees=True), UpstreamComparison(5.0, agrees=True)], "bad_test"),
        (True, [UpstreamComparison(0.0, agrees=True)], "bad_test"),
        # Compared with nothing but zeros.
        (True, [UpstreamComparison(-EXACT_DB, agrees=True)], "bad_test"),
        (
            True,
            [UpstreamComparison(50.0, agrees=True), UpstreamComparison(math.nan, agrees=True)],
            "bad_test",
        ),
        (False, [UpstreamComparison(45.0)], "wrong"),
        # Another assertion failed than that of the outputs.
        (False, [UpstreamComparison(45.0, agrees=True)], "failed"),
        (False, [], "failed"),
    ],
)
def test_a_test_that_passes_is_held_to_what_it_compared(
    passed: bool, comparisons: list[UpstreamComparison], result: str
) -> None:
    text = "" if passed else "AssertionError: at 0x7f0123456789"
    part = part_of_report(report(passed=passed, text=text), comparisons)
    assert part.result == result
    assert "0x7f" not in part.error and bool(part.error) == (result != "passed")


@pytest.mark.parametrize(
    ("outcomes", "rules", "errors"),
    [
        (["passed"], [], 0),
        (["passed", "absent"], ["upstream-not-run"], 0),
        (["absent", "absent"], ["upstream-not-run"] * 3, 1),
        (["dies"], ["upstream-failed"], 1),
    ],
)
def test_of_a_tree_of_another_release_the_tests_own_verdicts_count(
    tmp_path: Path, outcomes: list[str], rules: list[str], errors: int
) -> None:
    """Its list of tests is its own, and so are their inputs. A suite of which nothing runs is not green."""
    judge = Judge(accepted({"gone": AcceptedTest(outcome="failed")}), tmp_path, of_another_release=True)
    found = findings_of(judge, *(UpstreamVerdict("t", outcome, "a reason") for outcome in outcomes))
    assert ([finding.rule for finding in found], judge.gone(["t"])) == (rules, [])
    assert sum(finding.severity is Severity.ERROR for finding in found) == errors


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        ([part("whole", 60), part("wrong", -4)], "wrong"),
        ([part("wrong", -4), part("dies")], "dies"),
        ([part("whole", 60), part("bad_test")], "bad_test"),
        ([part("part", 60), part("float", 70)], "passed"),
        ([part("no_kernel", cpu=("aten::median",))], "not_run"),
    ],
)
def test_the_worst_part_decides_a_test(parts: list[Part], outcome: str) -> None:
    assert verdict_of("t", [], [], parts).outcome == outcome


@pytest.mark.parametrize(
    ("kind", "blame", "outcome", "again"),
    [
        ("crash", "model", "crash", False),
        ("timeout", "model", "timeout", False),
        # The machine was busy, or killed it: that says nothing about the test.
        ("timeout", "machine", "timeout", True),
        ("killed", "machine", "memory", True),
        # A worker has the same memory everywhere.
        ("memory", "machine", "memory", False),
    ],
)
def test_how_a_process_ends_is_the_outcome_and_what_the_machine_did_runs_again(
    kind: str, blame: Any, outcome: str, again: bool
) -> None:
    verdict = verdict_of_result("t", Result(failure=Failure(kind, "so it ended", blame=blame)))
    assert (verdict.outcome, verdict.parts, verdict.reason) == (outcome, (Part(outcome),), "so it ended")
    assert bool(verdict.fix) is again


def test_what_fails_beside_a_part_that_tests_nothing_is_a_failure() -> None:
    raised = SimpleNamespace(failed=True, skipped=False, longrepr=None, longreprtext="OSError: teardown")
    parts = [part("whole", 60), part("bad_test")]
    verdict = verdict_of("t", [raised], [], parts)  # type: ignore[list-item]
    assert (verdict.outcome, verdict.reason) == ("failed", "OSError: teardown")


def test_a_crash_by_a_signal_of_its_own_is_a_result_and_no_other_end(tmp_path: Path) -> None:
    plan: Any = SimpleNamespace(suite=next(iter(upstream_suites().values())), logs=tmp_path)
    step = stage.testing(plan)
    ends = [Failure.from_end(code, tmp_path / "log", ()) for code in (-11, 3, -9)]
    results = [step.remains_of(Job("t"), failure, tmp_path) for failure in ends]
    assert [bool(result) for result in results] == [True, False, False]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("lowering: MemoryError: Unable to allocate 3 GiB", "memory"),
        ("lowering: OSError: [Errno 28] No space left on device", "disk"),
    ],
)
def test_memory_and_a_disk_that_run_out_in_a_model_are_told_from_a_failure_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, kind: str
) -> None:
    """ExecuTorch's suite takes it for a model that cannot be exported, or for a failure of lowering."""
    problems = (("", "RuntimeError: Test failure."),)
    reply = UpstreamVerdict("t", "dies", problems=problems, parts=(part("dies", error=error),))
    monkeypatch.setattr(worker, "collected", [SimpleNamespace(run=lambda *_, **named: reply)])
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    order = {"test": "t", "into": str(tmp_path), "log": str(tmp_path / "log"), "keep": False}
    with pytest.raises(InTrouble) as raised:
        worker.run_test(order)
    assert raised.value.trouble.kind == kind


DIES = "lowering: AssertionError: Failed to generate Qnn context binary: the compiler crashes on "


def died(*errors: str) -> UpstreamVerdict:
    return UpstreamVerdict("t", "dies", errors[0], parts=tuple(Part("dies", error=error) for error in errors))


def judge_of(tmp_path: Path, before: UpstreamVerdict) -> Judge:
    """What expects a verdict."""
    outcome: Any = before.outcome
    return Judge(accepted({"t": AcceptedTest(outcome=outcome, reasons=reasons_of(before))}), tmp_path)


@pytest.mark.parametrize(
    ("before", "now", "both"),
    [
        (
            died(f"{DIES}aten.elu.default (elu_1) at m.py:4: QNN compiles it neither"),
            died(f"{DIES}aten.stack.default (stack) at m.py:4: QNN compiles it neither"),
            ("aten.elu.default", "aten.stack.default"),
        ),
        (
            died(f"{DIES}aten.elu.default (elu)"),
            died(f"{DIES}aten.elu.default (elu): no kernel; and of aten.stack.default (2 nodes, a to b)"),
            ("aten.elu.default", "aten.stack.default"),
        ),
        # The worst part is the same, another one is not.
        (
            died("AssertionError: no", "IndexError: x"),
            died("AssertionError: no", "KeyError: y"),
            ("IndexError", "KeyError"),
        ),
        (
            UpstreamVerdict(
                "t", "crash", "the process was ended by SIGABRT; its last words: free(): invalid size"
            ),
            UpstreamVerdict(
                "t", "crash", "the process was ended by SIGSEGV; its last words: free(): invalid size"
            ),
            ("SIGABRT", "SIGSEGV"),
        ),
        (
            UpstreamVerdict(
                "t", "bad_test", parts=(Part("bad_test", error="compared nothing: its SQNR is nan"),)
            ),
            UpstreamVerdict(
                "t", "bad_test", parts=(Part("bad_test", error="RuntimeError: padding is too large"),)
            ),
            ("compared nothing", "padding is too large"),
        ),
        (
            died("AssertionError: no context binary, err 1002"),
            died("AssertionError: no context binary, err 6001"),
            ("err 1002", "err 6001"),
        ),
        (died("exit status 134"), died("exit status -6"), ("134", "-6")),
    ],
)
def test_a_failure_for_another_reason_is_a_surprise_with_both(
    tmp_path: Path, before: UpstreamVerdict, now: UpstreamVerdict, both: tuple[str, str]
) -> None:
    judge = judge_of(tmp_path, before)
    assert judge.is_surprise(now)
    (finding,) = findings_of(judge, now)
    assert finding.severity is Severity.ERROR
    assert all(value in finding.message for value in both)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (
            died(f"{DIES}aten.elu.default (elu_1) at m.py:4 `a`: no kernel, with 8-bit [1, 2]"),
            died(f"{DIES}aten.elu.default (2 nodes, elu_3 to elu_9) at m.py:5: no kernel, with 8-bit [3]"),
        ),
        (
            died("RuntimeError: Missing out variants: {'aten::a', 'aten::b'}"),
            died("RuntimeError: Missing out variants: {'aten::b', 'aten::a'}"),
        ),
        (
            died("OSError: /tmp/a-1/model.pte: 3 of 10 (30.0%) differ by -1.5e-3\nmore"),
            died("OSError: /srv/b/model.pte: 4 of 10 (40.0%) differ by 2.5e-3\nless"),
        ),
        (
            UpstreamVerdict(
                "t", "crash", "the process was ended by SIGABRT; its last words: free(): invalid size"
            ),
            UpstreamVerdict("t", "crash", "the process was ended by SIGABRT; its last words: corrupted size"),
        ),
        (
            UpstreamVerdict("t", "memory", "std::bad_alloc"),
            UpstreamVerdict("t", "memory", "can't allocate memory"),
        ),
        # Written before there were reasons in the record.
        (UpstreamVerdict("t", "dies"), died("KeyError: 'x'")),
    ],
)
def test_a_failure_for_the_same_reason_in_other_words_is_none(
    tmp_path: Path, before: UpstreamVerdict, now: UpstreamVerdict
) -> None:
    judge = judge_of(tmp_path, before)
    assert not judge.is_surprise(now)
    assert [finding.severity for finding in findings_of(judge, now)] == [Severity.NOTE]


def test_fewer_parts_that_fail_than_were_accepted_are_a_note(tmp_path: Path) -> None:
    errors = ("compared nothing: its SQNR is nan", "RuntimeError: padding is too large")
    parts = tuple(Part("bad_test", error=error) for error in errors)
    judge = judge_of(tmp_path, UpstreamVerdict("t", "bad_test", parts=parts))
    (finding,) = findings_of(judge, UpstreamVerdict("t", "bad_test", parts=parts[:1]))
    assert (finding.rule, finding.severity) == ("upstream-better", Severity.NOTE)


def test_an_unexpected_pass_is_counted_as_one_and_is_an_error(tmp_path: Path) -> None:
    judge = Judge(accepted({"t": AcceptedTest(outcome="wrong")}), tmp_path)
    counts = judge.counts([UpstreamVerdict("t", "passed")])
    assert (counts["passed"], counts["unexpected_passes"], counts["failed"]) == (1, 1, 0)
    found = findings_of(judge, UpstreamVerdict("t", "passed"))
    assert [(row.rule, row.severity) for row in found] == [("upstream-passed", Severity.ERROR)]


@pytest.mark.parametrize(
    ("outcome", "surprise", "found"),
    [
        ("passed", False, []),
        ("wrong", False, [("upstream-known-failure", Severity.NOTE)]),
        ("dies", True, [("upstream-failed", Severity.ERROR)]),
    ],
)
def test_a_test_that_ends_by_chance_may_pass_or_fail_as_it_is_known_to(
    tmp_path: Path, outcome: str, surprise: bool, found: list[tuple[str, Severity]]
) -> None:
    known = {"t": AcceptedTest(outcome="wrong", by_chance=True, cost=(1.0, 1))}
    judge, verdict = Judge(accepted(known), tmp_path), UpstreamVerdict("t", outcome, cached=True)
    assert judge.is_surprise(verdict) == surprise
    assert judge.counts([verdict])["failed"] == surprise
    assert [(row.rule, row.severity) for row in findings_of(judge, verdict)] == found
    if not surprise:
        (values,) = judge.accepted.changes([verdict], "x")["t"].values()
        assert values == {"outcome": "wrong", "by_chance": True, "cost": [1.0, 1]}


def test_a_known_failure_has_the_cause_that_was_accepted_and_a_new_one_its_own(tmp_path: Path) -> None:
    known = replace(accepted({"t": AcceptedTest(outcome="wrong")}), causes={("t", "wrong"): "QNN rounds"})
    judge = Judge(known, tmp_path, of_another_release=True)
    for test, cause in (("t", "QNN rounds"), ("new", "numbers differ")):
        (finding,) = findings_of(judge, UpstreamVerdict(test, "wrong", "numbers differ"))
        assert cause in finding.message


@pytest.mark.parametrize(
    ("version", "another"),
    [("1.5.1", False), ("1.5.1+cff6f4d", False), ("1.5.0+cff6f4d", True), ("1.6.0", False)],
)
def test_only_a_users_tree_is_of_another_release(version: str, another: bool) -> None:
    """A wheel of another release is what a profile was updated to: there the record is out of date."""
    on = SuiteKeyContext(Runner(Path()), "SM8650", {}, {"executorch": version}, (), {}, Path())
    assert on.is_of_another_release("executorch 1.5.1, QNN v2.49") is another
    assert not on.is_of_another_release("")


def test_the_wheels_tests_do_not_stand_for_those_that_a_tree_has_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python finds the package of the wheel behind that of an overlay."""
    roots = [tmp_path / "overlay", tmp_path / "wheel"]
    spec = SimpleNamespace(submodule_search_locations=list(map(str, roots)))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    for root in reversed(roots):
        with pytest.raises(EnvironmentLacking):
            upstream_suites()["passes"].place()
        (file := root / upstream_suites()["passes"].path).parent.mkdir(parents=True)
        file.touch()
    assert upstream_suites()["passes"].place() == file


def test_a_reason_that_is_gone_is_no_surprise(tmp_path: Path) -> None:
    before = died(f"{DIES}aten.elu.default (elu); and of aten.stack.default (stack)")
    (finding,) = findings_of(judge_of(tmp_path, before), died(f"{DIES}aten.elu.default (elu)"))
    assert finding.severity is Severity.NOTE and "aten.stack.default" in finding.message


def test_rework_is_refused_for_a_chip_that_its_tests_do_not_know() -> None:
    """They would be bound to another architecture, and its results taken for the chip's."""
    with pytest.raises(UsageError, match="QCS8300"):
        upstream_suites()["rework-op"].check("QCS8300")


def test_a_failed_test_shows_what_it_asserted(tmp_path: Path) -> None:
    error = "AssertionError: Tensor-likes are not close!\n\nGreatest difference: 3.1"
    verdict = UpstreamVerdict("t", "failed", "Greatest difference: 3.1", (("", error),))
    (finding,) = findings_of(Judge(accepted({}), tmp_path), verdict)
    assert "Tensor-likes are not close!" in finding.message


@pytest.mark.parametrize("outcome", ["absent", "not_run"])
def test_what_did_not_run_is_not_told_to_be_typed_again_as_it_was(tmp_path: Path, outcome: str) -> None:
    judge, stage = Judge(accepted({}), tmp_path), StageRun("test_upstream", "wheels", "x86_64-linux")
    (finding,) = findings_of(judge, UpstreamVerdict("t", outcome, "a reason"))
    assert finding.fix != judge.again(stage, "t")
