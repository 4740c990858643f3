"""The search for the operator whose output on the emulator is not the quantized model's."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ci.engine.workers.parent import WorkerDied
from ci.pipeline.accuracy import CLEARLY_DB, Pair, Unusable, in_words, least_sqnr_db
from ci.pipeline.operator_script import OperatorScript
from ci.pipeline.options import Choice, OneModel
from provisioning.base.errors import UsageError
from provisioning.base.files import replace_text
from provisioning.base.rendering.text import plural
from provisioning.base.units import EXACT_DB, in_decibels
from provisioning.known_faults import Fault

LEAST_DB = 30.0
"""A lower SQNR is a difference, unless the user or a threshold names another one."""

RUINED_DB = 1.0
"""Zeros in place of values have 0 dB."""
LEAST_HALF = 2.0**-14
"""The smallest number that fp16 holds with all its digits."""
FEW_STEPS = 16 * 2.0**-24
"""Of fp16 below LEAST_HALF."""
EVERY = "all operators"
"""In place of a node, the program that shows all."""
SHOWN_SECONDS = 30.0
"""For what is left once that program is known."""
FLOAT_MODEL = "the float model"
"""What is compared with where nothing is quantized."""

FOREVER = 1e9
"""Seconds; a request has no infinity."""

N = TypeVar("N")


class SearchesCuts(Protocol):
    """What is asked of a lane's module `divergence`."""

    def chosen_program(self, model: OneModel, choice: Choice, kept: tuple[str, ...]) -> Any:
        """MODEL's, or one of a suite; nodes that are `kept` are on the CPU."""

    def cuts_of(
        self,
        model: OneModel,
        program: Any,
        least: float,
        seconds: float = ...,
        whole: float | None = ...,
    ) -> dict[str, Any]:
        """The operator at which the program differs; `whole` is the SQNR of all of it, if that is known."""

    def script_of(
        self, model: OneModel, program: Any, operator: Mapping[str, Any], before: int
    ) -> OperatorScript:
        """What `cuts_of` found, alone or with so many operators `before` it."""


def only(programs: Sequence[N]) -> N:
    if len(programs) != 1:
        names = ", ".join(str(getattr(program, "name", "")) for program in programs[:5])
        raise UsageError(
            f"expected a MODEL or one program of a suite, found {len(programs)} ({names} …)",
            fix="name the program: --suite FILE -k CASE/RUN/SOC",
        )
    return programs[0]


class Cuts(Generic[N]):
    """SQNR of the program that ends at a node, on the emulator against the CPU."""

    def __init__(
        self,
        name: Callable[[N], str],
        pairs: Callable[[N | None], Sequence[Pair]],
        with_error: Callable[[N, Sequence[N], Mapping[str, Sequence[Any]]], Sequence[Pair]],
        whole: float | None = None,
        shown: Callable[[], tuple[Sequence[Pair], Mapping[str, Sequence[Pair]]]] | None = None,
    ) -> None:
        """`pairs` gives the outputs of both; without a node, those of the whole program, whose SQNR may be
        known. `with_error` gives the outputs on the CPU without and with the error that the chip has at a
        node: all of it, or what it adds to what these operands pass on; by what was found at each. `shown`
        gives the outputs of a program that returns what all nodes give, too: its own, and those by node. All
        or none, since two programs round each in its own way, and the difference looks like an error."""
        self.name, self.pairs, self.with_error, self.shown = name, pairs, with_error, shown
        self.found: dict[str, Sequence[Any]] = {}
        self.faint: dict[str, float] = {}
        """The largest value, where all are too small for fp16 and it errs by a few of its smallest steps."""
        self.errors: dict[tuple[str, ...], float] = {}
        self.known: dict[str, float] = {} if whole is None else {"": whole}
        self.worst: dict[str, int] = {}
        """The sample with the least SQNR."""
        self.failed: dict[str, str] = {}
        """Why a program has no SQNR."""

    def of(self, node: N | None) -> float | None:
        """None if that program does not compile or run."""
        name = "" if node is None else self.name(node)
        if name not in self.known and name not in self.failed:
            try:
                self._keep(name, self.pairs(node))
            except Exception as error:
                if node is None:
                    raise
                self.failed[name] = _first_line(error)
        return self.known.get(name)

    def _keep(self, name: str, pairs: Sequence[Pair]) -> None:
        self.known[name] = _sqnr_db(pairs)
        self.found[name] = [pair.found for pair in pairs]
        self.worst[name] = min(range(len(pairs)), key=lambda number: _sqnr_db(pairs[number : number + 1]))
        largest = max(_largest(pair.expected) for pair in pairs)
        if 0 < largest < LEAST_HALF and all(
            _largest(pair.found - pair.expected) < FEW_STEPS for pair in pairs
        ):
            self.faint[name] = largest

    def show(self, whole: float) -> bool:
        """Know all nodes by one program, if it errs as the whole one does: with more outputs the compiler
        joins fewer operators."""
        if not self.shown:
            return False
        try:
            own, by_node = self.shown()
        except Exception as error:
            self.failed[EVERY] = _first_line(error)
            return False
        if abs(_sqnr_db(own) - max(whole, -EXACT_DB)) >= CLEARLY_DB:
            return False
        for name, pairs in by_node.items():
            self._keep(name, pairs)
        return True

    def error(self, node: N, operands: Sequence[N], whole: float) -> float | None:
        """That of the model's outputs if the chip differs at this node alone: a small one may grow on the way
        there. Without what operands pass on: a power of what is wrong is wrong, too, and not at fault."""
        if self.of(node) is None:
            return None
        known = [operand for operand in operands if self.of(operand) is not None]
        names = (self.name(node), *map(self.name, known))
        if names not in self.errors:
            self.errors[names] = _error(_sqnr_db(self.with_error(node, known, self.found)), whole)
        return self.errors[names]

    def is_ruined(self, node: N) -> bool:
        """Whether so little of its value is left that nothing can be said of what it passes on."""
        sqnr_db = self.of(node)
        return sqnr_db is not None and sqnr_db < RUINED_DB

    def search(
        self,
        nodes: Callable[[], Sequence[N]],
        ends: Callable[[], Sequence[N]],
        operands_of: Callable[[N], Sequence[N]],
        described: Callable[[N], dict[str, Any]],
        least: float,
        seconds: float = FOREVER,
        keep: Callable[[Mapping[str, Any]], None] = lambda found: None,
    ) -> dict[str, Any]:
        """The whole program's SQNR, and the operator whose output is farthest from what its operands explain.

        `ends` are the operators that compute the model's outputs. Once the time is over, `between` has the
        two nodes between which it was looked for, and `first` the worst so far. `keep` gets what is known
        before each program, as if the time were over."""
        over = time.monotonic() + seconds
        whole = self.of(None)
        assert whole is not None

        def found(first: Mapping[str, Any] | None, between: Sequence[str]) -> dict[str, Any]:
            cuts = {name: value for name, value in self.known.items() if name}
            result = {"least": least, "sqnr_db": whole, "first": first, "cuts": cuts, "failed": self.failed}
            return {**result, "between": [*between]}

        def row(node: N, adds: float) -> dict[str, Any]:
            return {
                **described(node),
                "node": self.name(node),
                "sqnr_db": self.of(node),
                "sample": self.worst.get(self.name(node), 0),
                "faint": self.faint.get(self.name(node)),
                "share": round(adds / _error(whole, whole), 2),
                "operands": {self.name(operand): self.of(operand) for operand in operators_of(node)},
            }

        between = list[str]()

        def stops(low: N | None, high: N, best: tuple[N, float] | None) -> bool:
            names = ["" if low is None else self.name(low), self.name(high)]
            late = time.monotonic() > over
            between[:] = names if late else []
            keep(found(row(*best) if best else None, names))
            return late

        worst = None
        if whole < least:
            keep(found(None, ["", "the outputs"]))
            every, last = nodes(), [self.name(node) for node in ends()]
            names = {self.name(node) for node in every}
            if time.monotonic() < over and self.show(whole):
                # What is left is computed on the CPU.
                over = max(over, time.monotonic() + SHOWN_SECONDS)

            def operators_of(node: N) -> list[N]:
                return [operand for operand in operands_of(node) if self.name(operand) in names]

            def error(node: N) -> float | None:
                # The program that ends at the only end is the whole one, and takes longest.
                only = last == [self.name(node)]
                return _error(whole, whole) if only else self.error(node, (), whole)

            def own(node: N) -> float:
                operands = operators_of(node)
                if any(self.is_ruined(operand) for operand in operands):
                    passed_on = max(error(operand) or 0.0 for operand in operands)
                    if passed_on >= STANDS_OUT * (error(node) or 0.0):
                        return 0.0
                return self.error(node, operands, whole) or 0.0

            worst = worst_drop(every, ends(), error, operators_of, own, self.name, stops)
        return found(row(*worst) if worst else None, between)


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


def _error(sqnr_db: float, whole: float) -> float:
    """As a power, relative to the output's. What is as bad as the whole is as bad as can be, whatever becomes
    of it later."""
    return float(10 ** (-max(sqnr_db, whole) / 10))


STANDS_OUT = 1 / 3
"""An operator that adds a smaller share of the whole program's error is one of many that round."""
SMALL = 1 / 16
"""A smaller share of the whole program's error is not searched for."""
MOST_STEPS = 60


def worst_drop(
    nodes: Sequence[N],
    ends: Sequence[N],
    error: Callable[[N], float | None],
    operands_of: Callable[[N], Sequence[N]],
    own: Callable[[N], float],
    name: Callable[[N], str] = str,
    stops: Callable[[N | None, N, tuple[N, float] | None], bool] = lambda low, high, best: False,
) -> tuple[N, float] | None:
    """The operator that adds most of the whole program's error, and what it adds: of several that each add
    all of it, the first. Where `stops`, which gets the worst so far, ends the search of an interval, that.

    Of two neighbours in a list of nodes neither need be the other's operand, so a step in the list leads to
    the operands, and from a bad one back."""
    places = {name(node): place for place, node in enumerate(nodes)}

    def at(place: int) -> float:
        return (error(nodes[place]) or 0.0) if place >= 0 else 0.0

    last = max((places[name(node)] for node in ends if name(node) in places), key=at, default=-1)
    if not (total := at(last)):
        return None
    best: int | None = None
    most = 0.0
    seen, steps = set[tuple[int, int]](), [(total, -1, last)]
    while steps and len(seen) < MOST_STEPS:
        rise, low, high = steps.pop(steps.index(max(steps)))
        found = None if best is None else (nodes[best], most)
        # What comes after an operator that ruins all may add as much to what is ruined already.
        enough = most if most < total else math.nextafter(most, 0)
        if (found and rise <= max(enough, total * SMALL)) or stops(
            nodes[low] if low >= 0 else None, nodes[high], found
        ):
            break
        if (low, high) in seen:
            continue
        seen.add((low, high))
        if high - low > 1:
            middle = (low + high) // 2
            value = error(nodes[middle])
            # Where a program has no figure, the step is behind it.
            value = at(low) if value is None else value
            steps += [(value - at(low), low, middle), (at(high) - value, middle, high)]
            continue
        operands = [places[name(node)] for node in operands_of(nodes[high])]
        steps += [(at(operand), -1, operand) for operand in operands]
        adds = own(nodes[high])
        if best is None or adds > most or (adds == most and high < best):
            best, most = high, adds
    return None if best is None else (nodes[best], most)


PARTIAL = "partial.json"
"""What a search knows before each program, for when it is ended during one."""


def keep_partial(folder: Path, result: Mapping[str, Any]) -> None:
    replace_text(folder / PARTIAL, json.dumps(result))


def partial_of(folder: Path) -> dict[str, Any] | None:
    """What a search knew when it was ended, if it knew anything."""
    if not (folder / PARTIAL).is_file():
        return None
    known: dict[str, Any] = json.loads((folder / PARTIAL).read_text(encoding="utf-8"))
    return known


def ended_in_time(ask: Callable[[], dict[str, Any]], folder: Path) -> dict[str, Any]:
    """The search's result; where it was ended, what it knew then."""
    try:
        return ask()
    except WorkerDied as gone:
        known = partial_of(folder) if gone.kind == "timeout" else None
        if known is None:
            raise
        return known


def between_in_words(between: Sequence[str]) -> str:
    low, high = between
    return f"the operators between {low or 'the inputs'} and {high}"


def known_fault(fault: Fault, line: str = "") -> dict[str, str]:
    """As `known` of an operator has it; `line` is where it is suspected, if the operator does not say it."""
    at = f" at {line}" if line else ""
    return {"message": f"{fault.title} ({fault.id}){at}", "command": fault.fix, "fault": fault.id}


def fix_of(result: Mapping[str, Any], command: Callable[..., str], tried: str) -> str:
    """What to type next. `command` makes a command about the same model, of a verb and flags; it gives none
    for a suite's program. `tried` is what was tried where an operator differs."""
    if result["sqnr_db"] >= result["least"]:
        where = command("quantize", "--where") if result["reference"] != FLOAT_MODEL else ""
        return (
            f"{where} names the operators where quantizing loses" if where else "nothing: both are the same"
        )
    if result["first"] is None and not result["between"]:
        return "let the model return the floats, and compute the integers on the CPU"
    return tried


def faint_in_words(result: Mapping[str, Any]) -> str:
    """Why fp16 cannot hold what the operator gives, if that is so."""
    faint = result["first"]["faint"] if result["reference"] == FLOAT_MODEL else None
    return (
        f"its values are at most {faint:.1g}, and below {LEAST_HALF:.1g} fp16 has few digits: scale them"
        if faint
        else ""
    )


NONE_ALONE = "no single operator causes it: many add a little, or only integers differ"
MANY_ROUND = "no operator stands out: each adds a little rounding error"


def as_text(result: Mapping[str, Any]) -> Iterator[str]:
    whose, least = result["reference"], result["least"]
    yield f"the whole program: {in_words(result)} against {whose}"
    first = result["first"]
    if result["sqnr_db"] >= least:
        yield f"it matches: at least {least:g} dB"
    elif first is None and result["between"]:
        yield f"not found in time: {between_in_words(result['between'])}"
    elif first is None:
        yield NONE_ALONE
    else:
        where = f" in {first['module']}" if first["module"][:1] not in ("", "(") else ""
        where += f" at {first['source']} `{first['code']}`" if first["source"] else ""
        operands = ", ".join(
            f"{name} not measured" if value is None else f"{name} {in_decibels(value)}"
            for name, value in first["operands"].items()
        )
        operands = operands or "the inputs"
        yield f"differs most: {first['operator']} ({first['node']}){where}"
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
