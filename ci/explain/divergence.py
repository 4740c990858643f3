"""The search for the operator whose output on the emulator is not the model's."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.explain.graph import FLOAT_MODEL, Arrays, Graph, Trial
from ci.explain.losses import FOREVER
from ci.models.arrays import Array
from ci.suite.accuracy import CLEARLY_DB, Pair, Unusable, in_words, least_sqnr_db
from provisioning.base.files import replace_text
from provisioning.base.rendering.text import plural
from provisioning.base.units import EXACT_DB, bound_in_decibels, in_decibels
from provisioning.known_faults import Fault

DIFFERS_DB = 30.0
"""A lower SQNR is a difference, unless the user or a threshold names another one."""
RUINED_DB = 1.0
"""Zeros in place of values have 0 dB."""
LEAST_HALF = 2.0**-14
"""The smallest number that fp16 holds with all its digits."""
FEW_STEPS = 16 * 2.0**-24
"""Of fp16 below LEAST_HALF."""
STANDS_OUT = 1 / 3
"""An operator that adds a smaller share of the whole program's error is one of many that round."""
SMALL = 1 / 16
"""A smaller share of the whole program's error is not searched for."""
MOST_STEPS = 60
MOST_SHOWN = 2**25
"""Values, of all samples, that one program returns."""
SHOWN_SECONDS = 30.0
"""For what is left once the program that shows all operators is known."""
EVERY = "all operators"
"""In place of a node, that program."""


class Divergence:
    """The operator whose output is farthest from what its operands explain.

    A program that returns what all operators compute is tried first. That changes what the compiler fuses,
    and may repair what is searched: then each operator is the last one of a program of its own. All or none,
    since two programs round each in its own way, and the difference looks like an error."""

    def __init__(
        self,
        graph: Graph,
        trial: Trial,
        least: float,
        seconds: float = FOREVER,
        whole: float | None = None,
        keep: Callable[[Mapping[str, Any]], None] = lambda known: None,
    ) -> None:
        """`least` is the SQNR from which the program matches; `whole` its own, if that is known. `keep` gets
        what is known before each program, as if the time were over."""
        self.graph, self.trial, self.least, self.keep = graph, trial, least, keep
        self.over = time.monotonic() + seconds
        self.sqnr: dict[str, float] = {} if whole is None else {"": whole}
        """By node at which a program ends; that of the whole one is without."""
        self.failed: dict[str, str] = {}
        """Why a program has no SQNR."""
        self.chips: dict[str, Sequence[Array]] = {}
        """What the chip gives at a node, for each sample."""
        self.faint: dict[str, float] = {}
        """The largest value, where all are too small for fp16 and it errs by a few of its smallest steps."""
        self.worst: dict[str, int] = {}
        """The sample with the least SQNR."""
        self.errors: dict[tuple[str, ...], float] = {}
        self.between: list[str] = []
        """The two nodes between which the search was when its time was over."""

    def search(self) -> dict[str, Any]:
        """The whole program's SQNR, and the operator at fault."""
        if self.sqnr_of("") >= self.least:
            return self._known(None, [])
        self.keep(self._known(None, ["", "the outputs"]))
        if time.monotonic() < self.over and self._shows_all():
            # What is left is computed on the CPU.
            self.over = max(self.over, time.monotonic() + SHOWN_SECONDS)
        graph = self.graph
        best = worst_drop(
            [*graph.operators], graph.ends, self._error, graph.operands_of, self._own, self._stops
        )
        return self._known(best, self.between)

    @property
    def whole(self) -> float:
        return self.sqnr_of("")

    def sqnr_of(self, name: str) -> float:
        """NaN if the program that ends there does not compile or run."""
        if name not in self.sqnr and name not in self.failed:
            graph = self.graph.ending_at(name) if name else self.graph
            try:
                self._measure(name, graph.exact, self.trial.outputs(graph, graph.exact))
            except Exception as error:
                if not name:
                    raise
                self.failed[name] = _first_line(error)
        return self.sqnr.get(name, math.nan)

    def _measure(
        self, name: str, expected: Sequence[Sequence[Array]], chip: Sequence[Sequence[Array]]
    ) -> None:
        by_sample = [_pairs(*rows) for rows in zip(expected, chip, strict=True)]
        pairs = [pair for rows in by_sample for pair in rows]
        self.sqnr[name] = _sqnr_db(pairs)
        self.worst[name] = min(range(len(by_sample)), key=lambda number: _sqnr_db(by_sample[number]))
        self.chips[name] = [rows[0] for rows in chip]
        largest = max(_largest(pair.expected) for pair in pairs)
        if 0 < largest < LEAST_HALF and all(
            _largest(pair.found - pair.expected) < FEW_STEPS for pair in pairs
        ):
            self.faint[name] = largest

    def _shows_all(self) -> bool:
        """Know all nodes by one program, if it errs as the whole one does: with more outputs the compiler
        joins fewer operators."""
        names, samples = [*self.graph.operators], len(self.graph.samples)
        if sum(node.size for node in self.graph.operators.values()) * samples > MOST_SHOWN:
            return False
        try:
            if (graph := self.graph.showing(names)) is None:
                return False
            expected, chip = graph.exact, self.trial.outputs(graph, graph.exact)
        except Exception as error:
            self.failed[EVERY] = _first_line(error)
            return False
        own = len(expected[0]) - len(names)
        pairs = [pair for rows in zip(expected, chip, strict=True) for pair in _pairs(*rows)[:own]]
        if abs(_sqnr_db(pairs) - max(self.whole, -EXACT_DB)) >= CLEARLY_DB:
            return False
        for place, name in enumerate(names, own):
            self._measure(name, *([[row[place]] for row in rows] for rows in (expected, chip)))
        return True

    def _error(self, name: str) -> float | None:
        # The program that ends at the only end is the whole one, and takes longest.
        return self._power(self.whole) if [*self.graph.ends] == [name] else self._passed(name, ())

    def _own(self, name: str) -> float:
        """Without what operands pass on: a power of what is wrong is wrong, too, and not at fault."""
        operands = self.graph.operands_of(name)
        figures = [self.sqnr_of(operand) for operand in operands]
        # So little of a ruined value is left that nothing can be said of what it passes on.
        if any(sqnr_db < RUINED_DB for sqnr_db in figures):
            passed_on = max(self._error(operand) or 0.0 for operand in operands)
            if passed_on >= STANDS_OUT * (self._error(name) or 0.0):
                return 0.0
        return self._passed(name, operands) or 0.0

    def _passed(self, name: str, operands: Sequence[str]) -> float | None:
        """The error of the model's outputs if the chip differs at this node alone, by what it adds to what
        these operands pass on: a small one may grow on the way there."""
        if math.isnan(self.sqnr_of(name)):
            return None
        known = [operand for operand in operands if not math.isnan(self.sqnr_of(operand))]
        names = (name, *known)
        if names not in self.errors:
            self.errors[names] = self._power(_sqnr_db(with_error(self.graph, name, known, self.chips)))
        return self.errors[names]

    def _power(self, sqnr_db: float) -> float:
        """Relative to the output's. What is as bad as the whole is as bad as can be, whatever becomes of it
        later."""
        return float(10 ** (-max(sqnr_db, self.whole) / 10))

    def _stops(self, low: str, high: str, best: tuple[str, float] | None) -> bool:
        late = time.monotonic() > self.over
        self.between = [low, high] if late else []
        self.keep(self._known(best, [low, high]))
        return late

    def _known(self, best: tuple[str, float] | None, between: Sequence[str]) -> dict[str, Any]:
        return {
            "reference": self.graph.reference,
            "least": self.least,
            "sqnr_db": self.whole,
            "first": self._row(*best) if best else None,
            "cuts": {name: value for name, value in self.sqnr.items() if name},
            "failed": dict(self.failed),
            "between": [*between],
        }

    def _row(self, name: str, adds: float) -> dict[str, Any]:
        return {
            **self.graph.described(name),
            "traits": self.graph.traits(name),
            "node": name,
            "sqnr_db": self.sqnr_of(name),
            "sample": self.worst.get(name, 0),
            "faint": self.faint.get(name),
            "share": round(adds / self._power(self.whole), 2),
            "operands": {row: self.sqnr.get(row) for row in self.graph.operands_of(name)},
        }


def worst_drop(
    names: Sequence[str],
    ends: Sequence[str],
    error: Callable[[str], float | None],
    operands_of: Callable[[str], Sequence[str]],
    own: Callable[[str], float],
    stops: Callable[[str, str, tuple[str, float] | None], bool] = lambda low, high, best: False,
) -> tuple[str, float] | None:
    """The operator that adds most of the whole program's error, and what it adds: of several that each add
    all of it, the first. Where `stops`, which gets the worst so far, ends the search of an interval, that.

    Of two neighbours in a list of nodes neither need be the other's operand, so a step in the list leads to
    the operands, and from a bad one back."""
    places = {name: place for place, name in enumerate(names)}

    def at(place: int) -> float:
        return (error(names[place]) or 0.0) if place >= 0 else 0.0

    last = max((places[name] for name in ends if name in places), key=at, default=-1)
    if not (total := at(last)):
        return None
    best: tuple[int, float] | None = None
    seen, steps = set[tuple[int, int]](), [(total, -1, last)]
    while steps and len(seen) < MOST_STEPS:
        rise, low, high = steps.pop(steps.index(max(steps)))
        known = None if best is None else (names[best[0]], best[1])
        most = best[1] if best else 0.0
        # What comes after an operator that ruins all may add as much to what is ruined already.
        enough = most if most < total else math.nextafter(most, 0)
        if known and rise <= max(enough, total * SMALL):
            break
        if stops(names[low] if low >= 0 else "", names[high], known):
            break
        if (low, high) in seen:
            continue
        seen.add((low, high))
        if high - low > 1:
            middle = (low + high) // 2
            value = error(names[middle])
            # Where a program has no figure, the step is behind it.
            value = at(low) if value is None else value
            steps += [(value - at(low), low, middle), (at(high) - value, middle, high)]
            continue
        operands = [places[name] for name in operands_of(names[high])]
        steps += [(at(operand), -1, operand) for operand in operands]
        adds = own(names[high])
        if best is None or (adds, -high) > (best[1], -best[0]):
            best = high, adds
    return None if best is None else (names[best[0]], best[1])


def with_error(graph: Graph, name: str, operands: Sequence[str], chips: Arrays) -> list[Pair]:
    """The model's outputs on the CPU without and with the error that the chip has at a node, less what the
    error of operands is there. `chips` is what programs that end at a node give."""
    import numpy

    ending = graph.ending_at(name)
    others = ending.outputs({operand: chips[operand] for operand in operands})
    wrong = []
    for (wanted,), (passed_on,), seen in zip(ending.exact, others, chips[name], strict=True):
        floats = wanted.dtype.kind == "f"
        wrong.append(wanted + (seen - passed_on) if floats else numpy.where(seen == passed_on, wanted, seen))
    both = zip(graph.exact, graph.outputs({name: wrong}), strict=True)
    return [pair for rows in both for pair in _pairs(*rows)]


def _pairs(expected: Sequence[Array], outputs: Sequence[Array]) -> list[Pair]:
    both = enumerate(zip(expected, outputs, strict=True))
    return [Pair(f"output {number}", *arrays) for number, arrays in both]


def _sqnr_db(pairs: Sequence[Pair]) -> float:
    """Of what the chip alone makes no number, none."""
    try:
        return max(least_sqnr_db(pairs), -EXACT_DB)
    except Unusable:
        return -EXACT_DB


def _largest(values: Any) -> float:
    return float(abs(values).max(initial=0))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


PARTIAL = "partial.json"
"""What a search knows before each program, for when it is ended during one."""


def keep_partial(folder: Path, result: Mapping[str, Any]) -> None:
    replace_text(folder / PARTIAL, json.dumps(result))


def partial_of(folder: Path) -> dict[str, Any] | None:
    try:
        known: dict[str, Any] = json.loads((folder / PARTIAL).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return known


def known_fault(fault: Fault, line: str = "") -> dict[str, str]:
    """As `known` of an operator has it; `line` is where it is suspected, if the operator does not say it."""
    at = f" at {line}" if line else ""
    return {"message": f"{fault.title} ({fault.id}){at}", "command": fault.fix, "fault": fault.id}


NONE_ALONE = "no single operator causes it: many add a little, or only integers differ"
MANY_ROUND = "no operator stands out: each adds a little rounding error"


def between_in_words(between: Sequence[str]) -> str:
    low, high = between
    return f"the operators between {low or 'the inputs'} and {high}"


def faint_in_words(result: Mapping[str, Any]) -> str:
    """Why fp16 cannot hold what the operator gives, if that is so."""
    faint = result["first"]["faint"] if result["reference"] == FLOAT_MODEL else None
    if not faint:
        return ""
    return f"its values are at most {faint:.1g}, and below {LEAST_HALF:.1g} fp16 has few digits: scale them"


def operands_in_words(first: Mapping[str, Any]) -> str:
    operands = first["operands"].items()
    return ", ".join(
        f"{name} not measured" if value is None else f"{name} {in_decibels(value)}"
        for name, value in operands
    )


def as_text(result: Mapping[str, Any]) -> Iterator[str]:
    whose, least, first = result["reference"], result["least"], result["first"]
    yield f"the whole program: {in_words(result)} against {whose}"
    if result["sqnr_db"] >= least:
        yield f"it matches: at least {bound_in_decibels(least)}"
    elif first is None and result["between"]:
        yield f"not found in time: {between_in_words(result['between'])}"
    elif first is None:
        yield NONE_ALONE
    else:
        yield from _of_operator(result, first)


def _of_operator(result: Mapping[str, Any], first: Mapping[str, Any]) -> Iterator[str]:
    where = f" in {first['module']}" if first["module"][:1] not in ("", "(") else ""
    where += f" at {first['source']} `{first['code']}`" if first["source"] else ""
    yield f"differs most: {first['operator']} ({first['node']}){where}"
    operands = operands_in_words(first) or "the inputs"
    yield f"  there: {in_decibels(first['sqnr_db'])}; at its operands: {operands}"
    if faint := faint_in_words(result):
        yield f"  {faint}"
    alone = f"; {MANY_ROUND}" if first["share"] < STANDS_OUT else ""
    yield f"  {first['share']:.0%} of the whole program's error is its own{alone}"
    for known in first.get("known", ()):
        yield f"  suspected: {known['message']}"
        if not known.get("fault"):
            yield f"    → {known['command']} shows what was measured"
    yield f"  {plural(len(result['cuts']), 'operator')} measured"
    if result["between"]:
        yield f"the time is up: {between_in_words(result['between'])} may add more"
    for name, error in result["failed"].items():
        which = "shows" if name == EVERY else "ends at"
        yield f"  the program that {which} {name} does not compile or run: {error}"


def fix_of(result: Mapping[str, Any], command: Callable[..., str], tried: str) -> str:
    """What to type next. `command` makes a command about the same model, of a verb and flags; it gives none
    for a suite's program. `tried` is what was tried where an operator differs."""
    if result["sqnr_db"] >= result["least"]:
        where = command("quantize", "--where") if result["reference"] != FLOAT_MODEL else ""
        names = f"{where} names the operators where quantizing loses"
        return names if where else "nothing: both are the same"
    if result["first"] is None and not result["between"]:
        return "let the model return the floats, and compute the integers on the CPU"
    return tried
