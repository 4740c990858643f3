"""Prove that a rewrite computes what it replaces: both are computed for many inputs, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ci.models.inputs import Array

Batch = Callable[[Sequence[Sequence[Array]]], Sequence[Sequence[Array]]]
"""It returns the outputs for several inputs."""

LARGER = 10
"""Values that are so many times larger than the samples' are tried, too."""
FLOOR = 1e-3
"""Outputs that are smaller than this part of the sample's values are compared as if they had that size."""


class NotTheSame(Exception):
    """A rewrite gives something else on the CPU."""


def probes(samples: Sequence[Sequence[Array]], values: Sequence[float], low: float) -> Iterator[list[Array]]:
    """Yield inputs to prove with: those of the samples, then zeros, the ends of the range, drawn ones, larger
    ones, and the fault's values. Whole numbers stay within their range. `low` is the least allowed value."""
    import numpy as np

    yield from (list(sample) for sample in samples)
    columns = list(zip(*samples, strict=True))
    for make_floats, make_others in _makers_of_probes(values):
        arrays = []
        for column in columns:
            array = column[0]
            if array.dtype.kind == "f":
                floats = make_floats(array.shape, *_finite_ends(column))
                arrays.append(np.maximum(floats, low).astype(array.dtype))
            else:
                others = np.asarray(make_others(array))
                arrays.append(others.astype(array.dtype).reshape(array.shape))
        yield arrays


MakeFloats = Callable[[tuple[int, ...], float, float], Array]
"""It makes an array of a shape from the least and the largest value of the samples."""
MakeOthers = Callable[[Array], Array]
"""It makes an array like a sample's, which does not hold floats."""


def _makers_of_probes(values: Sequence[float]) -> list[tuple[MakeFloats, MakeOthers]]:
    import numpy as np

    generator = np.random.default_rng(1)
    makers: list[tuple[MakeFloats, MakeOthers]] = [
        (lambda shape, least, most: np.zeros(shape), np.zeros_like),
        (
            lambda shape, least, most: np.full(shape, least),
            lambda array: np.full_like(array, array.min()),
        ),
        (
            lambda shape, least, most: np.full(shape, most),
            lambda array: np.full_like(array, array.max()),
        ),
        (lambda shape, least, most: generator.uniform(least, most, shape), generator.permutation),
        (lambda shape, least, most: LARGER * generator.uniform(least, most, shape), lambda array: array),
    ]
    if values:
        makers.append((lambda shape, least, most: np.resize(np.asarray(values), shape), lambda array: array))
    return makers


def _finite_ends(arrays: Sequence[Array]) -> tuple[float, float]:
    """Return the least and the largest finite value."""
    import numpy as np

    finite = np.concatenate([array[np.isfinite(array)] for array in arrays])
    return (float(finite.min()), float(finite.max())) if finite.size else (-1.0, 1.0)


def require_same(originals: Sequence[Array], results: Sequence[Array], bound: float, scale: float) -> None:
    """Require that the results are the originals within `bound`. `scale` is the size of the sample's values:
    smaller outputs are compared by a part of it. Raises NotTheSame."""
    import numpy as np

    if len(originals) != len(results):
        raise NotTheSame(f"{len(results)} outputs, where the model has {len(originals)}")
    for old, new in zip(originals, results, strict=True):
        if old.shape != new.shape or old.dtype != new.dtype:
            raise NotTheSame(
                f"{new.dtype}{list(new.shape)}, where the model has {old.dtype}{list(old.shape)}"
            )
        before, after = old.astype("f8"), new.astype("f8")
        finite = np.isfinite(before)
        if not np.array_equal(before[~finite], after[~finite], equal_nan=True):
            raise NotTheSame("different values are infinite or NaN")
        largest = max(float(abs(before[finite]).max(initial=0)), FLOOR * scale)
        apart = float(abs(before[finite] - after[finite]).max(initial=0))
        if not apart <= bound * largest:
            raise NotTheSame(f"it differs by {apart:.3g} where the largest value is {largest:.3g}")


def prove(
    old: Batch,
    new: Batch,
    samples: Sequence[Sequence[Array]],
    values: Sequence[float],
    bound: float,
    low: float = float("-inf"),
) -> None:
    """Compute both for all inputs that are tried, and compare them. Raises NotTheSame."""
    inputs = list(probes(samples, values, low))
    originals = old(inputs)
    scale = 0.0
    for outputs in originals[: len(samples)]:
        for array in outputs:
            numbers = array[array == array]  # NaN is not equal to itself.
            scale = max(scale, float(abs(numbers).max(initial=0)))
    for before, after in zip(originals, new(inputs), strict=True):
        require_same(before, after, bound, scale)
