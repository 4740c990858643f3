"""Outputs of indices, as of argmax: two indices are as good as each other if the values that they choose are
equal within the noise of quantizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ci.suite.lost_parts import WRONG_DB
from provisioning.base.units import decibels

if TYPE_CHECKING:
    from ci.models.inputs import Array

MOST_TIED, MOST_TIED_SHARE = 5, 0.01
"""At most this many values may be equal within the usual noise, for any of their indices to be right."""
USUAL = 0.25
"""The usual noise as a share of the largest noise, for a few thousand normally distributed values."""
HALF_NOISE = 2.0**-8
"""How far fp16 values are from float's, as a share of the largest value. In a deep model this exceeds one
rounding."""


class Among(NamedTuple):
    """The values that the indices of an output chose among."""

    values: Array
    """The expected values; their first dimension is the one that the indices choose along."""
    noise: float
    """Two values that differ by at most this count as equal."""

    def ties(self, truth: Array, indices: Array) -> Array:
        """A flat array that is true where both indices are the same or choose equal values."""
        import numpy

        values = self.values.reshape(len(self.values), -1)
        is_inside = (indices >= 0) & (indices < len(values))
        true_rows, rows = (
            places.reshape(-1, values.shape[1]).astype(numpy.int64)
            for places in (truth, numpy.where(is_inside, indices, 0))
        )
        best = numpy.take_along_axis(values, true_rows, 0)
        chosen = numpy.take_along_axis(values, rows, 0)
        # Where many are as good as the best, nothing is chosen any more.
        tied = numpy.stack([(abs(values - row) <= self.noise * USUAL).sum(0) for row in best])
        is_choice = tied <= max(MOST_TIED, MOST_TIED_SHARE * len(values))
        is_near = (abs(best - chosen) <= self.noise) & is_choice
        alike: Array = numpy.equal(truth, indices).ravel() | (is_near.ravel() & is_inside.ravel())
        return alike


def tie_noise(float_values: Sequence[Array], quantized: Sequence[Array], dim: int) -> float:
    """How far apart two values may be and still count as equal, when an index chooses between them. Computed
    from the values of float and of the quantized model, if there is one: each may be off by the largest error
    of quantizing. If the differences along `dim` are lost, nothing counts as equal."""
    import numpy

    floats = numpy.stack([*float_values]).astype(numpy.float64)
    if len(quantized):
        error = numpy.stack([*quantized]) - floats
    else:
        error = numpy.asarray(abs(floats).max() * HALF_NOISE / 2)
    # Samples are stacked before the first dimension.
    axis = dim + 1 if dim >= 0 else dim
    return _noise(floats - floats.mean(axis=axis, keepdims=True), error)


Sides = Sequence[tuple["Array", "Array | float"]]
"""It has both sides of a comparison for each sample."""


def comparison_noise(floats: Sides, quantized: Sides = ()) -> float:
    """How far apart the two sides of a comparison may be, and rounding still decides it. Computed as
    `tie_noise` does. If the differences of the sides are lost, rounding explains nothing."""
    import numpy

    differences = numpy.stack([left - right for left, right in floats]).astype(numpy.float64)
    if len(quantized):
        error = numpy.stack([left - right for left, right in quantized]) - differences
    else:
        sizes = [numpy.abs(numpy.asarray(side)).max() for sides in floats for side in sides]
        largest = float(max(sizes))
        error = numpy.asarray(largest * HALF_NOISE / 2)
    return _noise(differences, error)


def _noise(differences: Array, error: Array) -> float:
    kept_db = decibels(float((differences**2).mean()), float((error**2).mean()))
    return 2 * float(abs(error).max()) if kept_db >= WRONG_DB else 0.0
