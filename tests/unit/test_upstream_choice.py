"""Which tests of a suite a run takes."""

from __future__ import annotations

import argparse
import shlex

from ci.gate.table import gate_table
from ci.lanes.upstream.accepted import load_tests
from ci.lanes.upstream.stage import sample_of
from ci.lanes.upstream.verb import ALL
from ci.operators.table import shipped_table
from ci.suite.options import matcher
from lab.operators import tests_verb
from lab.operators.tried import TABLED
from provisioning.base.selection import selection_of
from provisioning.base.settings import MANIFESTS
from provisioning.manifest import load_socs

TESTS = [f"test_{number}" for number in range(400)]
SLOWER, CORES = 2, 2
"""GitHub's cores may be half as fast as those that the lengths were recorded on."""


def test_a_sample_is_a_few_tests_and_the_same_where_others_come_or_go() -> None:
    few = set(sample_of(TESTS))
    assert 0 < len(few) < 40
    assert set(sample_of(["test_new", *TESTS[:200]])) - {"test_new"} == few & set(TESTS[:200])


def test_nightly_runs_all_that_is_accepted_in_shards_of_an_hour_at_most() -> None:
    parsers = {"test_upstream": argparse.ArgumentParser(), "lab": argparse.ArgumentParser()}
    ALL.configure(parsers["test_upstream"])
    tests_verb.configure(parsers["lab"])
    nightly: set[tuple[str, str]] = set()
    tabled: set[tuple[str, str]] = set()
    for row in gate_table().row.values():
        words = shlex.split(row.arguments)
        if row.when != "nightly" or not (row.stage == "test_upstream" or words[:1] == ["operator_tests"]):
            continue
        args = parsers[row.stage].parse_args(words if row.stage == "test_upstream" else words[1:])
        chosen, seconds = matcher(getattr(args, "words", ()), whole_name=True), 0.0
        soc = selection_of(args, {}).soc
        tabled.update((suite, soc) for suite in args.suites if suite in TABLED)
        for suite in set(args.suites) - {*TABLED}:
            tests = load_tests(suite, "wheels", soc).tests
            assert tests and all(map(chosen, tests))
            seconds += sum(test.cost[0] for test in tests.values() if test.cost)
            nightly.add((suite, soc))
        assert seconds * SLOWER / CORES / row.shards <= 60 * 60, row
    suites = [path.parent.name for path in (MANIFESTS / "upstream").glob("*/accepted-wheels.json")]
    measured = {
        (suite, soc) for suite in suites for soc in load_socs() if load_tests(suite, "wheels", soc).origin
    }
    assert nightly == measured - {("delegate", "SM8650")}
    chips = {(suite, soc) for suite in ("values", "chains") for soc in shipped_table().measured}
    assert tabled == {*chips, ("operators", "SM8650")}
