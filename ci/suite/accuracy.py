"""The one place that compares a program's outputs with the expected ones.

A `Pair` is one output of one inference. `compare` gives the worst figure over all pairs, by the names of
`ci/suite/figures.py`. Floats have a signal-to-noise ratio and what goes with it; integers have only the share
that is equal. Some figures are about an output over all inferences: how exact what depends on the input is,
and its worst slice. So pairs are collected by output first (`_Comparison`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ci.suite.figures import AGAINST_REFERENCE, LESS_IS_BETTER, REFERENCE
from ci.suite.index_choices import Among
from ci.suite.limits import SAME_DB, is_mostly_mean
from ci.suite.lost_parts import WRONG_DB, OutputPart, parts_of
from provisioning.base.units import decibels, format_decibels

if TYPE_CHECKING:
    from ci.models.inputs import Array

HALF_MOST = 65504.0
"""The largest finite value of fp16."""


class Pair(NamedTuple):
    """One output of one inference."""

    name: str
    """The name that messages use."""
    expected: Array
    found: Array
    output: str | int | None = None
    """The key that is the same for this output of every inference; None if it is not compared across
    inferences."""
    choice: Among | None = None
    """Set for an output of indices. The arrays, too, have the dimension that is chosen along first."""


def pair_of_choice(
    name: str, truth: Array, indices: Array, output: str | int, values: Array, *, dim: int, noise: float
) -> Pair:
    """Pair indices, with the values that they chose among along a dimension."""
    import numpy

    # As the values are, with as many rows as were chosen.
    sizes = [-1 if place == dim else size for place, size in enumerate(values.shape)]
    truth, indices, values = (
        numpy.moveaxis(array, dim, 0) for array in (truth.reshape(sizes), indices.reshape(sizes), values)
    )
    return Pair(name, truth, indices, output, Among(values, noise))


class Unusable(Exception):
    """Outputs that cannot be compared; `rule` names the finding."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def compare(
    pairs: Iterable[Pair], reference: Iterable[Pair] = (), *, non_finite: bool = False
) -> dict[str, float]:
    """Compute the worst figure over all outputs of all inferences, by the names of thresholds. Integers have
    only an agreement, floats all other figures.

    `pairs` compare with the float model, `reference` with the quantized model. Raises Unusable if a value is
    NaN or infinite; with `non_finite`, only if the expected array differs there."""
    return compare_with_slices(pairs, reference, non_finite=non_finite)[0]


def compare_with_slices(
    pairs: Iterable[Pair], reference: Iterable[Pair] = (), *, non_finite: bool = False
) -> tuple[dict[str, float], list[str]]:
    """Do what `compare` does; also return a line on each part of an output that is lost, or constant in the
    float model."""
    comparison = _Comparison(non_finite, keeps_arrays=True)
    comparison.add_all(pairs)
    figures = comparison.worst_figures()
    against_quantized = list(reference)
    if against_quantized:
        quantized = _worst_figures(against_quantized, non_finite=non_finite)
        for name in AGAINST_REFERENCE:
            if name in quantized:
                figures[REFERENCE + name] = quantized[name]
    parts = list(comparison.parts(min(WRONG_DB, figures.get("sqnr_db", WRONG_DB) - SAME_DB)))
    if "sqnr_db" in figures:
        # Below 0 dB nothing is left, and no threshold is lower.
        of_parts = [max(0.0, part.sqnr_db) for part in parts if part.sqnr_db is not None]
        figures["slice_sqnr_db"] = min([figures["sqnr_db"], *of_parts])
    lines = [str(part) for part in parts if part.is_news]
    return figures, [*lines, *comparison.lines_on_means()]


def least_sqnr_db(pairs: Iterable[Pair]) -> float:
    """The least SQNR of all outputs, with integers compared as numbers. It serves a search, not a verdict."""
    import numpy

    floats = (
        Pair(
            pair.name,
            numpy.asarray(pair.expected, numpy.float64),
            numpy.asarray(pair.found, numpy.float64),
        )
        for pair in pairs
    )
    return _worst_figures(floats, non_finite=True)["sqnr_db"]


def each_sample_db(pairs: Iterable[Pair], samples: int) -> list[float]:
    """The SQNR of each sample; a sample with only integers has none. The pairs must be in the order of the
    samples."""
    rows = list(pairs)
    size = len(rows) // samples
    each_db = []
    for first in range(0, len(rows), size or 1):
        floats = [pair for pair in rows[first : first + size] if pair.expected.dtype.kind == "f"]
        if floats:
            each_db.append(least_sqnr_db(floats))
    return each_db


def _worst_figures(pairs: Iterable[Pair], *, non_finite: bool) -> dict[str, float]:
    comparison = _Comparison(non_finite)
    comparison.add_all(pairs)
    return comparison.worst_figures()


class OutputKey(NamedTuple):
    """An output of all inferences, or the only pair of its kind."""

    output: str | int
    shape: tuple[int, ...] | None


@dataclass
class _Comparison:
    """The pairs of a program, by output."""

    non_finite: bool
    """Whether the expected values may be NaN or infinite."""
    keeps_arrays: bool = False
    """Whether the parts of outputs are asked for, too."""
    figures: list[dict[str, float]] = field(default_factory=list)
    """The figures of each pair of floats."""
    floats: dict[OutputKey, _FloatOutput] = field(default_factory=dict)
    integers: dict[OutputKey, _IntegerOutput] = field(default_factory=dict)

    def add_all(self, pairs: Iterable[Pair]) -> None:
        import numpy

        for number, pair in enumerate(pairs):
            truth, values = numpy.asarray(pair.expected), numpy.asarray(pair.found)
            if truth.shape != values.shape:
                message = f"{pair.name}: expected the shape {truth.shape}, found {values.shape}"
                raise Unusable("shape", message)
            if not truth.size:
                continue
            key = OutputKey(number, None) if pair.output is None else OutputKey(pair.output, truth.shape)
            if truth.dtype.kind in "biu":
                self.integers.setdefault(key, _IntegerOutput()).add(truth, values, pair.choice)
            else:
                self._add_floats(pair.name, key, truth, values)

    def _add_floats(self, name: str, key: OutputKey, truth: Array, values: Array) -> None:
        import numpy

        truth, values = truth.astype(numpy.float64), values.astype(numpy.float64)
        top1 = _top1(truth, values)
        truth, values = _finite(name, truth, values, self.non_finite)
        figures = _figures(truth, values)
        self.figures.append(figures | top1)
        output = self.floats.setdefault(key, _FloatOutput())
        output.sqnr_db = min(output.sqnr_db, figures["sqnr_db"])
        output.spread.add(truth, values)
        if self.keeps_arrays:
            output.pairs.append((truth, values))

    def worst_figures(self) -> dict[str, float]:
        rows = [*self.figures, *(output.spread.figures() for output in self.floats.values())]
        has_choice = any(output.has_choice for output in self.integers.values())
        rows += [output.figures(with_ties=has_choice) for output in self.integers.values()]
        if not rows:
            raise Unusable("missing", "expected at least one output with values to compare, found none")
        figures_by_name: dict[str, list[float]] = {}
        for row in rows:
            for name, figure in row.items():
                figures_by_name.setdefault(name, []).append(figure)
        return {name: _worst_of(name, figures) for name, figures in figures_by_name.items()}

    def parts(self, least_db: float) -> Iterator[OutputPart]:
        """Yield the whole outputs of floats and their parts that have fewer decibels."""
        import numpy

        for key, output in self.floats.items():
            truth, values = (numpy.stack(arrays) for arrays in zip(*output.pairs, strict=True))
            yield from parts_of(f"output {key.output}", truth, values, least_db)

    def lines_on_means(self) -> Iterator[str]:
        """Yield a line on each output that hardly depends on the input. With a single output, the figures
        already say so."""
        if len(self.floats) < 2:
            return
        for key, output in self.floats.items():
            variation_db = output.spread.figures().get("variation_sqnr_db", math.inf)
            if is_mostly_mean(output.sqnr_db, variation_db):
                varies = f"{format_decibels(variation_db)} of what depends on the input"
                yield f"output {key.output}: {format_decibels(output.sqnr_db)} SQNR, {varies}"


@dataclass
class _IntegerOutput:
    """Where the integers of an output are the expected ones, in each inference."""

    equal: list[Array] = field(default_factory=list)
    alike: list[Array] = field(default_factory=list)
    """The same, with indices that choose equal values."""
    has_choice: bool = False

    def add(self, truth: Array, values: Array, choice: Among | None) -> None:
        import numpy

        equal = numpy.equal(truth, values).ravel()
        self.equal.append(equal)
        self.alike.append(choice.ties(truth, values) if choice else equal)
        self.has_choice = self.has_choice or choice is not None

    def figures(self, *, with_ties: bool) -> dict[str, float]:
        import numpy

        figures = {"agreement": float(numpy.concatenate(self.equal).mean())}
        if with_ties:
            figures["choice_agreement"] = float(numpy.concatenate(self.alike).mean())
        return figures


class _Spread:
    """Measures how far the inferences of an output, and their errors, are from their means (Welford's sums,
    which stay exact if a spread is small beside its mean)."""

    def __init__(self) -> None:
        self.count, self.scale = 0, 1.0
        self.signal, self.noise = _Deviation(), _Deviation()

    def add(self, truth: Array, values: Array) -> None:
        self.count += 1
        if self.count == 1:
            # As in _figures.
            self.scale = float(max(abs(truth).max(), abs(values).max())) or 1.0
        self.signal.add(truth / self.scale, self.count)
        self.noise.add((values - truth) / self.scale, self.count)

    def figures(self) -> dict[str, float]:
        """The figures; empty for a single inference, and if nothing varies."""
        if not (self.signal.power or self.noise.power):
            return {}
        return {"variation_sqnr_db": decibels(self.signal.power, self.noise.power)}


@dataclass
class _Deviation:
    """The power of how far arrays are from their mean."""

    mean: Array | float = 0.0
    power: float = 0.0

    def add(self, array: Array, count: int) -> None:
        """Add an array; with it there are `count`."""
        difference = array - self.mean
        self.mean = self.mean + difference / count
        self.power += float((difference * (array - self.mean)).sum())


@dataclass
class _FloatOutput:
    """An output of floats, over all inferences."""

    sqnr_db: float = math.inf
    """The least of all inferences."""
    spread: _Spread = field(default_factory=_Spread)
    pairs: list[tuple[Array, Array]] = field(default_factory=list)
    """The expected and the found array of each inference, if they are kept."""


def _worst_of(name: str, values: Sequence[float]) -> float:
    # min() and max() ignore a NaN unless it comes first.
    if any(map(math.isnan, values)):
        return math.nan
    return max(values) if name in LESS_IS_BETTER else min(values)


def _figures(truth: Array, values: Array) -> dict[str, float]:
    """The figures of a pair of floats, without those that need more than one inference."""
    largest = float(abs(truth).max(initial=0))
    worst = float(abs(values - truth).max(initial=0))
    # Dividing by the largest value keeps the squares of very large values finite.
    scale = max(largest, float(abs(values).max(initial=0))) or 1.0
    signal, power = float(((truth / scale) ** 2).sum()), float(((values / scale) ** 2).sum())
    noise = float((((values - truth) / scale) ** 2).sum())
    product = float(((truth / scale) * (values / scale)).sum())
    return {
        "cosine": _cosine(product, signal, power, noise),
        "sqnr_db": decibels(signal, noise),
        "max_abs": worst,
        "max_rel": worst / largest if largest else float(worst != 0),
    }


def _cosine(product: float, signal: float, power: float, noise: float) -> float:
    """The cosine of two arrays. It is never more than 1, although the last bits of sums are not exact."""
    if not (noise and signal and power):
        return float(noise == 0)
    return min(1.0, product / math.sqrt(signal * power))


def _top1(truth: Array, values: Array) -> dict[str, float]:
    """The share of rows whose largest value is in the same place. A row of equal values agrees only if the
    expected row is equal throughout, too."""
    if truth.ndim == 0 or truth.shape[-1] < 2:
        return {}
    true_rows, rows = (array.reshape(-1, array.shape[-1]) for array in (truth, values))
    true_is_flat, is_flat = ((row == row[:, :1]).all(-1) for row in (true_rows, rows))
    alike = (true_rows.argmax(-1) == rows.argmax(-1)) & (true_is_flat | ~is_flat)
    return {"top1": float(alike.mean())}


def _finite(name: str, truth: Array, values: Array, non_finite: bool) -> tuple[Array, Array]:
    """Both arrays without NaN and infinities, which must be in the same places."""
    import numpy

    ours, theirs = numpy.isfinite(values), numpy.isfinite(truth)
    if not theirs.all() and not non_finite:
        raise Unusable(
            "reference-not-finite",
            f"{name}: {_count(theirs)} values that the model itself gives on the CPU are NaN or infinite; if"
            " you expect them, write non_finite = true into the case",
        )
    same = numpy.equal(truth, values) | (numpy.isnan(truth) & numpy.isnan(values))
    if not (ours | same).all():
        raise Unusable("not-finite", f"{name}: {_count(ours | same)} values are NaN or infinite")
    if not (theirs | same).all():
        raise Unusable(
            "not-finite", f"{name}: {_count(theirs | same)} values should be NaN or infinite, and are not"
        )
    return numpy.where(theirs, truth, 0), numpy.where(theirs, values, 0)


def _count(good: Array) -> str:
    return f"{int(good.size - good.sum())} of {good.size}"
