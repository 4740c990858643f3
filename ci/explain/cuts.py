"""What the chip gives at nodes of a model, by programs that end there, and what its error there alone does to
the outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

from ci.explain.graph import FLOAT_MODEL, Arrays, Graph, Trial
from ci.explain.losses import Loss
from ci.models.arrays import Array
from ci.suite.accuracy import CLEARLY_DB, Pair, Unusable, least_sqnr_db
from provisioning.base.units import EXACT_DB

RUINED_DB = 1.0
"""Zeros in place of values have 0 dB."""
LEAST_HALF = 2.0**-14
"""The smallest number that fp16 holds with all its digits."""
FEW_STEPS = 16 * 2.0**-24
"""Of fp16 below LEAST_HALF."""
HALF_ROUNDS, HALF_STEP = 2.0**-11, 2.0**-25
"""By how much fp16 rounds a value, as a share of it, and by how much the smallest."""
STANDS_OUT = 1 / 3
"""An operator that adds a smaller share of the whole program's error is one of many that round."""
MOST_SHOWN = 2**25
"""Values, of all samples, that one program returns."""
ROUNDS = 1.5
"""Steps of a quantizer, or of fp16, by which two right programs differ, with the rounding of floats."""
EVERY = "all operators"
"""In place of a node, the program that shows all."""
Worst = tuple[str, float]
"""A node, and what it adds to the whole program's error."""


class Cuts:
    def __init__(self, graph: Graph, trial: Trial, whole: float | None = None) -> None:
        """`whole` is the SQNR of the whole program, if that is known."""
        self.graph, self.trial = graph, trial
        self.sqnr: dict[str, float] = {} if whole is None else {"": whole}
        """By node at which a program ends; that of the whole one is without."""
        self.failed: dict[str, str] = {}
        """Why a program has no SQNR."""
        self.chips: dict[str, Sequence[Array]] = {}
        """What the chip gives at a node, for each sample."""
        self.faint: dict[str, float] = {}
        """The largest value, where all are too small for fp16 and it errs by a few of its smallest steps."""
        self.rounds: set[str] = set()
        """The nodes at which the chip is right but for a step of the quantizer, or of fp16."""
        self.errors: dict[tuple[tuple[str, ...], tuple[str, ...]], float] = {}

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
        pairs = [pair for rows in zip(expected, chip, strict=True) for pair in _pairs(*rows)]
        self.sqnr[name] = _sqnr_db(pairs)
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
        """Whether all nodes are known by one program, which errs as the whole one does: with more outputs the
        compiler joins fewer operators."""
        names = [*self.graph.operators]
        if self._is_large:
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
        # Two programs round each in its own way.
        self.errors.clear()
        for place, name in enumerate(names, own):
            self._measure(name, *([[row[place]] for row in rows] for rows in (expected, chip)))
        return True

    def error(self, name: str) -> float | None:
        # The program that ends at the only end is the whole one, and takes longest.
        return self.power(self.whole) if [*self.graph.ends] == [name] else self._passed([name], ())

    def own(self, name: str) -> float:
        """Without what operands pass on: a power of what is wrong is wrong, too, and not at fault."""
        operands = self.graph.operands_of(name)
        figures = [self.sqnr_of(operand) for operand in operands]
        # So little of a ruined value is left that nothing can be said of what it passes on.
        if any(sqnr_db < RUINED_DB for sqnr_db in figures):
            passed_on = max(self.error(operand) or 0.0 for operand in operands)
            if passed_on >= STANDS_OUT * (self.error(name) or 0.0):
                return 0.0
        return self._passed([name], operands) or 0.0

    def _passed(self, names: Sequence[str], operands: Sequence[str]) -> float | None:
        """The error of the model's outputs if the chip differs at these nodes alone, by what they add to what
        these operands pass on: a small one may grow on the way there."""
        known = [operand for operand in operands if not math.isnan(self.sqnr_of(operand))]
        if any(math.isnan(self.sqnr_of(name)) for name in names):
            return None
        key = (tuple(names), tuple(known))
        if key not in self.errors:
            self.errors[key] = self.power(_sqnr_db(with_error(self.graph, names, known, self.chips)))
        return self.errors[key]

    def of_integers(self, name: str) -> Worst | None:
        """The source of the integers that an operator reads, and what it adds by all that read them: where
        the operator is right with the integers that the chip has, which floats do not explain."""
        graph = self.graph
        integers = [row for row in graph.integers_of(name) if not math.isnan(self.sqnr_of(row))]
        if not integers:
            return None
        try:
            left = self._passed([name], [*graph.operands_of(name), *integers]) or 0.0
        except MemoryError:
            raise
        except Exception:
            # The CPU does not compute with an index that is beyond all values.
            left = 0.0
        if left > STANDS_OUT * self.own(name):
            return None
        source = integers[0]
        while further := graph.integers_of(source):
            source = further[0]
        behind = [row for row in graph.behind_integers(source) if row in self.chips]
        operands = dict.fromkeys(operand for row in behind for operand in graph.operands_of(row))
        self.sqnr[source] = min(self.sqnr_of(row) for row in behind)
        return source, self._passed(behind, [row for row in operands if row not in behind]) or 0.0

    def growth(self, name: str) -> Loss | None:
        """The operator that makes most of the chip's error at a node, where the CPU computes the rest. None
        where that cannot be computed: the node is known without it."""
        try:
            after = {} if self._is_large else self._after(name)
        except Exception:
            return None
        behind = [row for row in after if row != name]
        if not behind:
            return None

        def before(row: str) -> float:
            return min((after[operand] for operand in self.graph.operands_of(row)), default=after[row])

        most = max(behind, key=lambda row: before(row) - after[row])
        place = asdict(self.graph.operator_at(most))
        return Loss(**place, node=most, before_db=before(most), after_db=after[most])

    def _after(self, name: str) -> dict[str, float]:
        """The SQNR at each operator if the chip differs at this node alone; empty if the model shows none."""
        names = [*self.graph.operators]
        if (shown := self.graph.showing(names)) is None:
            return {}
        both = zip(shown.exact, shown.outputs({name: self.chips[name]}), strict=True)
        samples = [_pairs(*rows)[-len(names) :] for rows in both]
        return {row: _sqnr_db(pairs) for row, pairs in zip(names, zip(*samples, strict=True), strict=True)}

    def power(self, sqnr_db: float) -> float:
        """Relative to the output's. What is as bad as the whole is as bad as can be, whatever becomes of it
        later."""
        return float(10 ** (-max(sqnr_db, self.whole) / 10))


def with_error(graph: Graph, names: Sequence[str], operands: Sequence[str], chips: Arrays) -> list[Pair]:
    """The model's outputs on the CPU without and with the errors that the chip has at nodes, less what the
    error of operands is there. `chips` is what programs that end at a node give."""
    import numpy

    wrong: dict[str, list[Array]] = {}
    for name in names:
        ending = graph.ending_at(name)
        others = ending.outputs({operand: chips[operand] for operand in operands})
        for (wanted,), (passed_on,), seen in zip(ending.exact, others, chips[name], strict=True):
            floats = wanted.dtype.kind == "f"
            changed = wanted + (seen - passed_on) if floats else numpy.where(seen == passed_on, wanted, seen)
            wrong.setdefault(name, []).append(changed)
    both = zip(graph.exact, graph.outputs(wrong), strict=True)
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
