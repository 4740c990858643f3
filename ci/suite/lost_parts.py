"""Find parts of an output that are lost although the output as a whole is near the expected one.

It checks slices along the last and along the channel dimension. An error that is small beside boxes in pixels
may wipe out the scores next to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, TypeAlias

from provisioning.base.rendering import plural
from provisioning.base.units import decibels, format_decibels

if TYPE_CHECKING:
    from ci.models.inputs import Array

Places: TypeAlias = "int | Array"
"""Says which slices of a dimension: one, several, or a mark for each."""

WRONG_DB = 20.0
"""An output with a lower SQNR is wrong, even if the tolerance of a test lets it pass."""
FEW, MANY = 16, 1000
"""An output or slice is lost if it has fewer than FEW distinct values where float has more than MANY."""
LEAST_VALUES = 16
"""Slices with fewer values are not checked: chance alone makes one of them small."""
STILL = 0.01
"""A slice is constant if it varies by less than this share of its size."""
APART = 4.0
"""Slices are weak if they vary this many times less than all others."""
NOISIER = 7.0
"""A slice is less exact than the others if its error's power is this many times theirs. With 4-bit weights,
six times is usual (op_grouped_attention at 16a4w: its first row)."""
DECIDED = 1 / 16
"""If all probabilities are at most this far from 0 or 1, an error of one 8-bit step does not change a
decision."""
STEP = 1 / 256
"""The size of one 8-bit step between 0 and 1."""


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Some slices of an output, or all of it."""

    words: str
    sqnr_db: float | None
    """None if float is constant here, so that it is not judged."""
    is_news: bool = True
    """False for a whole output that the usual figures already describe."""

    def __str__(self) -> str:
        return self.words if self.sqnr_db is None else f"{self.words}: {format_decibels(self.sqnr_db)} SQNR"


def parts_of(title: str, truth: Array, values: Array, least: float = WRONG_DB) -> Iterator[OutputPart]:
    """Yield the whole output, then its lost, weak and constant slices. `truth` and `values` stack all
    inferences of the output. Slices must have `least` dB."""
    # The squares of very large values stay finite.
    size = max(float(abs(truth).max()), float(abs(values).max())) or 1.0
    comparison = _Compared(title, truth / size, values / size, least, 1 / size)
    yield comparison.part(title, ..., 0)
    for axis in sorted({truth.ndim - 1, 2} if truth.ndim > 3 else {truth.ndim - 1}):
        if axis and truth.shape[axis] > 1 and truth.size // truth.shape[axis] >= LEAST_VALUES:
            yield from comparison.along(axis)


@dataclass(frozen=True)
class _Compared:
    title: str
    truth: Array
    values: Array
    least: float
    unit: float
    """The value that 1 became when the arrays were scaled."""

    def part(self, words: str, places: tuple[slice | Places, ...] | EllipsisType, axis: int) -> OutputPart:
        """Measure a part. If it has fewer than FEW distinct values, it gets at most that share of `least`
        dB."""
        truth, values = self.truth[places], self.values[places]
        noise = float(((values - truth) ** 2).sum())
        sqnr_db, separate = decibels(float((truth**2).sum()), noise), places is not ...
        if (distinct := _few(truth, values)) is not None:
            axes = tuple(index for index in range(truth.ndim) if index != axis or not separate)
            varies = float(((truth - truth.mean(axes, keepdims=True)) ** 2).sum())
            sqnr_db, separate = min(sqnr_db, decibels(varies, noise), self.least * distinct / FEW), True
            of_float = _distinct(truth, truth.size)
            words += f", {plural(distinct, 'distinct value')} for {of_float:,} in float"
        return OutputPart(words, sqnr_db, separate)

    def along(self, axis: int) -> Iterator[OutputPart]:
        """Yield the slices of a dimension that are lost, weak or constant."""
        import numpy

        truth, error = self.truth, self.values - self.truth
        axes = tuple(index for index in range(truth.ndim) if index != axis)
        power, noise, varies = (truth**2).mean(axes), (error**2).mean(axes), truth.var(axes)
        count = truth.shape[axis]

        def title_of(numbers: Array) -> str:
            return f"{self.title}, {_numbers(numbers)} of {count} along dimension {axis - 1}"

        def slices(numbers: Places) -> tuple[slice | Places, ...]:
            return (slice(None),) * axis + (numbers,)

        def lost_parts(numbers: Array) -> Iterator[OutputPart]:
            part = self.part(title_of(numbers), slices(numbers), axis)
            if part.sqnr_db is not None and part.sqnr_db < self.least:
                yield part

        still = varies <= STILL**2 * power
        if still.any() and not still.all():
            yield OutputPart(f"{title_of(numpy.flatnonzero(still))}: constant in float, not judged", None)
        judged = ~still & ~self._decided(error, axes)
        below = judged & (power < 10 ** (self.least / 10) * noise)

        def has_few(numbers: Places) -> bool:
            return _few(truth[slices(numbers)], self.values[slices(numbers)]) is not None

        few = judged & [has_few(index) for index in range(count)]
        kind = judged & _mark_weak(varies, ~still)
        # A slice of them may have too few values in float.
        weak = kind & (below | (kind.any() and has_few(kind)))
        noisy = below & (noise * (count - 1) >= NOISIER * (noise.sum() - noise))
        # Where many are dead, they are the noise of one another.
        right = judged & ~below
        dead = below & (self.values.max(axes) == self.values.min(axes))
        noisy |= dead & (noise * right.sum() >= NOISIER * noise[right].sum())
        for several in (few | weak, noisy & ~few & ~weak):
            if several.any():
                yield from lost_parts(numpy.flatnonzero(several))
        if (rest := below & ~few & ~weak & ~noisy).any():
            worst = decibels(1.0, float((noise[rest] / power[rest]).max()))
            yield OutputPart(
                f"{title_of(numpy.flatnonzero(rest))}: {format_decibels(worst)} SQNR at worst; small values,"
                " as exact as the others: not judged",
                None,
            )

    def _decided(self, error: Array, axes: tuple[int, ...]) -> Array:
        """Mark the slices of probabilities that are near 0 or 1 everywhere and were computed within one 8-bit
        step. Next to values of another kind the step differs, so no slice is marked."""
        import numpy

        truth = self.truth / self.unit
        if truth.min() < 0 or truth.max() > 1:
            return numpy.zeros((), bool)
        near: Array = numpy.minimum(truth, 1 - truth).max(axes) <= DECIDED
        within_a_step: Array = near & (abs(error).max(axes) <= STEP * self.unit)
        return within_a_step


def _mark_weak(varies: Array, judged: Array) -> Array:
    """Mark the slices that lie below the widest gap, if it is wide."""
    import numpy

    order = numpy.flatnonzero(judged)
    order = order[numpy.argsort(varies[order])]
    weak = numpy.zeros(len(varies), bool)
    steps = varies[order[1:]] / varies[order[:-1]]
    if len(steps) and steps.max() >= APART**2:
        weak[order[: int(steps.argmax()) + 1]] = True
    return weak


def _few(truth: Array, values: Array) -> int | None:
    """The number of distinct computed values, if there are fewer than FEW and more than MANY expected ones;
    else None."""
    distinct = _distinct(values, FEW)
    return distinct if distinct < FEW and _distinct(truth, truth.size) > MANY else None


def _distinct(values: Array, least: int) -> int:
    """The number of distinct values; for `least` or more it may return less than the exact number, but at
    least `least`."""
    import numpy

    few = numpy.unique(values.ravel()[:4096]).size
    return few if few >= least else int(numpy.unique(values).size)


def _numbers(numbers: Array) -> str:
    """Write numbers as `slice 4`, `slices 4 to 83`, or the first few."""
    first, last = int(numbers[0]), int(numbers[-1])
    if len(numbers) == 1:
        return f"slice {first}"
    if last - first == len(numbers) - 1:
        return f"slices {first} to {last}"
    head = ", ".join(str(int(number)) for number in numbers[:4])
    return f"slices {head}{' …' if len(numbers) > 4 else ''} ({len(numbers)})"
