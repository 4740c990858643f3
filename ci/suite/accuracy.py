"""The one place that compares a program's outputs with the expected ones, and the names of figures."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ci.models.user_model import search_first
from ci.suite.lost_parts import WRONG_DB, parts_of
from ci.suite.precision import has_16_bit_activations
from ci.work import UNFORESEEN
from provisioning.base.errors import INTERNAL
from provisioning.base.units import EXACT_DB, decibels, format_decibels

if TYPE_CHECKING:
    from ci.suite.suite_file import Thresholds

CLEARLY_DB = 6.0
"""Figures that differ by more than this differ for a reason."""
EQUAL_DB = 120.0
"""Outputs that differ by less are equal."""
HALF_MOST = 65504.0
"""The largest finite value of fp16."""

FIGURES = {
    "cosine": "cosine with the float model",
    "sqnr_db": "SQNR in dB against the float model",
    "slice_sqnr_db": "SQNR in dB of the worst slice of an output",
    "variation_sqnr_db": "SQNR in dB of what depends on the input",
    "agreement": "share of integers equal to the float model's",
    "choice_agreement": "share of integers equal to the float model's, or of indices whose values are equal"
    " within the noise",
    "top1": "top-1 agreement with the float model",
    "metric": "metric of the task",
    "float_metric": "the float model's metric of the task",
    "reference_metric": "metric of the task of the quantized model on the CPU",
    "max_metric_loss": "loss of the metric of the task against the float model",
    "max_abs": "largest absolute error",
    "max_rel": "largest error relative to the largest value",
    "reference_cosine": "cosine with the quantized model on the CPU",
    "reference_sqnr_db": "SQNR in dB against the quantized model on the CPU",
    "reference_agreement": "share of integers equal to those of the quantized model on the CPU",
    "reference_choice_agreement": "share of integers equal to those of the quantized model on the CPU, or of"
    " indices whose values are equal within the noise",
}
AGAINST_REFERENCE = ("cosine", "sqnr_db", "agreement", "choice_agreement")
"""The figures that are also measured against the quantized model."""

DEFAULT_FLOORS = {"sqnr_db": 10.0, "agreement": 1.0, "choice_agreement": 1.0, "slice_sqnr_db": WRONG_DB}
"""What a program must reach unless its own thresholds say otherwise. Below 10 dB, outputs have little in
common with the model's. A slice need not be nearer than the program's worst output, and indices may differ
where they choose between equal values (`floors`)."""
FLOAT_KIND = "fp16"
"""The kind of a run that quantizes nothing: rounding alone makes its outputs differ."""
FLOORS_OF_FLOAT = {**DEFAULT_FLOORS, "sqnr_db": 30.0}
FLOORS_OF_16_BITS = {**DEFAULT_FLOORS, "reference_sqnr_db": 30.0}
"""A chip that computes the quantized model correctly hardly differs from it at 16-bit activations."""
USUAL_OF_FLOAT_DB = 38.0
"""Nearly all correct programs of FLOAT_KIND reach this (docs/accuracy.md explains it)."""
USUAL_OF_16_BITS_DB = 36.0
"""All accepted programs with 16-bit activations reach this against the quantized model."""
LESS_IS_BETTER = ("max_abs", "max_rel", "max_metric_loss")
DIGITS = 6
"""Figures are written with this many digits, and shown with at least as many."""


def cost_rule(name: str) -> str:
    return f"cost-{name.replace('_', '-')}"


class Among(NamedTuple):
    """The values that the indices of an output chose among."""

    values: Any
    """The expected values; their first dimension is the one that the indices choose along."""
    noise: float
    """Two values that differ by at most this count as equal."""

    def ties(self, truth: Any, indices: Any) -> Any:
        """A flat array that is true where both indices are the same or choose equal values."""
        import numpy

        values = self.values.reshape(len(self.values), -1)
        inside = (indices >= 0) & (indices < len(values))
        rows = [places.reshape(-1, values.shape[1]) for places in (truth, numpy.where(inside, indices, 0))]
        best, pick = (numpy.take_along_axis(values, places.astype(numpy.int64), 0) for places in rows)
        # Where many are as good as the best, nothing is chosen any more.
        alike = numpy.stack([(abs(values - row) <= self.noise * USUAL).sum(0) for row in best])
        few = alike <= max(MOST_TIED, MOST_TIED_SHARE * len(values))
        near = (abs(best - pick) <= self.noise) & few
        return numpy.equal(truth, indices).ravel() | (near.ravel() & inside.ravel())


class Pair(NamedTuple):
    """One output of one inference."""

    name: str
    """The name that messages use."""
    expected: Any
    found: Any
    output: str | int | None = None
    """The key that is the same for this output of every inference; None if it is not compared across
    inferences."""
    choice: Among | None = None
    """Set for an output of indices. The arrays, too, have the dimension that is chosen along first."""


Outputs = dict[tuple[str | int, Any], list[tuple[Any, Any]]]
"""Expected and found arrays of each output of floats, by its name or number and its shape."""


@dataclass(frozen=True, slots=True)
class ChosenAmong:
    """The file with the values that an output's indices choose among, along a dimension."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    dim: int
    noise: float


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The file of a tensor's bytes."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    choice: ChosenAmong | None = None


Inferences = tuple[tuple[TensorFile, ...], ...]
"""The files of each inference's tensors, in order."""


class Unusable(Exception):
    """Outputs that cannot be compared; `rule` names the finding."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Missed:
    figure: str
    bound: float
    value: float | None
    """None if the program has no such figure."""

    def __str__(self) -> str:
        side = "at most" if self.figure in LESS_IS_BETTER else "at least"
        if self.value is None:
            return f"{FIGURES[self.figure]}: expected {side} {self.bound:g}, and it has no such figure"
        # As many digits as tell them apart: 17 tell all floats apart. Of dB one behind the point is enough.
        decibels = [".1f"] if self.figure.endswith("_db") else []
        forms = [*decibels, *(f".{digits}g" for digits in range(DIGITS, 18))]
        texts = ((format(self.bound, form), format(self.value, form)) for form in forms)
        bound, value = next(pair for pair in texts if pair[0] != pair[1])
        return f"{FIGURES[self.figure]}: expected {side} {bound}, found {value}"


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
    floats: Outputs = {}
    figures = _worst(pairs, non_finite, floats)
    against = list(reference)
    if against:
        quantized = _worst(against, non_finite)
        figures |= {f"reference_{name}": quantized[name] for name in AGAINST_REFERENCE if name in quantized}
    lost, lines = _parts(floats, min(WRONG_DB, figures.get("sqnr_db", WRONG_DB) - SAME_DB))
    lines += _means(floats)
    if "sqnr_db" in figures:
        # Below 0 dB nothing is left, and no threshold is lower.
        figures["slice_sqnr_db"] = min([figures["sqnr_db"], *(max(0.0, value) for value in lost)])
    return figures, lines


def _parts(outputs: Outputs, least: float) -> tuple[list[float], list[str]]:
    """The SQNR of whole outputs and of their lost parts, and a line on each part that the usual figures do
    not describe."""
    import numpy

    lost, lines = [], []
    for (output, _), pairs in outputs.items():
        truth, values = (numpy.stack(arrays) for arrays in zip(*pairs, strict=True))
        for part in parts_of(f"output {output}", truth, values, least):
            lost += [] if part.sqnr_db is None else [part.sqnr_db]
            lines += [str(part)] if part.is_news else []
    return lost, lines


def _means(outputs: Outputs) -> Iterator[str]:
    """Yield a line on each output that hardly depends on the input. With a single output, the figures already
    say so."""
    for (output, _), pairs in outputs.items():
        spread = _Spreads()
        for pair in pairs:
            spread.add(*pair)
        sqnr_db = min(_figures(*pair)["sqnr_db"] for pair in pairs)
        variation_db = spread.figures().get("variation_sqnr_db", math.inf)
        if len(outputs) > 1 and is_mostly_mean(sqnr_db, variation_db):
            varies = f"{format_decibels(variation_db)} of what depends on the input"
            yield f"output {output}: {format_decibels(sqnr_db)} SQNR, {varies}"


MEAN_DB = 10.0
"""If subtracting the mean over the inputs lowers a figure by more than this, the figure is mostly about
that mean. Good programs of the lowering suite lose up to 12 dB, and all that lose more than 6 keep more
than 10."""


def is_mostly_mean(sqnr_db: float, variation_db: float) -> bool:
    """Whether a good figure only shows that the mean over the inputs is exact."""
    return variation_db < DEFAULT_FLOORS["sqnr_db"] <= sqnr_db and sqnr_db - variation_db > MEAN_DB


def least_sqnr_db(pairs: Iterable[Pair]) -> float:
    """The least SQNR of all outputs, with integers compared as numbers. It serves a search, not a verdict."""
    import numpy

    def float64_array(array: Any) -> Any:
        return numpy.asarray(array, numpy.float64)

    floats = (Pair(pair.name, float64_array(pair.expected), float64_array(pair.found)) for pair in pairs)
    return _worst(floats, True)["sqnr_db"]


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


FEW_SAMPLES = 3
"""Only the worst sample is reported if there are fewer samples than this."""


def samples_in_words(each_db: Sequence[float]) -> str:
    """Describe the samples beside the worst one, which decides: their median, and whether one is far below
    all others."""
    from statistics import median

    if len(each_db) < FEW_SAMPLES:
        return ""
    worst, second = sorted(each_db)[:2]
    words = f"median {format_decibels(median(each_db))}"
    if second - worst < CLEARLY_DB:
        return words
    number, apart = each_db.index(worst), second - worst
    return f"{words}; sample {number} alone is {format_decibels(apart)} below the next"


def against_in_words(figures: Mapping[str, float], each_db: Sequence[float], model: str, data: object) -> str:
    """Describe a program's figures: the inputs they were measured with, and how its samples differ."""
    return add_samples(f"{describe_figures(figures)} against {model} {data}", each_db)


def add_samples(words: str, each_db: Sequence[float]) -> str:
    samples = samples_in_words(each_db)
    return f"{words} ({samples})" if samples else words


def round_figures(figures: Mapping[str, float]) -> dict[str, float]:
    """Round figures as a baseline stores them. None becomes better than measured, so thresholds derived from
    them hold."""
    return {name: round_to_worse(name, value) for name, value in figures.items()}


def round_to_worse(figure: str, value: float) -> float:
    """Round the value to DIGITS digits, toward the less accurate side."""
    if not math.isfinite(value):
        return value
    exact, least = Decimal(repr(float(value))), -DIGITS
    if figure in LESS_IS_BETTER:
        # Errors have any size.
        least += exact.adjusted() + 1
    side = ROUND_CEILING if figure in LESS_IS_BETTER else ROUND_FLOOR
    return float(exact.quantize(Decimal((0, (1,), least)), side))


def _worst(pairs: Iterable[Pair], non_finite: bool, floats: Outputs | None = None) -> dict[str, float]:
    """Compute the worst figures. `floats` collects the arrays of each output, inference by inference."""
    import numpy

    rows: list[dict[str, float]] = []
    integers: dict[object, list[tuple[Any, Any]]] = {}
    has_choice = False
    spreads: dict[object, _Spreads] = {}
    for number, pair in enumerate(pairs):
        truth, values = numpy.asarray(pair.expected), numpy.asarray(pair.found)
        if truth.shape != values.shape:
            raise Unusable("shape", f"{pair.name}: expected the shape {truth.shape}, found {values.shape}")
        if not truth.size:
            continue
        output = (number, None) if pair.output is None else (pair.output, truth.shape)
        if truth.dtype.kind in "biu":
            equal = numpy.equal(truth, values).ravel()
            alike = pair.choice.ties(truth, values) if pair.choice else equal
            has_choice = has_choice or pair.choice is not None
            integers.setdefault(output, []).append((equal, alike))
            continue
        truth, values = truth.astype(numpy.float64), values.astype(numpy.float64)
        top1 = _top1(truth, values)
        truth, values = _finite(pair.name, truth, values, non_finite)
        rows.append(_figures(truth, values) | top1)
        spreads.setdefault(output, _Spreads()).add(truth, values)
        if floats is not None:
            floats.setdefault(output, []).append((truth, values))
    rows += [spread.figures() for spread in spreads.values()]
    for pairs_of_output in integers.values():
        equal, alike = (numpy.concatenate(arrays) for arrays in zip(*pairs_of_output, strict=True))
        rows.append({"agreement": float(equal.mean())})
        if has_choice:
            rows.append({"choice_agreement": float(alike.mean())})
    if not rows:
        raise Unusable("missing", "expected at least one output with values to compare, found none")
    figures_by_name: dict[str, list[float]] = {}
    for row in rows:
        for name, figure in row.items():
            figures_by_name.setdefault(name, []).append(figure)
    return {name: _worst_of(name, figures) for name, figures in figures_by_name.items()}


class _Spreads:
    """Measure how far the inferences of an output, and their errors, are from their means (Welford's sums,
    which stay exact if a spread is small beside its mean)."""

    def __init__(self) -> None:
        self.count, self.scale = 0, 1.0
        self.means: list[Any] = [0.0, 0.0]
        self.powers = [0.0, 0.0]

    def add(self, truth: Any, values: Any) -> None:
        self.count += 1
        if self.count == 1:
            # As in _figures.
            self.scale = float(max(abs(truth).max(), abs(values).max())) or 1.0
        for index, array in enumerate((truth / self.scale, (values - truth) / self.scale)):
            off = array - self.means[index]
            self.means[index] = self.means[index] + off / self.count
            self.powers[index] += float((off * (array - self.means[index])).sum())

    def figures(self) -> dict[str, float]:
        """The figures; empty for a single inference, and if nothing varies."""
        return {"variation_sqnr_db": decibels(*self.powers)} if any(self.powers) else {}


def _worst_of(name: str, values: Sequence[float]) -> float:
    # min() and max() ignore a NaN unless it comes first.
    if any(map(math.isnan, values)):
        return math.nan
    return max(values) if name in LESS_IS_BETTER else min(values)


def _figures(truth: Any, values: Any) -> dict[str, float]:
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


def _finite(name: str, truth: Any, values: Any, non_finite: bool) -> tuple[Any, Any]:
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


def _count(good: Any) -> str:
    return f"{int(good.size - good.sum())} of {good.size}"


def _top1(truth: Any, values: Any) -> dict[str, float]:
    """The share of rows whose largest value is in the same place. A row of equal values agrees only if the
    expected row is equal throughout, too."""
    if truth.ndim == 0 or truth.shape[-1] < 2:
        return {}
    rows = [array.reshape(-1, array.shape[-1]) for array in (truth, values)]
    flat = [(row == row[:, :1]).all(-1) for row in rows]
    alike = (rows[0].argmax(-1) == rows[1].argmax(-1)) & (flat[0] | ~flat[1])
    return {"top1": float(alike.mean())}


def read_pairs(
    outputs: Path, folder: Path, inferences: Inferences, *, choices: bool = True
) -> Iterator[Pair]:
    """Pair each of the runner's files in `outputs` with the expected array in `folder`."""
    for number, tensors in enumerate(inferences):
        for index, row in enumerate(tensors):
            path = outputs / f"output_{number}_{index}.raw"
            truth, array = _load(folder / row.file, row), _load(path, row)
            if choices and (choice := row.choice):
                values = _load(folder / choice.file, choice)
                yield pair_of_choice(
                    path.name, truth, array, index, values, dim=choice.dim, noise=choice.noise
                )
                continue
            yield Pair(path.name, truth, array, index)


MOST_TIED, MOST_TIED_SHARE = 5, 0.01
"""At most this many values may be equal within the usual noise, for any of their indices to be right."""
USUAL = 0.25
"""The usual noise as a share of the largest noise, for a few thousand normally distributed values."""
HALF_NOISE = 2.0**-8
"""How far fp16 values are from float's, as a share of the largest value. In a deep model this exceeds one
rounding."""


def tie_noise(float_values: Sequence[Any], quantized: Sequence[Any], dim: int) -> float:
    """How far apart two values may be and still count as equal, when an index chooses between them. Computed
    from the values of float and of the quantized model, if there is one: each may be off by the largest error
    of quantizing. If the differences along `dim` are lost, nothing counts as equal."""
    import numpy

    floats = numpy.stack([*float_values]).astype(numpy.float64)
    error = numpy.stack([*quantized]) - floats if len(quantized) else abs(floats).max() * HALF_NOISE / 2
    along = dim + 1 if dim >= 0 else dim
    differences = floats - floats.mean(axis=along, keepdims=True)
    spread, lost = (float((values**2).mean()) for values in (differences, numpy.asarray(error)))
    return 2 * float(abs(error).max()) if decibels(spread, lost) >= WRONG_DB else 0.0


def pair_of_choice(
    name: str, truth: Any, indices: Any, output: str | int, values: Any, *, dim: int, noise: float
) -> Pair:
    """Pair indices, with the values that they chose among along a dimension."""
    import numpy

    # As the values are, with as many rows as were chosen.
    sizes = [-1 if place == dim else size for place, size in enumerate(values.shape)]
    truth, indices, values = (
        numpy.moveaxis(array, dim, 0) for array in (truth.reshape(sizes), indices.reshape(sizes), values)
    )
    return Pair(name, truth, indices, output, Among(values, noise))


def _load(path: Path, row: TensorFile | ChosenAmong) -> Any:
    import numpy

    if not path.is_file():
        raise Unusable("missing", f"{path.name} was not written")
    values = numpy.fromfile(path, dtype=row.dtype)
    if values.size != math.prod(row.shape):
        words = "" if row.shape else "; the output has no dimensions: keep one, as x[0, 0:1] does for x[0, 0]"
        raise Unusable(
            "shape", f"{path.name}: expected {math.prod(row.shape)} values, found {values.size}{words}"
        )
    return values.reshape(row.shape)


SAME_DB = 0.01
"""Two ways to compute the same figure may differ by this much."""


def required_of(kind: str) -> Mapping[str, float]:
    """What a program of a run of this kind must reach."""
    if kind == FLOAT_KIND:
        return FLOORS_OF_FLOAT
    return FLOORS_OF_16_BITS if has_16_bit_activations(kind) else DEFAULT_FLOORS


def usual_of(kind: str) -> Mapping[str, float]:
    """The figures that nearly every correct program of a run of this kind reaches. A program below them gets
    a warning."""
    if kind == FLOAT_KIND:
        return {"sqnr_db": USUAL_OF_FLOAT_DB}
    return {"reference_sqnr_db": USUAL_OF_16_BITS_DB if has_16_bit_activations(kind) else WRONG_DB}


def floors(figures: Mapping[str, float], kind: str = "") -> dict[str, float]:
    """The required figures of a program without thresholds."""
    bounds = {name: bound for name, bound in required_of(kind).items() if name in figures}
    if "choice_agreement" in bounds:
        bounds.pop("agreement", None)
    if "slice_sqnr_db" in bounds:
        # The whole is among the slices, computed another way: not its last bit decides.
        sqnr_db = figures.get("sqnr_db", math.inf) - SAME_DB
        bounds["slice_sqnr_db"] = min(bounds["slice_sqnr_db"], sqnr_db)
    return bounds


def below_floor(figures: Mapping[str, float], kind: str = "") -> list[str]:
    """The names of the figures below what is required; NaN is below."""
    return [name for name, least in floors(figures, kind).items() if not figures[name] >= least]


def bounds_of(
    thresholds: Thresholds | None, figures: Mapping[str, float], kind: str = ""
) -> dict[str, float]:
    """The limits of these figures: what is required of every program, and the program's own thresholds. A
    program without thresholds is not judged."""
    return {} if thresholds is None else floors(figures, kind) | thresholds.model_dump(exclude_none=True)


def missed_thresholds(
    thresholds: Thresholds | None, figures: Mapping[str, float], kind: str = ""
) -> list[Missed]:
    """The missed thresholds. A figure that is absent or NaN misses its threshold."""
    misses = []
    for name, bound in bounds_of(thresholds, figures, kind).items():
        value = figures.get(name, math.nan)
        holds = value <= bound if name in LESS_IS_BETTER else value >= bound
        if not holds:
            misses.append(Missed(name, bound, figures.get(name)))
    return misses


def against_nearest(figures: Mapping[str, float]) -> str:
    """The prefix of the figures against the quantized model; empty if there are none, as for fp16."""
    return "reference_" if any(name.startswith("reference_") for name in figures) else ""


OF_A_DRAW = tuple(
    prefix + name for prefix in ("", "reference_") for name in ("sqnr_db", "agreement", "choice_agreement")
)
"""The figures of a sample that `computed_otherwise` and the operator table read."""


def computed_otherwise(figures: Mapping[str, float], kind: str = "") -> bool:
    """Whether the chip computes something else than the model that the program was made from."""
    prefix = against_nearest(figures)
    share = "choice_agreement" if f"{prefix}choice_agreement" in figures else "agreement"
    least = {"sqnr_db": required_of(kind).get("reference_sqnr_db", WRONG_DB), share: 1.0}
    return any(figures.get(f"{prefix}{name}", bound) < bound for name, bound in least.items())


def describe_figures(figures: Mapping[str, float], prefix: str = "") -> str:
    """Describe the figures with this prefix in a line about a program; empty if nothing was measured."""
    parts = []
    if (sqnr := figures.get(f"{prefix}sqnr_db")) is not None:
        parts.append(f"{format_decibels(sqnr)} SQNR" if sqnr < EXACT_DB else format_decibels(sqnr))
        if (varies := figures.get(f"{prefix}variation_sqnr_db", math.inf)) < sqnr - CLEARLY_DB:
            parts.append(f"{format_decibels(varies)} of what depends on the input")
    if (share := figures.get(f"{prefix}agreement")) is not None:
        # Rounded down: 100 % is all of them.
        parts.append(f"{round_to_worse('agreement', share) * 100:.6g} % of integers equal")
        if (alike := figures.get(f"{prefix}choice_agreement", share)) > share:
            parts.append(f"{round_to_worse('agreement', alike) * 100:.6g} % but for ties")
    if (task := figures.get("metric")) is not None and not prefix:
        parts.append(f"metric {task:.4g}, {figures.get('float_metric', task):.4g} in float")
    return ", ".join(parts)


METRIC = "metric"
"""The name of the figure that a task's metric gives."""
LOSS = f"max_{METRIC}_loss"
"""The name of the figure for what the metric loses against the float model."""


def measured_by(metric: str, pairs: Iterable[Pair], inferences: int) -> float:
    """Call FOLDER/MODULE:FUNCTION, or FOLDER/FILE.py:FUNCTION, with the outputs of the program and of the
    float model, and return its result. Each argument has a list for each inference, with its arrays in
    order."""
    rows = list(pairs)
    count = len(rows) // inferences
    outputs, floats = [], []
    for first in range(0, len(rows), count):
        outputs.append([pair.found for pair in rows[first : first + count]])
        floats.append([pair.expected for pair in rows[first : first + count]])
    path, _, name = metric.rpartition(":")
    module = Path(path).name.removesuffix(".py")
    search_first(Path(path).parent)
    try:
        return float(getattr(importlib.import_module(module), name)(outputs, floats))
    except Exception as error:
        raise Unusable(METRIC, f"{metric}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class MetricRequest:
    """The request to a process that computes a metric."""

    function: str
    outputs: Path
    """The folder with the outputs of the program."""
    working_folder: Path


@dataclass(frozen=True, slots=True)
class MetricFigures:
    figures: Mapping[str, float]


def error_of_metric(error: Exception, order: Mapping[str, object]) -> dict[str, object]:
    """The error that a worker's reply has for an exception."""
    if isinstance(error, Unusable):
        return {"kind": error.rule, "message": str(error), "fix": f"correct {order['function']}"}
    message = f"{order['function']}: {type(error).__name__}: {error}"
    return {"kind": UNFORESEEN, "message": message, "exit_code": INTERNAL}


def side_by_side(
    metric: str, pairs: Iterable[Pair], against: Iterable[Pair], inferences: int
) -> dict[str, float]:
    """The figures of the program, of the float model, and of the quantized model on the CPU if there is one.
    `against` pairs the program's outputs with the quantized model's."""
    rows = list(pairs)
    floats = [pair._replace(found=pair.expected) for pair in rows]
    quantized = [pair._replace(found=partner.expected) for pair, partner in zip(rows, against, strict=False)]
    sides = {METRIC: rows, f"float_{METRIC}": floats, f"reference_{METRIC}": quantized}
    figures = {name: measured_by(metric, side, inferences) for name, side in sides.items() if side}
    return {**figures, LOSS: max(0.0, figures[f"float_{METRIC}"] - figures[METRIC])}
