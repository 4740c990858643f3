"""Choosing upstream tests by expressions, and the ledger of their outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.lanes.upstream.ledger import (
    ExpectedTests,
    Ledger,
    RecordedTest,
    SuiteRecord,
    load_ledger,
    load_record,
)
from ci.lanes.upstream.verdict import UpstreamVerdict
from ci.suite.expression import matcher
from provisioning.base.errors import ManifestError, UsageError
from provisioning.base.settings import MANIFESTS

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
    matches = matcher(expressions, whole=True)
    assert {name for test, name in NAMES.items() if matches(test)} == chosen


@pytest.mark.parametrize("expression", ["", "abs and", "(abs", "abs conv"])
def test_other_expressions_are_usage_errors(expression: str) -> None:
    with pytest.raises(UsageError):
        matcher([expression])


# The ledger

KNOWN = ExpectedTests(test="TestOps.test_fails", outcome="failed", cause="the compiler refuses it")
OUTCOMES = st.sampled_from(["passed", "failed", "not_run", "expected_failure"])
VERDICTS = st.dictionaries(st.sampled_from(sorted(NAMES)), OUTCOMES)


@given(st.lists(st.tuples(VERDICTS, st.sampled_from(["SM8650", "SM8750"])), max_size=4))
def test_an_updated_ledger_expects_these_verdicts(runs: list[tuple[dict[str, str], str]]) -> None:
    book = Ledger("delegate", "wheels", (KNOWN,))
    for outcomes, soc in runs:
        verdicts = [UpstreamVerdict(test, outcome) for test, outcome in outcomes.items()]
        book = book.updated(verdicts, dict.fromkeys(NAMES, "because"), soc)
        assert {v.test: book.outcome(v.test, soc) for v in verdicts} == outcomes


@pytest.mark.parametrize("socs", [(), ("SM8550", "SM8650")])
def test_an_update_for_one_chip_leaves_the_others(socs: tuple[str, ...]) -> None:
    book = Ledger("delegate", "wheels", (KNOWN.model_copy(update={"socs": socs}),))
    book = book.updated([UpstreamVerdict(KNOWN.test, "passed")], {}, "SM8650")
    assert [book.outcome(KNOWN.test, soc) for soc in ("SM8650", "SM8550")] == ["passed", "failed"]


def test_chips_that_fail_alike_share_an_entry() -> None:
    book = Ledger("rework-op", "wheels")
    for soc, cause in (("SM8750", "it dies"), ("SM8350", "it dies"), ("SM8450", "it is wrong")):
        book = book.updated([UpstreamVerdict(KNOWN.test, "failed")], {KNOWN.test: cause}, soc)
    assert [row.socs for row in book.expected] == [("SM8350", "SM8750"), ("SM8450",)]


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=300))
def test_a_ledger_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, cause: str) -> None:
    cause = " ".join(cause.replace('"""', "").split()) or "x"
    rows = (
        ExpectedTests(test="T.skips", outcome="not_run", cause="no", socs=("SM8650",)),
        KNOWN.model_copy(update={"cause": cause}),
    )
    path = tmp_path_factory.mktemp("ledger") / "wheels.toml"
    path.write_text(Ledger("delegate", "wheels", rows).as_toml(), encoding="utf-8")
    assert load_ledger("delegate", "wheels", path) == Ledger("delegate", "wheels", rows)


@pytest.mark.parametrize("socs", [((), ()), ((), ("SM8650",)), (("SM8650",), ("SM8650", "SM8750"))])
def test_two_entries_for_one_test_and_chip_are_refused(
    tmp_path: Path, socs: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    path = tmp_path / "wheels.toml"
    rows = tuple(KNOWN.model_copy(update={"socs": soc}) for soc in socs)
    path.write_text(Ledger("delegate", "wheels", rows).as_toml(), encoding="utf-8")
    with pytest.raises(ManifestError, match=KNOWN.test):
        load_ledger("delegate", "wheels", path)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    tests = {
        "T.a[x]": RecordedTest(1.5, 20, "executorch 2", ("it “dies”", "an error")),
        "T.b": RecordedTest(2.0, 3, measured="executorch 2"),
        "T.c": RecordedTest(2.0, 3, measured="executorch 1"),
    }
    record = SuiteRecord("executorch 2", tests)
    path = tmp_path / "wheels-SM8650.json"
    path.write_text(record.as_json(), encoding="utf-8")
    assert load_record("operators", "wheels", "SM8650", path) == record


@pytest.mark.parametrize(
    "text", ["{", '{"tests": {"T.a": 3}}', '{"measured": "", "tests": {"T.a": [1, 2, 3]}}']
)
def test_a_damaged_record_is_an_error_of_the_manifest(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wheels-SM8650.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError, match=r"wheels-SM8650\.json"):
        load_record("delegate", "wheels", "SM8650", path)


def test_the_committed_ledgers_are_complete() -> None:
    profiles = {path.stem for path in (MANIFESTS / "profiles").glob("*.toml")}
    assert {path.stem for path in (MANIFESTS / "upstream").glob("*/*.toml")} <= profiles
    book, costs = load_ledger("delegate", "wheels"), load_record("delegate", "wheels", "SM8650").tests
    assert {row.test for row in book.expected} <= costs.keys()
