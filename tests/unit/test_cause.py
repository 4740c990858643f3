"""What is said of the cause of outputs that are not healthy, by what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

from ci.explain.cause import cause_of, is_of_chip, of_divergence, of_scores, with_suspects
from ci.explain.divergence_result import DivergenceResult
from ci.explain.graph import FLOAT_MODEL
from ci.explain.losses import GroupScore, Loss, Scores
from ci.one_model.product import Outcome
from ci.operators.table import Inexact
from provisioning.base.errors import CheckFailed
from provisioning.known_faults import SuspectedFault
from tests.support.stand_in_lane import AT, DIFFERS, POWER, WRONG, StandInLane

SUSPECT = SuspectedFault("pad by less than nothing at net.py:7", "cut it", "negative-pad")


@pytest.mark.parametrize(
    ("kind", "figures", "of_chip"),
    [
        ("16a8w", {"sqnr_db": 26.8, "reference_sqnr_db": 26.8}, True),
        ("16a8w", {"sqnr_db": 33.0, "reference_sqnr_db": 34.0}, True),
        ("16a8w", {"sqnr_db": 15.7, "reference_sqnr_db": 42.4}, None),
    ],
)
def test_a_chip_that_differs_is_searched_whatever_the_float_figure_is(
    kind: str, figures: dict[str, float], of_chip: bool | None
) -> None:
    assert is_of_chip(Outcome(figures=figures), kind) is of_chip


@pytest.mark.parametrize(
    ("figures", "of_chip"),
    [
        ({"sqnr_db": 3.0, "reference_sqnr_db": 3.1}, True),
        ({"sqnr_db": 3.0, "reference_sqnr_db": 60.0}, False),
        ({"sqnr_db": 3.0}, True),
        # Of floats that is a warning.
        ({"sqnr_db": 37.0}, True),
        ({"sqnr_db": 39.0}, None),
        # No floor is missed, and the chip computes something else all the same.
        ({"sqnr_db": 15.0, "reference_sqnr_db": 15.1}, True),
        ({"sqnr_db": 40.0, "reference_sqnr_db": 60.0}, None),
        ({"sqnr_db": 40.0, "reference_sqnr_db": 60.0, "slice_sqnr_db": 3.0}, None),
        ({"agreement": 0.5}, None),
        ({}, None),
    ],
)
def test_what_is_searched_follows_the_figures(figures: dict[str, float], of_chip: bool | None) -> None:
    kind = "8a8w" if "reference_sqnr_db" in figures else "fp16"
    assert is_of_chip(Outcome(figures=figures), kind) is of_chip


def cuts(share: float, between: Sequence[str] = (), **more: Any) -> DivergenceResult:
    return replace(DIFFERS, first=replace(POWER, share=share, **more), between=tuple(between))


def test_an_operator_is_the_cause_where_most_of_the_error_is_its_own() -> None:
    fault = SuspectedFault("pow is wrong", "exp", "power-of-a-number")
    found = of_divergence(cuts(0.9, known=(fault, Inexact("pow", "measured", "shows"))), "divergence")
    assert "cause is aten.pow.Scalar at net.py:7" in found.words and "90%" in found.words
    assert found.in_words().endswith("suspected: pow is wrong") and [*found.nodes] == ["pow_1"]


def test_an_operator_that_only_rounds_is_not_the_cause_and_what_makes_much_of_it_is_named() -> None:
    grows = Loss("aten.where.self", "", "net.py:9", "", "where", 85.2, 3.1)
    found = of_divergence(cuts(0.6, sqnr_db=89.8, rounds=True, grows=grows), "divergence")
    assert "the cause is" not in found.words and found.line == "net.py:9"
    assert "aten.where.self at net.py:9" in found.words and "85.2 dB before it, 3.1 dB after" in found.words


def test_that_no_operator_is_wrong_is_said_of_a_whole_search_alone() -> None:
    whole = of_divergence(cuts(0.4, rounds=True), "divergence")
    ended = of_divergence(cuts(0.4, ["relu", "add"], rounds=True), "divergence")
    assert whole.words.startswith("no operator is wrong") and not whole.goes_on
    assert "is wrong" not in ended.words and "40% of the error" in ended.words and ended.goes_on


def test_where_all_add_a_little_none_is_the_cause() -> None:
    found = of_divergence(cuts(0.1), "divergence")
    assert "cause" not in found.words and not found.place


@pytest.mark.parametrize("between", [[], ["relu", "linear_3"]])
@pytest.mark.parametrize("share", [0.9, 0.1])
@pytest.mark.parametrize(
    ("reference", "faint", "said"),
    [(FLOAT_MODEL, 1e-8, True), (FLOAT_MODEL, None, False), ("the quantized model on the CPU", 1e-8, False)],
)
def test_what_is_too_small_for_fp16_is_said_of_an_operator_that_is_named(
    reference: str, faint: float | None, said: bool, share: float, between: list[str]
) -> None:
    found, other = (
        of_divergence(replace(cuts(share, between, faint=value), reference=reference), "divergence")
        for value in (faint, None)
    )
    is_named = share > 0.5 or not between
    assert (found.words != other.words) is (said and is_named)


@pytest.mark.parametrize(("noise", "named"), [(0.08, True), (0.01, False)])
def test_quantizing_an_operator_is_the_cause_where_it_alone_loses_as_much(noise: float, named: bool) -> None:
    units = (
        GroupScore(**asdict(AT), nodes=(node,), size=1, reads={}, noise=(adds,))
        for node, adds in (("pow_1", noise), ("mul", 0.005))
    )
    found = of_scores(Scores(tuple(units), (0.1,), 0))
    assert ("cause is quantizing aten.pow.Scalar" in found.words) is named is bool(found.place)
    assert not named or ("11.0 dB" in found.words and "10.0 dB" in found.words)


class Dies(StandInLane):
    def scores_of(self, *_: object) -> object:
        raise CheckFailed("the compiler dies", fix="")


def test_a_search_that_fails_is_no_cause_and_no_failure(tmp_path: Any) -> None:
    outcome = Outcome(figures={"sqnr_db": 3.0, "reference_sqnr_db": 60.0}, wrong=WRONG)
    model, program = Dies(tmp_path).model, SimpleNamespace(run=SimpleNamespace(kind="8a8w"))
    assert cause_of(model, program, replace(outcome, wrong=())) is None
    found = cause_of(model, program, outcome)
    assert found and "not found: the compiler dies" in found.words and not found.place


@pytest.mark.parametrize(("between", "named"), [(["relu", "linear_3"], True), ([], False)])
def test_what_the_nodes_meet_is_suspected_where_the_time_ended_the_search(
    between: list[str], named: bool
) -> None:
    searched = of_divergence(replace(cuts(0.9, between), first=None), "divergence net.py")
    found = with_suspects(searched, [SUSPECT])
    assert ("net.py:7" in found.in_words()) is named and not found.place


def test_an_operator_that_was_found_needs_no_suspicion_of_others() -> None:
    found = with_suspects(of_divergence(cuts(0.9), "divergence net.py"), [SUSPECT])
    assert found.place and not found.suspected
