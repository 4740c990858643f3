"""The search for the operator that differs, without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest

from ci.engine.workers.parent import WorkerDied
from ci.pipeline.accuracy import Pair
from ci.pipeline.divergence import Cuts, as_text, ended_in_time, fix_of, keep_partial, worst_drop


def worst(
    operands: Mapping[str, Sequence[str]], ends: Sequence[str], sqnr: Callable[[str], float]
) -> str | None:
    """What is named where the errors of operands pass a node as they are."""

    def noise(node: str) -> float:
        return float(10 ** (-max(0.0, sqnr(node)) / 10))

    def own(node: str) -> float:
        return noise(node) - max(map(noise, operands[node]), default=0.0)

    found = worst_drop(list(operands), ends, noise, operands.__getitem__, own)
    return found[0] if found else None


OPERANDS = {"conv": [], "resize": ["conv"], "linear": ["conv"], "mean": ["resize"]}
"""A model with the outputs resize, mean and linear."""


@pytest.mark.parametrize("wrong", OPERANDS)
def test_whichever_output_differs_its_operator_is_found(wrong: str) -> None:
    """The mean of a wrong resize is right."""
    off = {wrong} | ({"resize", "linear", "mean"} if wrong == "conv" else set())
    ends = ["linear", "resize", "mean"]
    assert worst(OPERANDS, ends, lambda node: 0.0 if node in off else 60.0) == wrong


def chain(count: int) -> dict[str, list[str]]:
    return {f"n{place}": [f"n{place - 1}"] if place else [] for place in range(count)}


def searched(operands: dict[str, list[str]], values: dict[str, float]) -> tuple[str | None, int]:
    """What is named, and how many programs it took."""
    asked = set[str]()

    def sqnr(node: str) -> float:
        asked.add(node)
        return values.get(node, 999.0)

    return worst(operands, list(operands)[-1:], sqnr), len(asked)


def test_the_operator_that_loses_most_is_named_and_not_the_first_below_a_line() -> None:
    """At 8 bits each operator differs by some rounding: 29.1 dB from 30.5 is no fault."""
    operands = {"a": [], "conv": ["a"], "b": [], "add": ["b"], "out": ["conv", "add"]}
    values = {"a": 30.5, "conv": 29.1, "add": 1.1, "out": 1.0}
    assert searched(operands, values)[0] == "add"


def test_one_culprit_among_many_takes_a_program_for_each_halving() -> None:
    operands = chain(128)
    values = {name: 3.0 if place >= 77 else 60.0 for place, name in enumerate(operands)}
    named, programs = searched(operands, values)
    assert named == "n77" and programs <= 12


def test_an_operator_whose_error_the_next_ones_hide_is_named_all_the_same() -> None:
    operands = chain(40)
    values = dict.fromkeys(operands, 60.0) | {f"n{place}": 25.0 for place in range(21, 40)} | {"n20": -5.0}
    assert searched(operands, values)[0] == "n20"


def test_where_all_lose_a_little_the_search_ends() -> None:
    operands = chain(300)
    values = {name: 28 + (300 - place) / 20 for place, name in enumerate(operands)}
    named, programs = searched(operands, values)
    assert named in operands and programs < 80


def test_an_operand_whose_program_does_not_run_is_not_passed_over() -> None:
    def pairs(node: str | None) -> list[Pair]:
        if node == "conv":
            raise ValueError("no kernel\nat all")
        wrong = node == "linear" or node is None
        return [Pair("", numpy.ones(4), numpy.zeros(4) if wrong else numpy.ones(4))]

    cuts = Cuts[str](str, pairs, lambda node, *_: pairs(node))
    described = {"operator": "aten.linear.default", "module": "", "source": "", "code": ""}
    result = cuts.search(
        lambda: list(OPERANDS), lambda: ["linear"], lambda node: OPERANDS[node], lambda _: described, 30.0
    )
    assert result["first"] == {
        **described,
        "node": "linear",
        "sqnr_db": 0.0,
        "sample": 0,
        "faint": None,
        "share": 1.0,
        "operands": {"conv": None},
    }
    text = "\n".join(as_text({**result, "reference": "the float model"}))
    assert "conv not measured" in text and "no kernel" in text


def test_a_power_of_a_wrong_operand_is_wrong_and_not_at_fault() -> None:
    right, found = {"sum": 2.0, "pow": 4.0}, {"sum": 2.4, "pow": 5.76}

    def pairs(node: str | None) -> list[Pair]:
        name = node or "pow"
        return [Pair("", numpy.full(4, right[name]), numpy.full(4, found[name]))]

    def with_error(node: str, without: Sequence[str], found: Mapping[str, Sequence[Any]]) -> list[Pair]:
        (values,) = found[node]
        passed_on = found["sum"][0] ** 2 if without else 4
        return [Pair("", numpy.full(4, 4.0), 4 + values - passed_on if node == "pow" else values**2)]

    cuts = Cuts[str](str, pairs, with_error)
    operands = {"sum": [], "pow": ["sum"]}
    first = cuts.search(lambda: ["sum", "pow"], lambda: ["pow"], operands.__getitem__, lambda _: {}, 40.0)[
        "first"
    ]
    assert first and first["node"] == "sum" and first["share"] == 1.0


def test_a_small_error_that_grows_on_the_way_to_the_outputs_is_found_where_it_begins() -> None:
    """Each node doubles what it reads: a step of rounding at the first is all of the output."""
    operands = chain(12)
    found = {name: 1 + 2.0**place * 1e-3 for place, name in enumerate(operands)}

    def pairs(node: str | None) -> list[Pair]:
        return [Pair("", numpy.ones(4), numpy.full(4, found[node or "n11"]))]

    def with_error(node: str, without: Sequence[str], _: Mapping[str, Sequence[Any]]) -> list[Pair]:
        own = 0.0 if without else found["n11"] - 1
        return [Pair("", numpy.ones(4), numpy.full(4, 1 + own))]

    cuts = Cuts[str](str, pairs, with_error)
    first = cuts.search(lambda: list(operands), lambda: ["n11"], operands.__getitem__, lambda _: {}, 40.0)[
        "first"
    ]
    assert first and first["node"] == "n0" and first["share"] == 1.0


@pytest.mark.parametrize(("wrong", "share"), [(None, 0.1), ("n6", 0.9)])
def test_how_much_of_the_error_is_the_operators_own_tells_a_fault_from_rounding(
    wrong: str | None, share: float
) -> None:
    """At 8 bits ten operators that round as much give 30 dB, and none of them is at fault."""
    operands = chain(10)
    powers = [0.1 if wrong is None else (0.9 if name == wrong else 0.1 / 9) for name in operands]
    noise = {name: sum(powers[: place + 1]) * 1e-3 for place, name in enumerate(operands)}

    def pairs(node: str | None) -> list[Pair]:
        off = numpy.full(4, noise[node or "n9"] ** 0.5)
        return [Pair("", numpy.ones(4), numpy.ones(4) + off)]

    def with_error(node: str, without: Sequence[str], _: Mapping[str, Sequence[Any]]) -> list[Pair]:
        own = numpy.full(4, noise[node] - sum(noise[operand] for operand in without))
        return [Pair("", numpy.ones(4), numpy.ones(4) + own**0.5)]

    ends = [list(operands)[-1]]
    cuts = Cuts[str](str, pairs, with_error)
    first = cuts.search(lambda: list(operands), lambda: ends, operands.__getitem__, lambda _: {}, 40.0)[
        "first"
    ]
    assert first and first["share"] == pytest.approx(share, abs=0.02)
    assert wrong is None or first["node"] == wrong


@pytest.mark.parametrize(
    ("sqnr_db", "first", "between", "fix"),
    [
        (60.0, None, [], "quantize --where"),
        (3.0, None, [], "on the CPU"),
        (3.0, None, ["relu", "add"], "tried"),
        (3.0, {"operator": "aten.cumsum.default"}, [], "tried"),
    ],
)
def test_every_end_of_the_search_names_what_to_do_next(
    sqnr_db: float, first: dict[str, Any] | None, between: list[str], fix: str
) -> None:
    result = {
        "sqnr_db": sqnr_db,
        "least": 30.0,
        "first": first,
        "between": between,
        "reference": "the quantized model on the CPU",
    }
    assert fix in fix_of(result, lambda *words: " ".join(words), "what was tried")


def test_a_search_whose_time_is_over_says_between_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    operands, clock = chain(64), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def pairs(node: str | None) -> list[Pair]:
        clock[0] += 10
        wrong = node is None or int(node[1:]) >= 40
        return [Pair("", numpy.ones(4), numpy.zeros(4) if wrong else numpy.ones(4))]

    cuts = Cuts[str](str, pairs, lambda node, *_: pairs(node), whole=0.0)
    nodes = list(operands)
    result = cuts.search(
        lambda: nodes, lambda: nodes[-1:], operands.__getitem__, lambda _: {}, 30.0, seconds=45
    )
    low, high = result["between"]
    assert int(low[1:]) < 40 <= int(high[1:]) and len(result["cuts"]) <= 5
    # It is the whole program, whose figure is known.
    assert nodes[-1] not in result["cuts"]
    assert low in "\n".join(as_text({**result, "reference": "the float model"}))


@pytest.mark.parametrize(("again", "cuts"), [(0.0, False), (1.0, True)], ids=["as the whole", "repaired"])
@pytest.mark.parametrize("takes", [0, 80])
def test_a_program_that_shows_all_operators_is_believed_if_it_errs_as_the_whole_one(
    again: float, cuts: bool, takes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it showed is not lost, though it takes all of the time."""
    operands, cut, clock = chain(64), list[str](), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def pairs_of(name: str) -> list[Pair]:
        return [Pair("", numpy.ones(4), numpy.zeros(4) if int(name[1:]) >= 40 else numpy.ones(4))]

    def pairs(node: str | None) -> list[Pair]:
        cut.append(node or "n63")
        return pairs_of(cut[-1])

    def shown() -> tuple[list[Pair], dict[str, list[Pair]]]:
        clock[0] += takes
        return [Pair("", numpy.ones(4), numpy.full(4, again))], {name: pairs_of(name) for name in operands}

    search = Cuts[str](str, pairs, lambda node, *_: pairs_of(node), 0.0, shown)
    found = search.search(
        lambda: list(operands), lambda: ["n63"], operands.__getitem__, lambda _: {}, 30.0, seconds=60
    )
    if cuts and takes:
        assert found["between"] and found["first"] is None
    else:
        assert found["first"]["node"] == "n40" and bool(cut) is cuts


def test_what_reads_a_ruined_value_is_not_the_cause() -> None:
    """Two values that are lost make any quotient of them."""
    operands = {"cast": [], "sum": ["cast"], "div": ["cast", "sum"]}
    lost = {"cast": 0.0, "sum": 0.0, "div": -0.2}
    errors = {"cast": 0.9, "sum": 0.0, "div": 1.2}

    def pairs(node: str | None) -> list[Pair]:
        return [Pair("", numpy.ones(4), numpy.full(4, lost[node or "div"]))]

    def with_error(node: str, known: Sequence[str], _: object) -> list[Pair]:
        return [Pair("", numpy.ones(4), numpy.full(4, 1 - errors[node]))]

    cuts = Cuts[str](str, pairs, with_error)
    first = cuts.search(lambda: list(operands), lambda: ["div"], operands.__getitem__, lambda _: {}, 30.0)[
        "first"
    ]
    assert first["node"] == "cast"


def test_what_a_search_knows_is_kept_for_when_it_is_ended(tmp_path: Path) -> None:
    operands = chain(64)

    def pairs(node: str | None) -> list[Pair]:
        if node == "n47":
            raise KeyboardInterrupt
        wrong = node is None or int(node[1:]) >= 40
        return [Pair("", numpy.ones(4), numpy.zeros(4) if wrong else numpy.ones(4))]

    cuts = Cuts[str](str, pairs, lambda node, *_: pairs(node), whole=0.0)
    kept: Callable[[Mapping[str, Any]], None] = partial(keep_partial, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cuts.search(
            lambda: list(operands), lambda: ["n63"], operands.__getitem__, lambda _: {}, 30.0, keep=kept
        )

    def late() -> dict[str, Any]:
        raise WorkerDied("timeout", "no result after 5 s")

    known = ended_in_time(late, tmp_path)
    assert known["between"] == ["n31", "n63"] and known["cuts"]["n31"] > 100
    with pytest.raises(WorkerDied):
        ended_in_time(late, tmp_path / "empty")


@pytest.mark.parametrize(
    ("expected", "error", "faint"),
    [(1e-8, 1e-7, True), (3e-5, 1e-7, True), (3e-5, 3e-5, False), (1.0, 1e-7, False), (0.0, 1e-7, False)],
)
def test_values_are_too_small_where_the_error_is_a_few_of_the_smallest_steps(
    expected: float, error: float, faint: bool
) -> None:
    def pairs(node: str | None) -> list[Pair]:
        return [Pair("", numpy.full(4, expected), numpy.full(4, expected + error))]

    cuts = Cuts[str](str, pairs, lambda node, *_: pairs(node))
    found = cuts.search(
        lambda: ["a", "b"], lambda: ["b"], {"a": [], "b": ["a"]}.__getitem__, lambda _: {}, 300
    )
    assert (found["first"]["faint"] is not None) is faint
