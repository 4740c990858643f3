"""Choosing upstream tests by expressions, and what is accepted of them, run after run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.lanes.upstream.accepted import AcceptedTest, AcceptedTests, Judge, load_tests, write
from ci.lanes.upstream.suite import Part, UpstreamVerdict
from ci.suite.options import matcher
from provisioning.base.errors import UsageError
from provisioning.base.settings import MANIFESTS
from tests.support.own_manifests import own_accepted_tests

NAMES = {f"TestOps.test_{name}": name for name in ("abs", "conv", "fails", "hangs", "segfault", "skips")}


@pytest.mark.parametrize(
    ("expressions", "chosen"),
    [
        (["abs or conv"], {"abs", "conv"}),
        (["not abs"], {"conv", "fails", "hangs", "segfault", "skips"}),
        (["not (abs or conv) and test_f"], {"fails"}),
        (["abs or conv and fails"], {"abs"}),
        (["*.test_a*"], {"abs"}),
        ([], set(NAMES.values())),
    ],
)
def test_expressions_choose_by_parts_of_names(expressions: list[str], chosen: set[str]) -> None:
    matches = matcher(expressions, whole_name=True)
    assert {name for test, name in NAMES.items() if matches(test)} == chosen


@pytest.mark.parametrize("expression", ["", "abs and", "(abs", "abs conv"])
def test_other_expressions_are_usage_errors(expression: str) -> None:
    with pytest.raises(UsageError):
        matcher([expression])


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of accepted tests of its own."""
    own_accepted_tests(monkeypatch, tmp_path)
    return tmp_path


FAILS = "TestOps.test_fails"
OUTCOMES = st.sampled_from(["passed", "failed", "not_run", "expected_failure"])
VERDICTS = st.dictionaries(st.sampled_from(sorted(NAMES)), OUTCOMES)


def loaded(soc: str = "SM8650") -> AcceptedTests:
    return load_tests("delegate", "wheels", soc)


def accept(*verdicts: UpstreamVerdict, soc: str = "SM8650", cause: str = "") -> None:
    changes = loaded(soc).changes(verdicts, "x")
    if cause:
        # As a person writes it into the file.
        for verdict in verdicts:
            changes[verdict.test] = {**changes[verdict.test], f"cause.{verdict.outcome}": cause}
    write("delegate", "wheels", changes, list(NAMES))


@given(st.lists(st.tuples(VERDICTS, st.sampled_from(["SM8650", "SM8750"])), max_size=4))
def test_accepted_verdicts_are_expected_on_their_chip_alone(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[dict[str, str], str]]
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        own_accepted_tests(monkeypatch, tmp_path_factory.mktemp("accepted"))
        expected: dict[tuple[str, str], str] = {}
        for outcomes, soc in runs:
            accept(*(UpstreamVerdict(test, outcome) for test, outcome in outcomes.items()), soc=soc)
            expected |= {(test, soc): outcome for test, outcome in outcomes.items()}
        for (test, soc), outcome in expected.items():
            assert loaded(soc).of(test).outcome == outcome
            assert loaded("SM8550").of(test).outcome == "passed"


def test_a_cause_is_of_all_chips_that_end_alike_and_goes_with_the_last(own: Path) -> None:
    for soc in ("SM8350", "SM8650"):
        accept(UpstreamVerdict(FAILS, "dies"), soc=soc, cause="no kernel")
    accept(UpstreamVerdict(FAILS, "wrong"), soc="SM8750", cause="its outputs")
    assert [loaded(soc).cause(FAILS) for soc in ("SM8650", "SM8750")] == ["no kernel", "its outputs"]
    accept(UpstreamVerdict(FAILS, "passed"), soc="SM8750")
    assert loaded().causes == {(FAILS, "dies"): "no kernel"}


def test_what_is_accepted_is_read_as_it_was_written(own: Path) -> None:
    reason = "it “dies”"
    verdict = UpstreamVerdict(
        FAILS, "dies", parts=(Part("dies", error=reason),), cpu_seconds=1.5, peak=20 << 20
    )
    accept(verdict)
    assert loaded().tests == {FAILS: AcceptedTest(outcome="dies", reasons=(reason,), cost=(1.5, 20))}
    assert (loaded().origin, loaded("SM8750").origin) == ("x", "")


def test_the_committed_files_say_what_each_failure_costs_and_why() -> None:
    profiles = {path.stem for path in (MANIFESTS / "profiles").glob("*.toml")}
    for path in (MANIFESTS / "upstream").glob("*/accepted-*.json"):
        profile = path.stem.removeprefix("accepted-")
        tests = load_tests(path.parent.name, profile, "SM8650")
        assert profile in profiles
        failing = {test for test, row in tests.tests.items() if row.outcome != "passed"}
        reasoned = {test for test, row in tests.tests.items() if row.reasons}
        assert failing <= {test for test, _ in tests.causes} | reasoned


def test_a_test_that_was_not_measured_on_a_chip_is_expected_as_on_any(own: Path) -> None:
    write("delegate", "wheels", {FAILS: {"any": {"outcome": "failed", "by_chance": True}}}, [FAILS])
    assert loaded().of(FAILS) == AcceptedTest(outcome="failed", by_chance=True)
    accept(UpstreamVerdict(FAILS, "dies"))
    assert [loaded(soc).of(FAILS).outcome for soc in ("SM8650", "SM8750")] == ["dies", "failed"]


def judge(folder: Path) -> Judge:
    """As a run makes it when it begins."""
    return Judge(load_tests("passes", "wheels", "SM8650"), folder)


def verdict(test: str, outcome: str, seconds: float = 1.0) -> UpstreamVerdict:
    return UpstreamVerdict(test, outcome, outcome, parts=(Part(outcome),), cpu_seconds=seconds, peak=1 << 20)


def update(judge: Judge, *verdicts: UpstreamVerdict, tests: tuple[str, ...] = ("a", "b")) -> Judge:
    return judge.updated(verdicts, tests, "executorch 1")


def test_an_update_removes_what_upstream_has_removed(own: Path) -> None:
    update(judge(own), verdict("a", "failed"), verdict("b", "passed"))
    assert judge(own).gone(["b"]) == ["a"]
    assert judge(own).gone(["a"]) == ["b"]
    update(judge(own), verdict("c", "passed"), tests=("c",))
    last = judge(own)
    assert (set(last.accepted.tests), last.gone(["c"])) == ({"c"}, [])


def test_a_remembered_verdict_does_not_change_what_its_test_costs(own: Path) -> None:
    update(judge(own), verdict("a", "passed", seconds=7.0))
    remembered = UpstreamVerdict("a", "passed", cpu_seconds=0.1, cached=True)
    assert update(judge(own), remembered).accepted.of("a").cost == (7.0, 1)


def test_parts_of_a_suite_add_up_and_a_test_whose_process_ended_keeps_its_cost(own: Path) -> None:
    update(judge(own), verdict("a", "passed", seconds=2.0))
    update(judge(own), verdict("b", "passed"))
    update(judge(own), verdict("a", "timeout", seconds=900.0))
    tests = judge(own).accepted.tests
    assert (tests["a"].outcome, tests["a"].cost, set(tests)) == ("timeout", (2.0, 1), {"a", "b"})
