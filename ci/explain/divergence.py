"""Find the operator whose output on the emulator is not the model's, describe it, and write a Python script
of that operator and its inputs, which needs nothing of ours (`--write`)."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ci.explain.graph import FLOAT_MODEL, Arrays, Graph, Trial
from ci.explain.losses import FOREVER
from ci.models.inputs import Array
from ci.models.model_lines import OperatorAt
from ci.operators import Traits
from ci.suite.accuracy import CLEARLY_DB, Pair, Unusable, describe_figures, least_sqnr_db
from ci.work import Facts, Failure, irrelevant
from provisioning.base.commands import capture
from provisioning.base.files import replace_text
from provisioning.base.rendering import plural
from provisioning.base.units import EXACT_DB, bound_in_decibels, format_decibels
from provisioning.known_faults import SuspectedFault

RUINED_DB = 1.0
"""A value with a lower SQNR is ruined: zeros in its place have 0 dB."""
LEAST_HALF = 2.0**-14
"""It is the smallest number that fp16 holds with all its digits."""
FEW_STEPS = 16 * 2.0**-24
"""Below LEAST_HALF, fp16 may err by so much: it is a few of its smallest steps."""
HALF_ROUNDS, HALF_STEP = 2.0**-11, 2.0**-25
"""fp16 rounds a value by at most this share of it, and the smallest values by at most this step."""
STANDS_OUT = 1 / 3
"""An operator that adds a smaller share of the whole program's error is one of many that round."""
MOST_SHOWN = 2**25
"""One program returns at most so many values, over all samples."""
ROUNDS = 1.5
"""Two right programs differ by at most so many steps of a quantizer, or of fp16, with the rounding of
floats."""
EVERY = "all operators"
"""It stands in place of a node for the program that shows all operators."""
Worst = tuple[str, float]
"""It is a node, and what the node adds to the whole program's error."""


class Cuts:
    def __init__(self, graph: Graph, trial: Trial, program_db: float | None = None) -> None:
        """`program_db` is the SQNR of the whole program, if that is known."""
        self.graph, self.trial = graph, trial
        self.sqnr: dict[str, float] = {} if program_db is None else {"": program_db}
        """It maps the node at which a program ends to the SQNR; the whole program has the empty name."""
        self.failed: dict[str, str] = {}
        """It says, by node, why a program has no SQNR."""
        self.chips: dict[str, Sequence[Array]] = {}
        """It has the chip's values at a node, for each sample."""
        self.faint: dict[str, float] = {}
        """It has the largest value of a node whose values are all so small that fp16 errs only by a few of
        its smallest steps."""
        self.rounds: set[str] = set()
        """At these nodes the chip is right except for a step of the quantizer, or of fp16."""
        self.worst: dict[str, int] = {}
        """It has, by node, the sample with the least SQNR."""
        self.errors: dict[tuple[tuple[str, ...], tuple[str, ...]], float] = {}

    @property
    def program_db(self) -> float:
        return self.sqnr_of("")

    def sqnr_of(self, name: str) -> float:
        """Return the SQNR of the program that ends at a node; NaN if it does not compile or run."""
        if name not in self.sqnr and name not in self.failed:
            graph = self.graph.ending_at(name) if name else self.graph
            try:
                self._measure(name, graph.exact, self.trial(graph, graph.exact))
            except Exception as error:
                if not name:
                    raise
                self.failed[name] = _first_line(error)
        return self.sqnr.get(name, math.nan)

    def _measure(self, name: str, exact: Sequence[Sequence[Array]], chip: Sequence[Sequence[Array]]) -> None:
        by_sample = [_pairs(*rows) for rows in zip(exact, chip, strict=True)]
        pairs = [pair for rows in by_sample for pair in rows]
        self.sqnr[name] = _sqnr_db(pairs)
        self.worst[name] = min(range(len(by_sample)), key=lambda number: _sqnr_db(by_sample[number]))
        self.chips[name] = [rows[0] for rows in chip]
        largest = max(_largest(pair.expected) for pair in pairs)
        if 0 < largest < LEAST_HALF and _within(FEW_STEPS, pairs):
            self.faint[name] = largest
        if name and self._only_rounds(name, pairs):
            self.rounds.add(name)

    def _only_rounds(self, name: str, pairs: Sequence[Pair]) -> bool:
        if step := self.graph.step(name):
            return _within(ROUNDS * step, pairs)
        of_half = self.graph.reference == FLOAT_MODEL and name not in self.faint
        return of_half and all(map(_rounds_to_half, pairs))

    @property
    def _is_large(self) -> bool:
        """Whether all values at once would take too much memory."""
        sizes = sum(node.size for node in self.graph.operators.values())
        return sizes * len(self.graph.samples) > MOST_SHOWN

    @cached_property
    def shows_all(self) -> bool:
        """Whether one program shows all nodes and errs as the whole one does: with more outputs the compiler
        fuses fewer operators."""
        names = [*self.graph.operators]
        if self._is_large:
            return False
        try:
            if (graph := self.graph.showing(names)) is None:
                return False
            exact, chip = graph.exact, self.trial(graph, graph.exact)
        except Exception as error:
            self.failed[EVERY] = _first_line(error)
            return False
        own = len(exact[0]) - len(names)
        pairs = [pair for rows in zip(exact, chip, strict=True) for pair in _pairs(*rows)[:own]]
        if abs(_sqnr_db(pairs) - max(self.program_db, -EXACT_DB)) >= CLEARLY_DB:
            return False
        # Two programs round each in its own way.
        self.errors.clear()
        for place, name in enumerate(names, own):
            self._measure(name, [[row[place]] for row in exact], [[row[place]] for row in chip])
        return True

    def error(self, name: str) -> float | None:
        # The program that ends at the only end is the whole one, and takes longest.
        return self.power(self.program_db) if [*self.graph.ends] == [name] else self._error_at([name], ())

    def own(self, name: str) -> float:
        """Return the error that a node adds, without what its operands pass on: a power of a wrong value is
        wrong, too, but not at fault."""
        operands = self.graph.operands_of(name)
        figures = [self.sqnr_of(operand) for operand in operands]
        # So little of a ruined value is left that nothing can be said of what it passes on.
        if any(sqnr_db < RUINED_DB for sqnr_db in figures):
            passed_on = max(self.error(operand) or 0.0 for operand in operands)
            if passed_on >= STANDS_OUT * (self.error(name) or 0.0):
                return 0.0
        return self._error_at([name], operands) or 0.0

    def _error_at(self, names: Sequence[str], operands: Sequence[str]) -> float | None:
        """Return the error of the model's outputs if the chip is wrong only at these nodes, and only by what
        they add to the errors that these operands pass on: a small error may grow on its way to the outputs.
        It is None if a program that ends at one of the nodes gives no SQNR."""
        inputs = [operand for operand in operands if not math.isnan(self.sqnr_of(operand))]
        if any(math.isnan(self.sqnr_of(name)) for name in names):
            return None
        key = (tuple(names), tuple(inputs))
        if key not in self.errors:
            self.errors[key] = self.power(_sqnr_db(outputs_with_error(self.graph, names, inputs, self.chips)))
        return self.errors[key]

    def integer_source(self, name: str) -> Worst | None:
        """Return the source of the integers that an operator reads, and the error that it causes through all
        their readers. It is None unless the operator is right when it gets the chip's integers."""
        graph = self.graph
        integers = [row for row in graph.integers_of(name) if not math.isnan(self.sqnr_of(row))]
        if not integers:
            return None
        try:
            remainder = self._error_at([name], [*graph.operands_of(name), *integers]) or 0.0
        except MemoryError:
            raise
        except Exception:
            # The CPU does not compute with an index that is beyond all values.
            remainder = 0.0
        if remainder > STANDS_OUT * self.own(name):
            return None
        source = integers[0]
        while further := graph.integers_of(source):
            source = further[0]
        behind = [row for row in graph.behind_integers(source) if row in self.chips]
        operands = dict.fromkeys(operand for row in behind for operand in graph.operands_of(row))
        self.sqnr[source] = min(self.sqnr_of(row) for row in behind)
        return source, self._error_at(behind, [row for row in operands if row not in behind]) or 0.0

    def power(self, sqnr_db: float) -> float:
        """Return the noise of an SQNR, relative to the output's power. It is at most that of the whole
        program, whatever becomes of the value later."""
        return float(10 ** (-max(sqnr_db, self.program_db) / 10))


def outputs_with_error(
    graph: Graph, names: Sequence[str], operands: Sequence[str], chips: Arrays
) -> list[Pair]:
    """Return the model's outputs on the CPU without and with the errors that the chip has at nodes, less what
    the errors of the operands cause there. `chips` are the outputs of programs that end at a node."""
    import numpy

    wrong: dict[str, list[Array]] = {}
    for name in names:
        ending = graph.ending_at(name)
        outputs = ending.outputs({operand: chips[operand] for operand in operands})
        for (exact,), (passed_on,), chip in zip(ending.exact, outputs, chips[name], strict=True):
            floats = exact.dtype.kind == "f"
            values = exact + (chip - passed_on) if floats else numpy.where(chip == passed_on, exact, chip)
            wrong.setdefault(name, []).append(values)
    pairs = zip(graph.exact, graph.outputs(wrong), strict=True)
    return [pair for rows in pairs for pair in _pairs(*rows)]


def _pairs(exact: Sequence[Array], outputs: Sequence[Array]) -> list[Pair]:
    pairs = enumerate(zip(exact, outputs, strict=True))
    return [Pair(f"output {number}", *arrays) for number, arrays in pairs]


def _sqnr_db(pairs: Sequence[Pair]) -> float:
    """Return the least SQNR; the lowest figure if the chip alone gives values that are no numbers."""
    try:
        return max(least_sqnr_db(pairs), -EXACT_DB)
    except Unusable:
        return -EXACT_DB


def _within(most: float, pairs: Sequence[Pair]) -> bool:
    return all(_largest(pair.found - pair.expected) <= most for pair in pairs)


def _rounds_to_half(pair: Pair) -> bool:
    if pair.expected.dtype.kind != "f":
        return False
    apart, size = abs(pair.found - pair.expected), abs(pair.expected)
    return bool((apart <= ROUNDS * (HALF_ROUNDS * size + HALF_STEP)).all())


def _largest(values: Any) -> float:
    return float(abs(values).max(initial=0))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


@dataclass(frozen=True, slots=True)
class DivergenceLimits:
    least: float
    """The program matches from this SQNR on."""
    seconds: float = field(default=FOREVER, metadata=irrelevant("a time limit: what ends early is not kept"))
    program_db: float | None = field(default=None, metadata=irrelevant("without it the same is measured"))
    """It is the SQNR of the whole program, if that is known."""


@dataclass(frozen=True, slots=True)
class DivergentOperator(OperatorAt):
    traits: Mapping[str, Traits]
    """They tell, by node, whether a known fault concerns it."""
    node: str
    sqnr_db: float
    sample: int
    """It is the number of the sample with the least SQNR."""
    faint: float | None
    """It is the largest value, if all are too small for fp16; else None."""
    rounds: bool
    """Whether it is right except for a step of the quantizer."""
    integers: bool
    """Whether it gives integers; its figures are then those of the operators that read them."""
    share: float
    """It is the operator's share of the whole program's error."""
    operands: Mapping[str, float | None]
    """It maps each operand to its SQNR; None if no program that ends there runs."""
    alike: int
    """So many other places are taken to have its fault."""
    known: tuple[SuspectedFault, ...] = ()

    @property
    def stands_out(self) -> bool:
        """Whether it is more than one of many that round."""
        return self.share >= STANDS_OUT or bool(self.alike)


@dataclass(frozen=True, slots=True)
class DivergenceResult:
    reference: str
    """The program is compared with this."""
    least: float
    """The program matches from this SQNR on."""
    sqnr_db: float
    first: DivergentOperator | None
    cuts: Mapping[str, float]
    """It maps the node at which a program ends to the SQNR."""
    failed: Mapping[str, str]
    """It maps the node at which a program ends to the reason why there is no SQNR."""
    between: tuple[str, ...]
    """The search was between these two nodes when its time was over."""


def _operator(cuts: Cuts, name: str, adds: float, alike: int) -> DivergentOperator:
    graph = cuts.graph
    return DivergentOperator(
        **asdict(graph.operator_at(name)),
        traits=graph.traits(name),
        node=name,
        sqnr_db=cuts.sqnr_of(name),
        sample=cuts.worst.get(name, 0),
        faint=cuts.faint.get(name),
        rounds=name in cuts.rounds,
        integers=name not in graph.operators,
        share=round(adds / cuts.power(cuts.program_db), 2),
        operands={row: cuts.sqnr.get(row) for row in graph.operands_of(name)},
        alike=alike,
    )


PARTIAL = "partial.json"
"""The file keeps what a search knows before each program, in case its process is ended during one."""


def keep_partial(
    folder: Path, reply_of: Callable[[DivergenceResult], Facts], result: DivergenceResult
) -> None:
    document = {"named": result.first is not None, "reply": reply_of(result)}
    replace_text(folder / PARTIAL, json.dumps(document))


def remains_of(program: object, failure: Failure, folder: Path) -> dict[str, Any] | None:
    """Return the reply of a search whose process ended before it replied. It is None if no operator was named
    yet, because the failure of the process then says more; but if time ended it, the search goes on the next
    time."""
    try:
        document = json.loads((folder / PARTIAL).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    reply: dict[str, Any] = document["reply"]
    return reply if document["named"] or failure.kind == "timeout" else None


NONE_ALONE = "no single operator causes it: many add a little, or only integers differ"
MANY_ROUND = "no operator stands out: each adds a little rounding error"


def place_of(operator: OperatorAt, node: str) -> str:
    return operator.place if operator.source else f"{operator.operator} ({node})"


def verdict_of(result: DivergenceResult) -> str:
    """Name the operator at fault, or say that none stands out, and how far a search came that ran out of
    time."""
    first, late = result.first, ""
    if result.between:
        low, high = result.between
        late = f"the search ended before the operators between {low or 'the inputs'} and {high} were searched"
    if first is None:
        return late or NONE_ALONE
    place, share = place_of(first, first.node), f"{first.share:.0%} of the error"
    faint = _why_faint(first) if result.reference == FLOAT_MODEL else ""
    if not first.stands_out:
        words = f"{MANY_ROUND}: at most {share} comes from {place}"
        return late or "; ".join(filter(None, [words, faint]))
    if first.rounds:
        # Others may be wrong where not all were searched.
        words = "" if late else "no operator is wrong: "
        words += f"rounding {place} alone ({format_decibels(first.sqnr_db)}) gives {share}"
        return "; ".join(filter(None, [words, late]))
    operands = ", ".join(
        f"{name} not measured" if value is None else f"{name} {format_decibels(value)}"
        for name, value in first.operands.items()
    )
    figure = format_decibels(first.sqnr_db) + (" where its integers are read" if first.integers else "")
    alike = f", and {plural(first.alike, 'other place')} can have its fault" if first.alike else ""
    is_cause = "suspected" if None in first.operands.values() else "the cause is"
    words = f"{is_cause} {place}: {figure} against {result.reference}"
    words += f", and {operands or 'exact inputs'} before it; it alone gives {share}{alike}"
    return "; ".join(filter(None, [words, faint, late]))


def _why_faint(first: DivergentOperator) -> str:
    """Say why fp16 cannot hold the operator's values; empty if it can."""
    if not first.faint:
        return ""
    most = f"its values are at most {first.faint:.1g}"
    return f"{most}, and below {LEAST_HALF:.1g} fp16 has few digits: scale them"


def text_lines(result: DivergenceResult) -> Iterator[str]:
    sqnr = describe_figures({"sqnr_db": result.sqnr_db})
    yield f"the whole program: {sqnr} against {result.reference}"
    if result.sqnr_db >= result.least:
        yield f"it matches: at least {bound_in_decibels(result.least)}"
        return
    yield verdict_of(result)
    if first := result.first:
        yield f"  node {first.node}" + (f" of {first.module}" if first.module[:1] not in ("", "(") else "")
        for suspect in first.known:
            yield f"  suspected: {suspect.message}"
    yield f"  {plural(len(result.cuts), 'operator')} measured"
    for name, error in result.failed.items():
        verb = "shows" if name == EVERY else "ends at"
        yield f"  the program that {verb} {name} does not compile or run: {error}"


def fix_of(result: DivergenceResult, command: Callable[..., str], advice: str) -> str:
    """Say what to type next. `command` makes a command about the same model from a verb and flags; it is
    empty for a suite's program. `advice` is what was tried if an operator differs."""
    if result.sqnr_db >= result.least:
        where = command("quantize", "--where") if result.reference != FLOAT_MODEL else ""
        names = f"{where} names the operators where quantizing loses"
        return names if where else "nothing: both are the same"
    if result.first is None and not result.between:
        return "let the model return the floats, and compute the integers on the CPU"
    return advice


DIFFERS_DB = 30.0
"""A lower SQNR is a difference, unless the user or a threshold names another one."""
SMALL = 1 / 16
"""A smaller share of the whole program's error is not searched for."""
MOST_OF_IT = 1 / 2
"""No other operator adds more than one that adds this share of the whole program's error."""
MOST_STEPS = 60
MOST_AT_ONCE = 64
"""One program that shows at most so many operators takes less time than two that each end at a suspect."""
MOST_SUSPECTS = 6
"""At most so many suspects are measured: each takes a program or two."""
SHOWN_SECONDS = 30.0
"""The search has at least so many seconds left once the program that shows all operators is known."""

ALL = ("", "the outputs")
"""The whole program lies between these two."""

Suspects = Mapping[str, Collection[str]]
"""It maps a node to the known faults that it can have, the likeliest node first."""
NO_SUSPECTS: Suspects = MappingProxyType({})


class Divergence:
    """Find the operator whose output is farthest from what its operands explain.

    In a large model, suspected operators are measured first, with programs that end there. If the fault of
    one may be at other places, too, it is taken to add as much at each of them, because programs that end
    later take longer. Then one program that returns the output of every operator is tried. It changes what
    the compiler fuses, and may hide the fault: then each operator is measured at the end of its own program.
    The two kinds of figures are never mixed, because two programs round each in its own way, and the
    difference looks like an error."""

    def __init__(
        self,
        graph: Graph,
        trial: Trial,
        limits: DivergenceLimits,
        keep: Callable[[DivergenceResult], None] = lambda result: None,
        suspects: Suspects = NO_SUSPECTS,
    ) -> None:
        """`keep` is called before each program with the result so far, as if the time were over."""
        self.graph, self.least, self.keep, self.suspects = graph, limits.least, keep, suspects
        self.cuts, self.over = Cuts(graph, trial, limits.program_db), time.monotonic() + limits.seconds
        self.between: Sequence[str] = ()

    def search(self) -> DivergenceResult:
        """Return the whole program's SQNR, and the operator at fault."""
        cuts, graph = self.cuts, self.graph
        if cuts.program_db >= self.least:
            return self._result(None)
        self.keep(self._result(None, ALL))
        has_all = len(graph.operators) <= MOST_AT_ONCE and cuts.shows_all
        suspect = None if has_all else self._worst_suspect()
        if suspect and self._is_most(suspect):
            return self._result(suspect, alike=len(self._alike(suspect[0])))
        if has_all or (time.monotonic() < self.over and cuts.shows_all):
            # What is left is computed on the CPU.
            self.over = max(self.over, time.monotonic() + SHOWN_SECONDS)

        def stops(low: str, high: str, best: Worst | None) -> bool:
            late = time.monotonic() > self.over
            self.between = (low, high) if late else ()
            self.keep(self._result(best or suspect, (low, high)))
            return late

        best = _worst_drop(cuts, stops)
        if best and best[0] not in cuts.rounds and not self.between:
            # Nothing is known yet of the integers that it reads.
            self.keep(self._result(best, ("", best[0])))
            best = cuts.integer_source(best[0]) or best
        return self._result(best or suspect, self.between)

    def _worst_suspect(self) -> Worst | None:
        """Return the worst of the suspects that can be measured in half of the time."""
        best: Worst | None = None
        half = time.monotonic() + (self.over - time.monotonic()) / 2
        for name in islice(self.suspects, MOST_SUSPECTS):
            if time.monotonic() > half:
                break
            if best and name in self._alike(best[0]) and self._is_most(best):
                continue
            # Its operands are not known yet, which may take as long again.
            self.keep(self._result(_worse(best, (name, self.cuts.error(name) or 0.0)), ALL))
            best = _worse(best, (name, self.cuts.own(name)))
            self.keep(self._result(best, ALL))
            if best[1] >= MOST_OF_IT * self.cuts.power(self.cuts.program_db):
                break
        return best

    def _alike(self, name: str) -> list[str]:
        """Return the other suspects that can have a fault of this one; empty if this one only rounds."""
        faults = set[str]() if name in self.cuts.rounds else {*self.suspects.get(name, ())}
        return [node for node, ids in self.suspects.items() if node != name and faults & {*ids}]

    def _is_most(self, worst: Worst) -> bool:
        """Whether no other operator adds more, if each place of its fault adds as much."""
        name, adds = worst
        return adds * (1 + len(self._alike(name))) >= MOST_OF_IT * self.cuts.power(self.cuts.program_db)

    def _result(self, best: Worst | None, between: Sequence[str] = (), alike: int = 0) -> DivergenceResult:
        cuts = self.cuts
        return DivergenceResult(
            reference=self.graph.reference,
            least=self.least,
            sqnr_db=cuts.program_db,
            first=_operator(cuts, *best, alike) if best else None,
            cuts={name: value for name, value in cuts.sqnr.items() if name},
            failed=dict(cuts.failed),
            between=tuple(between),
        )


def _worse(one: Worst | None, other: Worst) -> Worst:
    return one if one and one[1] >= other[1] else other


def _worst_drop(cuts: Cuts, stops: Callable[[str, str, Worst | None], bool]) -> Worst | None:
    """Return the operator that adds most of the whole program's error, and what it adds; if several each add
    all of it, the first. `stops` gets an interval and the worst operator so far, which is the result if it
    ends the search.

    Neighbours in the list of nodes need not be each other's operands, so a step in the list leads to the
    operands, and from a bad operand back."""
    graph, names = cuts.graph, [*cuts.graph.operators]
    places = {name: place for place, name in enumerate(names)}

    def at(place: int) -> float:
        return (cuts.error(names[place]) or 0.0) if place >= 0 else 0.0

    last = max((places[name] for name in graph.ends if name in places), key=at, default=-1)
    if not (total := at(last)):
        return None
    best: tuple[int, float] | None = None
    intervals, steps = set[tuple[int, int]](), [(total, -1, last)]
    while steps and len(intervals) < MOST_STEPS:
        rise, low, high = steps.pop(steps.index(max(steps)))
        worst = None if best is None else (names[best[0]], best[1])
        most = best[1] if best else 0.0
        # What comes after an operator that ruins all may add as much to what is ruined already.
        enough = most if most < total else math.nextafter(most, 0)
        if worst and rise <= max(enough, total * SMALL):
            break
        if stops(names[low] if low >= 0 else "", names[high], worst):
            break
        if (low, high) in intervals:
            continue
        intervals.add((low, high))
        if high - low > 1:
            middle = (low + high) // 2
            value = cuts.error(names[middle])
            # Where a program has no figure, the step is behind it.
            value = at(low) if value is None else value
            steps += [(value - at(low), low, middle), (at(high) - value, middle, high)]
            continue
        operands = [places[name] for name in graph.operands_of(names[high])]
        steps += [(at(operand), -1, operand) for operand in operands]
        adds = cuts.own(names[high])
        if best is None or (adds, -high) > (best[1], -best[0]):
            best = high, adds
    return None if best is None else (names[best[0]], best[1])


MOST_BEFORE = 2
"""A script goes back at most so many steps: the compiler may fuse an operator with those before it."""
STILL = "still there"
VERDICT = re.compile(rf"^(?:{STILL}|gone): .*", re.MULTILINE)
EXIT_CODES = "Exit code: 1 the fault is still there, 0 it is gone."
SCRIPT_HEAD = """\
import base64
import io
import sys
from math import inf, log10, nan

import numpy as np
"""
ARRAYS = """

def arrays(names, text):
    return dict(zip(names, np.load(io.BytesIO(base64.b64decode(text))).values()))


"""
"""A script has this function behind its imports."""
SCRIPT_JUDGE = """

def sqnr_db(exact, found):
    signal, noise = (exact**2).sum(), ((found - exact) ** 2).sum()
    return 10 * log10(max(1e-9, signal / max(1e-15, noise if noise == noise else inf)))


pairs = [(np.asarray(a, "float64"), np.asarray(b, "float64")) for a, b in zip(expected, computed)]
worst = min(sqnr_db(exact, found) for exact, found in pairs)
print(f"{'still there' if worst < LEAST else 'gone'}: {worst:.1f} dB, expected {LEAST:g} dB", flush=True)
sys.exit(worst < LEAST)
"""


@dataclass(frozen=True, slots=True)
class ScriptRequest:
    about: str
    """It names the operator, and says what the script needs."""
    operator: str
    sample: int
    least: float

    @classmethod
    def of(cls, operator: DivergentOperator, program: str, least: float, needs: str) -> ScriptRequest:
        about = f"{operator.operator} ({operator.node}) of {program}.\n\nIt needs {needs}.\n{EXIT_CODES}"
        return cls(about.replace("\\", "/").replace('"', "'"), operator.node, operator.sample, least)


@dataclass(frozen=True, slots=True)
class OperatorScript:
    text: str
    verdict: str
    """The script prints this when it runs alone."""


def arrays_source(arrays: Mapping[str, Array]) -> str:
    """Return the expression that gives these arrays in a script."""
    import numpy

    content = io.BytesIO()
    # The copy has no gaps, as a model's own inputs have none.
    numpy.savez_compressed(content, *[array.copy() for array in arrays.values()])
    return f'arrays({[*arrays]}, """\n{base64.encodebytes(content.getvalue()).decode()}""")'


def proved_script(request: ScriptRequest, source_of: Callable[[int], str]) -> OperatorScript:
    """Write the script of the operator alone, or with the fewest operators before it that show the fault.
    `source_of` returns source that begins with imports, and binds `expected` and `computed` to what the CPU
    and the chip give."""
    for before in (*range(MOST_BEFORE + 1), 0):
        body = f"{SCRIPT_HEAD}{source_of(before)}\nLEAST = {request.least:g}\n{SCRIPT_JUDGE}"
        text = f'"""{request.about}"""\n\n{body}'
        verdict = _printed_by(text)
        if verdict.startswith(STILL):
            break
    return OperatorScript(text, verdict or "it ends without a figure")


def _printed_by(text: str) -> str:
    with tempfile.TemporaryDirectory(prefix="qnn-ci-script-") as folder:
        script = Path(folder) / "fault.py"
        script.write_text(text, encoding="utf-8")
        process = capture([sys.executable, script], cwd=folder)
    if process.returncode == -signal.SIGKILL:
        # The machine is to blame, so nothing of it is kept as a result.
        raise MemoryError("the script was killed, as the system does when memory runs out")
    return next(iter(VERDICT.findall(process.stdout)), "")
