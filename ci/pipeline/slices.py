"""Parts of an output that are lost although the output as a whole is near the expected one.

Slices along the last and along the channel dimension are looked at. An error that is small beside boxes in
pixels may be all of the scores beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from provisioning.base.units import decibels

LEAST_DB = 20.0
"""Outputs with a lower SQNR are wrong, even if the tolerance of a test lets them pass."""
FEW, MANY = 16, 1000
"""An output or part with fewer distinct values than FEW, where float has more than MANY, says next to
nothing: what counts of it is how it varies."""
LEAST_VALUES = 16
"""Slices with fewer are not looked at: chance makes one of them small."""
STILL = 0.01
"""A slice that varies by less, beside its size, is constant."""
APART = 4.0
"""Slices are of another kind if they vary this many times less than all others. Measured on each tensor of
trained networks, channels of one kind have every size between."""
SHARE = 1 / 16
"""A smaller share of the slices is no kind of its own, but channels that are nearly dead."""
ALIKE = 4.0
"""A slice whose variance is this many times less than the mean one is weak by itself."""
TINY = 1e-300
HARMLESS = 0.05
"""A smaller error of values that lie between 0 and 1 changes no decision: without anything to detect, all
scores are as small."""
CLEARLY_DB, BROKEN_DB = 10.0, 20.0
"""How far below its output a kind of slices is, if it is lost and the rest is not; and a slice that varies as
the others do, if it alone is computed wrongly."""


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Slices of an output, or all of it."""

    words: str
    sqnr_db: float | None
    """None if it is constant in float: not judged."""
    told: bool = True
    """False of a whole output of which the usual figures say all."""

    def __str__(self) -> str:
        return self.words if self.sqnr_db is None else f"{self.words}: {self.sqnr_db:.1f} dB SQNR"


def parts_of(title: str, wanted: Any, found: Any) -> Iterator[OutputPart]:
    """Of the inferences of one output, stacked: all of it, then what is lost in it, or constant."""
    # The squares of very large values stay finite.
    size = max(float(abs(wanted).max()), float(abs(found).max())) or 1.0
    compared = _Compared(title, wanted / size, found / size, HARMLESS / size, 1 / size)
    whole = compared.part(title, ..., 0)
    yield whole
    for axis in sorted({wanted.ndim - 1, 2} if wanted.ndim > 3 else {wanted.ndim - 1}):
        if axis and wanted.shape[axis] > 1 and wanted.size // wanted.shape[axis] >= LEAST_VALUES:
            yield from compared.along(axis, whole.sqnr_db or 0.0)


@dataclass(frozen=True)
class _Compared:
    title: str
    wanted: Any
    found: Any
    harmless: float
    unit: float
    """What 1 became."""

    def part(self, words: str, places: Any, axis: int) -> OutputPart:
        wanted, found = self.wanted[places], self.found[places]
        noise = float(((found - wanted) ** 2).sum())
        sqnr_db, told = decibels(float((wanted**2).sum()), noise), places is not ...
        distinct = _distinct(found, FEW)
        if distinct < FEW and (of_float := _distinct(wanted, wanted.size)) > MANY:
            others = tuple(index for index in range(wanted.ndim) if index != axis or not told)
            varies = float(((wanted - wanted.mean(others, keepdims=True)) ** 2).sum())
            sqnr_db, told = min(sqnr_db, decibels(varies, noise)), True
            words += f", {distinct} distinct value{'s' * (distinct != 1)} for {of_float:,} in float"
        return OutputPart(words, sqnr_db, told)

    def along(self, axis: int, whole_db: float) -> Iterator[OutputPart]:
        """What is lost or constant among the slices of a dimension."""
        import numpy

        wanted, error = self.wanted, self.found - self.wanted
        others = tuple(index for index in range(wanted.ndim) if index != axis)
        power, noise, varies = (wanted**2).mean(others), (error**2).mean(others), wanted.var(others)

        def named(numbers: Any) -> str:
            return f"{self.title}, {_numbers(numbers)} of {wanted.shape[axis]} along dimension {axis - 1}"

        def part(numbers: Any) -> OutputPart:
            return self.part(named(numbers), (slice(None),) * axis + (numbers,), axis)

        still = varies <= STILL**2 * power
        if still.any() and not still.all():
            yield OutputPart(f"{named(numpy.flatnonzero(still))}: constant in float, not judged", None)
        order = numpy.flatnonzero(~still)
        order = order[numpy.argsort(varies[order])]
        if len(order) < 2:
            return
        steps = varies[order[1:]] / varies[order[:-1]]
        below = int(steps.argmax()) + 1
        kind = numpy.sort(order[:below])
        values, errors = wanted.take(kind, axis), error.take(kind, axis)
        probabilities = values.min() >= 0 and values.max() <= self.unit
        if (
            steps.max() >= APART**2
            and below >= SHARE * wanted.shape[axis]
            and not (probabilities and abs(errors).max() <= self.harmless)
        ):
            yield from _lost(part(kind), whole_db - CLEARLY_DB)
        alike = order[varies[order] * ALIKE >= varies[order].mean()]
        worst = alike[[(power[alike] / numpy.maximum(noise[alike], TINY)).argmin()]]
        yield from _lost(part(worst), whole_db - BROKEN_DB)


def _lost(part: OutputPart, least_db: float) -> Iterator[OutputPart]:
    if part.sqnr_db is not None and part.sqnr_db < min(LEAST_DB, least_db):
        yield part


def _distinct(values: Any, least: int) -> int:
    """How many distinct values there are; of `least` or more at least so many."""
    import numpy

    few = numpy.unique(values.ravel()[:4096]).size
    return few if few >= least else int(numpy.unique(values).size)


def _numbers(numbers: Any) -> str:
    """`slice 4`, `slices 4 to 83`, or the first few."""
    first, last = int(numbers[0]), int(numbers[-1])
    if len(numbers) == 1:
        return f"slice {first}"
    if last - first == len(numbers) - 1:
        return f"slices {first} to {last}"
    listed = ", ".join(str(int(number)) for number in numbers[:4])
    return f"slices {listed}{' …' if len(numbers) > 4 else ''} ({len(numbers)})"
