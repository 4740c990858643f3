"""Which tests of a suite a run takes."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from ci.gate.table import gate_table
from ci.lanes.upstream import all_verb
from ci.lanes.upstream.choice import UNMEASURED, sample_of
from ci.lanes.upstream.ledger import Ledger, RecordedTest, load_record, record_path
from ci.lanes.upstream.tried import TABLED
from ci.lanes.upstream.verdict import RecordedPart
from ci.operators.table import shipped
from ci.pipeline.expression import matcher
from ci.pipeline.shards import parse_shard
from provisioning.base.errors import UsageError
from provisioning.base.selection import selection_of
from provisioning.base.settings import MANIFESTS

TESTS = [f"test_{number}" for number in range(400)]
SLOWER, CORES = 2, 2
"""GitHub's cores may be half as fast as those that the lengths were recorded on."""

LEDGER = Ledger("operators", "wheels")


def test_the_parts_of_a_sample_are_disjoint_and_together_the_whole() -> None:
    recorded = {test: RecordedTest(1, 1, (RecordedPart("bad_test"),)) for test in TESTS[:300]}
    parts = [set(sample_of(f"{index}/4", TESTS, LEDGER, recorded)) for index in (1, 2, 3, 4)]
    assert set.union(*parts) == set(TESTS) and sum(map(len, parts)) == len(TESTS)


def test_a_sample_without_a_number_has_no_test_that_measured_nothing() -> None:
    all_of_them = sample_of("", TESTS, LEDGER, {})
    measured = RecordedTest(1, 1, (RecordedPart("bad_test"), RecordedPart("wrong", 3.0)))
    recorded = dict.fromkeys(all_of_them, measured)
    assert sample_of("", TESTS, LEDGER, recorded) == all_of_them
    nothing = [RecordedTest(1, 1, (RecordedPart(result),)) for result in UNMEASURED]
    recorded |= dict(zip(all_of_them, nothing, strict=False))
    assert sample_of("", TESTS, LEDGER, recorded) == all_of_them[len(nothing) :]
    assert len(all_of_them) > len(nothing)


def test_a_small_suite_has_a_sample_too() -> None:
    assert sample_of("", TESTS[:1], LEDGER, {}) == TESTS[:1]


def test_the_ledgers_own_sample_goes_before() -> None:
    own = Ledger("operators", "wheels", sample=("test_7", "test_gone"))
    assert sample_of("", TESTS, own, {}) == ["test_7"]


def test_nightly_runs_all_that_is_recorded_in_shards_of_an_hour_at_most() -> None:
    parser = argparse.ArgumentParser()
    all_verb.configure(parser)
    nightly: set[Path] = set()
    tabled: set[tuple[str, str]] = set()
    for row in gate_table().row.values():
        if row.stage != "test_upstream" or row.when != "nightly":
            continue
        args = parser.parse_args(shlex.split(row.arguments))
        chosen, seconds = matcher(args.expressions, whole=True), 0.0
        soc = selection_of(args, {}).soc
        tabled.update((suite, soc) for suite in args.suites if suite in TABLED)
        for suite in set(args.suites) - {*TABLED}:
            path = record_path(suite, "wheels", soc)
            tests = load_record(suite, "wheels", "", path).tests
            assert tests and all(map(chosen, tests))
            seconds += sum(test.seconds for test in tests.values())
            nightly.add(path)
        assert seconds * SLOWER / CORES / row.shards <= 60 * 60, row
    recorded = set((MANIFESTS / "upstream").glob("*/wheels-*.json"))
    assert nightly == recorded - {record_path("delegate", "wheels", "SM8650")}
    chips = {(suite, soc) for suite in ("values", "chains") for soc in shipped().measured}
    assert tabled == {*chips, ("operators", "SM8650")}


@pytest.mark.parametrize("flag", ["--shard", "--sample"])
def test_a_part_that_is_none_is_refused_by_its_own_flag(flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag} 3/2") as error:
        parse_shard("3/2", flag)
    assert error.value.fix == f"{flag} 1/4 is the first"
