"""Measure a model on the emulator, cut off behind a node: how far its values are from the CPU's there, and
how much of the whole program's error that makes.

Two figures are told apart. The SQNR of a cut says how far the chip's values are from the CPU's at the node.
An error says what becomes of that difference at the outputs: the model is computed on the CPU with the chip's
values at the node. A large difference may vanish on the way, and a small one may grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ci.explain.graph import FLOAT_MODEL, Arrays, Graph, Trial
from ci.models.inputs import Array
from ci.suite.accuracy import Pair, Unusable, least_sqnr_db
from ci.suite.figures import CLEARLY_DB
from provisioning.base.units import EXACT_DB

RUINED_DB = 4.0
"""A value with a lower SQNR is ruined: zeros in its place have 0 dB, zeros in half of it 3 dB."""
LEAST_HALF = 2.0**-14
"""The smallest number that fp16 holds with all its digits."""
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
WHOLE = ""
"""It stands in place of a node for the whole program."""


@dataclass(frozen=True, slots=True)
class Worst:
    """A node, and what it adds to the whole program's error."""

    node: str
    adds: float


@dataclass(frozen=True, slots=True)
class Cut:
    """What the chip gives at a node."""

    values: Sequence[Array]
    """The chip's values, for each sample."""
    worst_sample: int
    """The number of the sample with the least SQNR."""
    faint: float | None
    """The largest value, if all are so small that fp16 errs only by a few of its smallest steps."""
    rounds: bool
    """Whether the chip is right except for a step of the quantizer, or of fp16."""


class Cuts:
    """It measures a program at its nodes, each of them once."""

    def __init__(self, graph: Graph, trial: Trial, program_db: float | None = None) -> None:
        """`program_db` is the SQNR of the whole program, if that is known."""
        self.graph, self.trial = graph, trial
        self.cuts: dict[str, Cut] = {}
        self.sqnr: dict[str, float] = {} if program_db is None else {WHOLE: program_db}
        """Maps the node at which a program ends to the SQNR."""
        self.failed: dict[str, str] = {}
        """It says, by node, why a program has no SQNR."""
        self._errors: dict[tuple[tuple[str, ...], tuple[str, ...]], float] = {}
        """Maps wrong nodes, and operands whose errors they pass on, to the error of the outputs."""

    @property
    def program_db(self) -> float:
        return self.sqnr_of(WHOLE)

    def sqnr_of(self, name: str) -> float:
        """Return the SQNR of the program that ends at a node; NaN if it does not compile or run."""
        if name not in self.sqnr and name not in self.failed:
            graph = self.graph if name == WHOLE else self.graph.ending_at(name)
            try:
                self._measure(name, graph.exact, self.trial(graph, graph.exact))
            except Exception as error:
                if name == WHOLE:
                    raise
                self.failed[name] = _first_line(error)
        return self.sqnr.get(name, math.nan)

    def is_measured(self, name: str) -> bool:
        """Whether a program that ends at the node has an SQNR. It is compiled if that is not known yet."""
        return not math.isnan(self.sqnr_of(name))

    def only_rounds(self, name: str) -> bool:
        """Whether the node was measured, and is right except for a step of rounding."""
        return name in self.cuts and self.cuts[name].rounds

    def _measure(self, name: str, exact: Sequence[Sequence[Array]], chip: Sequence[Sequence[Array]]) -> None:
        by_sample = [_pairs(*rows) for rows in zip(exact, chip, strict=True)]
        pairs = [pair for rows in by_sample for pair in rows]
        figures = [_sqnr_db(rows) for rows in by_sample]
        largest = max(_largest(pair.expected) for pair in pairs)
        is_faint = 0 < largest < LEAST_HALF and _within(FEW_STEPS, pairs)
        self.sqnr[name] = _sqnr_db(pairs)
        self.cuts[name] = Cut(
            values=[rows[0] for rows in chip],
            worst_sample=figures.index(min(figures)),
            faint=largest if is_faint else None,
            rounds=name != WHOLE and self._differs_by_steps(name, pairs, is_faint=is_faint),
        )

    def _differs_by_steps(self, name: str, pairs: Sequence[Pair], *, is_faint: bool) -> bool:
        if step := self.graph.step(name):
            return _within(ROUNDS * step, pairs)
        if self.graph.reference != FLOAT_MODEL or is_faint:
            return False
        return all(map(_rounds_to_half, pairs))

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
            graph = self.graph.showing(names)
            if graph is None:
                return False
            exact, chip = graph.exact, self.trial(graph, graph.exact)
        except Exception as error:
            self.failed[EVERY] = _first_line(error)
            return False
        own_outputs = len(exact[0]) - len(names)
        pairs = []
        for rows in zip(exact, chip, strict=True):
            pairs += _pairs(*rows)[:own_outputs]
        if abs(_sqnr_db(pairs) - max(self.program_db, -EXACT_DB)) >= CLEARLY_DB:
            return False
        # Two programs round each in its own way.
        self._errors.clear()
        for place, name in enumerate(names, own_outputs):
            self._measure(name, [[row[place]] for row in exact], [[row[place]] for row in chip])
        return True

    def error(self, name: str) -> float | None:
        """Return the error of the outputs if the chip is right behind this node; None if that is not
        known."""
        if [*self.graph.ends] == [name]:
            # The program that ends at the only end is the whole one, and takes longest.
            return self.power(self.program_db)
        return self._error_at([name], ())

    def own_error(self, name: str) -> float:
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
        inputs = list(filter(self.is_measured, operands))
        if not all(map(self.is_measured, names)):
            return None
        key = (tuple(names), tuple(inputs))
        if key not in self._errors:
            values = {name: self.cuts[name].values for name in (*names, *inputs)}
            pairs = outputs_with_error(self.graph, names, inputs, values)
            self._errors[key] = self.power(_sqnr_db(pairs))
        return self._errors[key]

    def integer_source(self, name: str) -> Worst | None:
        """Return the source of the integers that an operator reads, and the error that it causes through all
        their readers. It is None unless the operator is right when it gets the chip's integers."""
        graph = self.graph
        integers = list(filter(self.is_measured, graph.integers_of(name)))
        if not integers or self._error_with_integers(name, integers) > STANDS_OUT * self.own_error(name):
            return None
        source = integers[0]
        while further := graph.integers_of(source):
            source = further[0]
        readers = [row for row in graph.behind_integers(source) if row in self.cuts]
        operands: dict[str, None] = {}
        for reader in readers:
            operands |= dict.fromkeys(graph.operands_of(reader))
        self.sqnr[source] = min(self.sqnr_of(reader) for reader in readers)
        float_operands = [operand for operand in operands if operand not in readers]
        return Worst(source, self._error_at(readers, float_operands) or 0.0)

    def _error_with_integers(self, name: str, integers: Sequence[str]) -> float:
        """Return the error that an operator adds if it gets the chip's integers."""
        try:
            return self._error_at([name], [*self.graph.operands_of(name), *integers]) or 0.0
        except MemoryError:
            raise
        except Exception:
            # The CPU does not compute with an index that is beyond all values.
            return 0.0

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

    wrong: dict[str, list[Array]] = {name: [] for name in names}
    for name in names:
        ending = graph.ending_at(name)
        outputs = ending.outputs({operand: chips[operand] for operand in operands})
        for (exact,), (passed_on,), chip in zip(ending.exact, outputs, chips[name], strict=True):
            if exact.dtype.kind == "f":
                wrong[name].append(exact + (chip - passed_on))
            else:
                wrong[name].append(numpy.where(chip == passed_on, exact, chip))
    pairs = []
    for rows in zip(graph.exact, graph.outputs(wrong), strict=True):
        pairs += _pairs(*rows)
    return pairs


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


def _largest(values: Array) -> float:
    return float(abs(values).max(initial=0))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
