"""The search for the operator that differs, without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest

from ci.explain.divergence import (
    Divergence,
    DivergenceLimits,
    DivergenceResult,
    DivergentOperator,
    keep_partial,
    remains_of,
)
from ci.explain.divergence_text import fix_of, text_lines
from ci.explain.graph import FLOAT_MODEL, INPUT, NOTHING, Arrays, Graph, Node
from ci.explain.losses import losses_of
from ci.models.inputs import Array
from ci.models.model_lines import OperatorAt
from ci.suite.figures import EQUAL_DB
from ci.work.outcome import Failure
from ci.work.plain import read, to_json


def chain(count: int) -> dict[str, list[str]]:
    return {f"n{place}": [f"n{place - 1}"] if place else [] for place in range(count)}


Compute = Callable[..., Any]


def _first(*given: Array) -> Any:
    return given[0] if given else numpy.ones(4)


class Toy(Graph):
    """A model of one sample, of which each node gives what the first gives that it reads, if nothing else is
    said; what reads none gives ones."""

    reference = "the quantized model on the CPU"
    samples = (0,)

    def __init__(
        self,
        operands: Mapping[str, Sequence[str]],
        computes: Mapping[str, Compute] | None = None,
        end: str = "",
        shown: Sequence[str] = (),
    ) -> None:
        self.operands, self.computes = operands, computes or {}
        self.end, self.shown = end or list(operands)[-1], shown

    @property
    def nodes(self) -> Mapping[str, Node]:
        rows = (Node(name, "op", (*reads, "x"), 4, True) for name, reads in self.operands.items())
        return {"x": Node("x", INPUT, ()), **{row.name: row for row in rows}}

    @property
    def results(self) -> Sequence[str]:
        return [self.end, *self.shown]

    def operator_at(self, name: str) -> OperatorAt:
        return OperatorAt(f"aten.{name}.default", "", "", "")

    def ending_at(self, name: str) -> Toy:
        return Toy(self.operands, self.computes, name)

    def showing(self, names: Sequence[str]) -> Toy | None:
        return None

    def outputs(self, replaced: Arrays = NOTHING) -> list[list[Array]]:
        values: dict[str, Array] = {}
        for name, reads in self.operands.items():
            given = [values[operand] for operand in reads]
            compute: Compute = self.computes.get(name, _first)
            with numpy.errstate(all="ignore"):
                values[name] = replaced[name][0] if name in replaced else compute(*given)
        return [[values[name] for name in (self.end, *self.shown)]]

    # A search for the operator that differs asks for none of these.
    def dimension(self, name: str) -> int | None:
        return None

    def values_at(self, names: Sequence[str]) -> Arrays:
        return {}

    def values(self, sample: int) -> dict[str, Array]:
        return {}

    def errors_of(self, quantized: Any) -> dict[str, Array]:
        return {}

    def disturbed(self, errors: object) -> Any:
        return []


class Shows(Toy):
    def ending_at(self, name: str) -> Toy:
        return Shows(self.operands, self.computes, name)

    def showing(self, names: Sequence[str]) -> Toy:
        return Shows(self.operands, self.computes, self.end, names)


class Told:
    """A chip that gives what it is told at each node."""

    def __init__(self, gives: Callable[[str], Any]) -> None:
        self.gives = gives

    def __call__(self, graph: Any, expected: object) -> list[list[Array]]:
        return [[numpy.asarray(self.gives(name)) for name in (graph.end, *graph.shown)]]


def found_in(
    graph: Toy,
    gives: Callable[[str], Any],
    least: float = 40.0,
    seconds: float = 1e9,
    whole: float | None = None,
    **more: Any,
) -> DivergenceResult:
    return Divergence(graph, Told(gives), DivergenceLimits(least, seconds, whole), **more).search()


def first_in(*given: Any, **more: Any) -> DivergentOperator:
    first = found_in(*given, **more).first
    assert first
    return first


def wrong_from(place: int) -> Callable[[str], Any]:
    """Of a chain, zeros in place of ones."""
    return lambda name: numpy.zeros(4) if int(name[1:]) >= place else numpy.ones(4)


OPERANDS = {"conv": [], "resize": ["conv"], "linear": ["conv"], "mean": ["resize"]}


@pytest.mark.parametrize("wrong", OPERANDS)
def test_whichever_output_differs_its_operator_is_found(wrong: str) -> None:
    """The mean of a wrong resize is right."""
    off = {wrong} | ({"resize", "linear", "mean"} if wrong == "conv" else set())
    model = Toy(OPERANDS, end="linear", shown=("resize", "mean"))
    assert first_in(model, lambda name: numpy.full(4, float(name not in off))).node == wrong


def test_the_operator_that_loses_most_is_named_and_not_the_first_below_a_line() -> None:
    """At 8 bits each operator differs by some rounding: 29.1 dB from 30.5 is no fault."""
    operands = {"a": [], "conv": ["a"], "b": [], "add": ["b"], "out": ["conv", "add"]}
    chip = {"a": 1.030, "conv": 1.035, "b": 1.0, "add": 0.12, "out": 1.155}
    model = Toy(operands, {"out": lambda x, y: x + y})
    assert first_in(model, lambda name: numpy.full(4, chip[name])).node == "add"


@pytest.mark.parametrize(
    ("count", "gives", "named", "most"),
    [
        # A program for each halving.
        (128, lambda place: 1.001 if place < 77 else 0.0, "n77", 12),
        # The next ones hide most of its error.
        (40, lambda place: 1.0 + (2.8 if place == 20 else 0.056 * (place > 20)), "n20", 40),
        # All lose a little, and the search ends.
        (300, lambda place: 1.0 + 0.035 * (1 + place / 300), None, 80),
    ],
)
def test_an_operator_of_a_chain_is_found_by_few_programs(
    count: int, gives: Callable[[int], float], named: str | None, most: int
) -> None:
    asked = set[str]()

    def chip(name: str) -> Any:
        asked.add(name)
        return numpy.full(4, gives(int(name[1:])))

    first = first_in(Toy(chain(count)), chip)
    assert named in (None, first.node) and len(asked) <= most


def test_an_operand_whose_program_does_not_run_is_not_passed_over() -> None:
    def gives(name: str) -> Any:
        if name == "conv":
            raise ValueError("no kernel\nat all")
        return numpy.zeros(4) if name == "linear" else numpy.ones(4)

    result = found_in(Toy({**OPERANDS, "linear": ["conv"]}, end="linear"), gives, 30.0)
    first = result.first
    assert first
    assert (first.node, first.sqnr_db, first.share) == ("linear", 0.0, 1.0)
    assert first.operands == {"conv": None}
    text = "\n".join(text_lines(result))
    assert "conv not measured" in text and "no kernel" in text


def test_a_power_of_a_wrong_operand_is_wrong_and_not_at_fault() -> None:
    model = Toy({"sum": [], "pow": ["sum"]}, {"sum": lambda: numpy.full(4, 2.0), "pow": lambda x: x**2})
    chip = {"sum": 2.4, "pow": 5.76}
    first = first_in(model, lambda name: numpy.full(4, chip[name]))
    assert first.node == "sum" and first.share == 1.0


def test_a_small_error_that_grows_on_the_way_to_the_outputs_is_found_where_it_begins() -> None:
    """Each node doubles what it reads: a step of rounding at the first is all of the output."""
    operands = chain(12)
    model = Toy(operands, {name: lambda x: 1 + 2 * (x - 1) for name in list(operands)[1:]})
    first = first_in(model, lambda name: numpy.full(4, 1 + 2.0 ** int(name[1:]) * 1e-3))
    assert first.node == "n0" and first.share == 1.0


@pytest.mark.parametrize(("wrong", "share"), [(None, 0.1), ("n6", 0.9)])
def test_how_much_of_the_error_is_the_operators_own_tells_a_fault_from_rounding(
    wrong: str | None, share: float
) -> None:
    """At 8 bits ten operators that round as much give 30 dB, and none of them is at fault."""
    operands = chain(10)
    powers = [0.1 if wrong is None else (0.9 if name == wrong else 0.1 / 9) for name in operands]

    def gives(name: str) -> Any:
        """Each rounds another value."""
        noise = [power if place <= int(name[1:]) else 0.0 for place, power in enumerate(powers)]
        return 1 + numpy.sqrt(numpy.array(noise) * 1e-2)

    first = first_in(Toy(operands, {"n0": lambda: numpy.ones(10)}), gives)
    assert first.share == pytest.approx(share, abs=0.02)
    assert wrong is None or first.node == wrong


def test_a_search_whose_time_is_over_says_between_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def gives(name: str) -> Any:
        clock[0] += 10
        return wrong_from(40)(name)

    result = found_in(Toy(chain(64)), gives, 30.0, seconds=45, whole=0.0)
    low, high = result.between
    assert int(low[1:]) < 40 <= int(high[1:]) and len(result.cuts) <= 5
    # It is the whole program, whose figure is known.
    assert "n63" not in result.cuts
    assert low in "\n".join(text_lines(result))


@pytest.mark.parametrize(("again", "cuts"), [(0.0, False), (1.0, True)], ids=["as the whole", "repaired"])
@pytest.mark.parametrize("takes", [0, 80])
def test_a_program_that_shows_all_operators_is_believed_if_it_errs_as_the_whole_one(
    again: float, cuts: bool, takes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it showed is not lost, though it takes all of the time."""
    cut, clock = list[str](), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    class Chip(Told):
        def __call__(self, graph: Any, expected: object) -> list[list[Array]]:
            rows = super().__call__(graph, expected)
            if graph.shown:
                clock[0] += takes
                return [[numpy.full(4, again), *rows[0][1:]]]
            cut.append(graph.end)
            return rows

    search = Divergence(Shows(chain(64)), Chip(wrong_from(40)), DivergenceLimits(30.0, 60, 0.0))
    result = search.search()
    if cuts and takes:
        assert result.between and result.first is None
    else:
        assert result.first and result.first.node == "n40" and bool(cut) is cuts


class Choosing(Shows):
    """Half of what `choice` gives hangs on the last step of a quantizer before it."""

    def __init__(self, end: str = "", shown: Sequence[str] = ()) -> None:
        operands = {"enter": [], "norm": ["enter"], "pass": ["norm"], "choice": ["pass"], "out": ["choice"]}
        enter, choice = (lambda: numpy.array([1.0, 2.0])), (lambda x: numpy.where(x > 1.0, x, 0.0))
        super().__init__(operands, {"enter": enter, "choice": choice}, end, shown)

    def step(self, name: str) -> float:
        return 0.01

    def ending_at(self, name: str) -> Choosing:
        return type(self)(name)

    def showing(self, names: Sequence[str]) -> Choosing:
        return type(self)(self.end, names)


def norm_off_by(off: float) -> Callable[[str], Any]:
    return lambda name: numpy.array([1.0 + (name != "enter") * off, 2.0])


@pytest.mark.parametrize(("off", "rounds"), [(0.01, True), (0.03, False)])
def test_a_step_of_rounding_that_decides_a_choice_is_no_fault(off: float, rounds: bool) -> None:
    first = first_in(Choosing(), norm_off_by(off), 30.0)
    assert first.node == "norm" and first.rounds is rounds


class Halves(Choosing):
    """The same in fp16."""

    reference = FLOAT_MODEL

    def step(self, name: str) -> float:
        return 0.0


@pytest.mark.parametrize(("off", "rounds"), [(2.0**-11, True), (2.0**-10, False)])
def test_so_is_the_rounding_of_halves(off: float, rounds: bool) -> None:
    first = first_in(Halves(), norm_off_by(off), 30.0)
    assert first.node == "norm" and first.rounds is rounds


class Indexing(Shows):
    """Both sides read the values at places that a cast makes whole."""

    table, places = numpy.array([1.0, 20.0, 300.0, 4000.0]), numpy.array([2.0, 1.0, 0.0])

    def __init__(self, end: str = "", shown: Sequence[str] = ()) -> None:
        operands = {"values": [], "place": [], "cast": ["place"], "index": ["cast"]}
        operands |= {"left": ["values", "index"], "right": ["values", "index"], "out": ["left", "right"]}
        computes: dict[str, Compute] = {
            "values": lambda: self.table,
            "place": lambda: self.places,
            "cast": lambda x: x.astype(int),
            "left": lambda values, index: values[index],
            "right": lambda values, index: values[index],
            "out": lambda left, right: left + right,
        }
        super().__init__(operands, computes, end, shown)

    @property
    def nodes(self) -> Mapping[str, Node]:
        rows = super().nodes
        return {**rows, **{name: replace(rows[name], floats=False) for name in ("cast", "index")}}

    def step(self, name: str) -> float:
        return 0.01 if name == "place" else 0.0

    def ending_at(self, name: str) -> Indexing:
        return Indexing(name)

    def showing(self, names: Sequence[str]) -> Indexing:
        return Indexing(self.end, names)


RIGHT_INDEX = [2, 1, 0]


@pytest.mark.parametrize(
    ("place", "index", "sides", "named"),
    [
        (0.0, [3, 2, 1], [4000.0, 300.0, 20.0], "cast"),
        (0.0, [200, 100, 0], [0.0, 0.0, 0.0], "cast"),
        (0.0, RIGHT_INDEX, [0.0, 20.0, 1.0], "left"),
        (-0.01, [1, 0, 0], [20.0, 1.0, 1.0], "place"),
    ],
    ids=["wrong integers", "integers beyond all values", "right integers", "rounding before the cast"],
)
def test_integers_are_the_cause_where_they_are_not_what_the_floats_before_them_give(
    place: float, index: Sequence[int], sides: Sequence[float], named: str
) -> None:
    """Of what reads them, each adds a part alone."""
    chip: dict[str, Any] = {"values": Indexing.table, "place": Indexing.places + place, "index": index}
    chip |= {"left": sides, "right": sides, "out": numpy.array(sides) * 2}
    first = first_in(Indexing(), chip.__getitem__, 30.0)
    assert (first.node, first.rounds, first.integers) == (named, named == "place", named == "cast")
    assert named == "left" or first.share == 1.0
    assert named != "cast" or first.operands == {"place": 999.0}


def test_what_is_kept_before_the_integers_are_looked_at_is_no_end_of_the_search() -> None:
    chip = {"values": Indexing.table, "place": Indexing.places, "index": [3, 2, 1]}
    sides = [4000.0, 300.0, 20.0]
    gives = {**chip, "left": sides, "right": sides, "out": numpy.array(sides) * 2}.__getitem__
    kept = list[DivergenceResult]()
    assert not found_in(Indexing(), gives, 30.0, keep=kept.append).between
    assert kept and all(result.between for result in kept)


class Stepped(Toy):
    """Each output is quantized to steps."""

    def step(self, name: str) -> float:
        return 0.2

    def ending_at(self, name: str) -> Stepped:
        return Stepped(self.operands, self.computes, name)


def test_what_only_rounds_proves_no_fault_of_others() -> None:
    """Thirty suspects of one fault that each round a little are less than one operator that is wrong."""
    powers = {"n9": 0.02, "n40": 0.9}

    def gives(name: str) -> Any:
        noise = [power if int(name[1:]) >= int(node[1:]) else 0.0 for node, power in powers.items()]
        return 1 + numpy.sqrt(numpy.array([*noise, 0.0, 0.0]))

    suspects = {f"n{place}": ["bias"] for place in range(9, 39)}
    first = first_in(Stepped(chain(64)), gives, 30.0, whole=6.0, suspects=suspects)
    assert (first.node, first.rounds) == ("n40", False)


def test_what_reads_a_ruined_value_is_not_the_cause() -> None:
    """Two values that are lost make any quotient of them."""
    model = Toy({"cast": [], "sum": ["cast"], "div": ["cast", "sum"]}, {"div": lambda x, y: x / y})
    chip = {"cast": 0.0, "sum": 0.0, "div": -0.2}
    assert first_in(model, lambda name: numpy.full(4, chip[name]), 30.0).node == "cast"


def test_what_reads_a_value_whose_half_is_lost_is_not_the_cause() -> None:
    """Another program loses the other half, and what reads it then seems to err by itself."""
    model = Toy({"norm": [], "product": ["norm"]}, {"product": lambda x: x * 2})
    chip = {"norm": numpy.array([0.0, 0.0, 1.0, 1.0]), "product": numpy.full(4, -0.2)}
    assert first_in(model, chip.__getitem__, 30.0).node == "norm"


CRASH, LATE = Failure("crash", "was ended by SIGSEGV"), Failure("timeout", "no result after 30 s")


def left_of(folder: Path, failure: Failure) -> DivergenceResult | None:
    reply = remains_of(None, failure, folder)
    return read(DivergenceResult, reply) if reply else None


def test_what_a_search_knows_is_kept_for_when_it_is_ended(tmp_path: Path) -> None:
    def gives(name: str) -> Any:
        if name == "n47":
            raise KeyboardInterrupt
        return wrong_from(40)(name)

    with pytest.raises(KeyboardInterrupt):
        found_in(Toy(chain(64)), gives, 30.0, whole=0.0, keep=partial(keep_partial, tmp_path, to_json))

    # A crash says more than a search that named nothing yet.
    assert left_of(tmp_path, CRASH) is None and left_of(tmp_path / "empty", LATE) is None
    known = left_of(tmp_path, LATE)
    assert known and known.between == ("n31", "n63") and known.cuts["n31"] > 100


@pytest.mark.parametrize(
    ("expected", "error", "faint"),
    [(1e-8, 1e-7, True), (3e-5, 1e-7, True), (3e-5, 3e-5, False), (1.0, 1e-7, False), (0.0, 1e-7, False)],
)
def test_values_are_too_small_where_the_error_is_a_few_of_the_smallest_steps(
    expected: float, error: float, faint: bool
) -> None:
    model = Toy({"a": [], "b": ["a"]}, {"a": lambda: numpy.full(4, expected)})
    result = found_in(model, lambda name: numpy.full(4, expected + error), 300)
    assert result.first and (result.first.faint is not None) is faint


def alone(*names: str) -> dict[str, list[str]]:
    """Each suspected of a fault that no other one has."""
    return {name: [f"fault-of-{name}"] for name in names}


def test_a_suspect_that_adds_most_of_the_error_is_named_by_programs_that_end_there() -> None:
    cut = list[str]()

    def gives(name: str) -> Any:
        cut.append(name)
        return wrong_from(40)(name)

    result = found_in(Toy(chain(64)), gives, 30.0, whole=0.0, suspects=alone("n9", "n40", "n50"))
    assert result.first and (result.first.node, result.first.share, result.between) == ("n40", 1.0, ())
    assert {*cut} == {"n8", "n9", "n39", "n40"}


def test_a_suspect_is_kept_before_its_operands_are_known(tmp_path: Path) -> None:
    def gives(name: str) -> Any:
        if name == "n39":
            raise KeyboardInterrupt
        return wrong_from(40)(name)

    keep = partial(keep_partial, tmp_path, to_json)
    with pytest.raises(KeyboardInterrupt):
        found_in(Toy(chain(64)), gives, 30.0, whole=0.0, suspects=alone("n40"), keep=keep)
    known = left_of(tmp_path, CRASH)
    assert known and known.first and (known.first.node, known.first.operands) == ("n40", {"n39": None})


@pytest.mark.parametrize(
    ("sqnr_db", "between", "fix"),
    [(60.0, (), "quantize --where"), (3.0, (), "on the CPU"), (3.0, ("relu", "add"), "tried")],
)
def test_every_end_of_the_search_names_what_to_do_next(
    sqnr_db: float, between: tuple[str, ...], fix: str
) -> None:
    result = DivergenceResult("the quantized model on the CPU", 30.0, sqnr_db, None, {}, {}, between)
    assert fix in fix_of(result, lambda *words: " ".join(words), "what was tried")


def test_a_loss_is_what_an_operator_adds_to_the_noise_of_what_it_reads() -> None:
    decibels = {"n0": 40.0, "n1": 20.0, "n2": 20.0, "n3": 30.0}
    losses = losses_of(Toy(chain(4)), decibels.get)
    assert [(loss.node, loss.before_db, loss.after_db) for loss in losses] == [
        ("n1", 40.0, 20.0),
        ("n0", EQUAL_DB, 40.0),
    ]
