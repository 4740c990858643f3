"""Values that one line of Python can say, in place of a model's own: for the reproducers of `reduce`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ci.pipeline.models.arrays import Array

LITERAL = 16
"""At most so many values are written one by one."""
FORMS = ("full", "linspace", "random")
"""The simplest first."""
FIRST = "first"
"""The form of a model's own values: those of the first sample."""


def simple(arrays: Sequence[Array], form: str) -> Array:
    """An array with values of this form between their least and largest; "" is the first itself."""
    import numpy as np

    array: Array = eval(source_of(arrays, form), {"np": np}) if form else np.asarray(arrays[0])  # noqa: S307
    return array


def can_be_said(array: Array, form: str) -> bool:
    return bool(form) or array.size <= LITERAL


def source_of(arrays: Sequence[Array], form: str) -> str:
    """What makes it, of numpy as np."""
    import numpy as np

    first, shape = arrays[0], tuple(arrays[0].shape)
    dtype = f'"{first.dtype}"'
    if form not in FORMS or not first.size:
        return f"np.array({_literal(first)}, {dtype})"
    if first.dtype.kind == "b":
        return f"np.ones({shape}, {dtype})"
    finite = np.concatenate([array[np.isfinite(array)].ravel() for array in arrays])
    low, high = (round_of(bound) for bound in (finite.min(), finite.max())) if finite.size else (0.0, 0.0)
    if first.dtype.kind in "iu":
        low, high = int(finite.min()), int(finite.max())
        sources: dict[str, Callable[[], str]] = {
            "full": lambda: f"np.full({shape}, {high}, {dtype})",
            "linspace": lambda: f"(np.arange({first.size}) % {high - low + 1} + {low})",
            "random": lambda: f"np.random.default_rng(0).integers({low}, {high + 1}, {shape})",
        }
    else:
        sources = {
            "full": lambda: f"np.full({shape}, {high if abs(high) >= abs(low) else low}, {dtype})",
            "linspace": lambda: f"np.linspace({low}, {high}, {first.size}, dtype={dtype})",
            "random": lambda: f"np.random.default_rng(0).uniform({low}, {high}, {shape})",
        }
    source = sources[form]()
    if form == "linspace":
        source += f".reshape({shape})"
    if form == "random" or (form == "linspace" and first.dtype.kind in "iu"):
        source += f".astype({dtype})"
    return source


def round_of(value: float) -> float:
    """With two digits."""
    return float(f"{float(value):.2g}")


def _literal(array: Array) -> str:
    return repr(array.tolist()).replace("nan", "np.nan").replace("inf", "np.inf").replace(" ", "")


def cut(array: Array, sizes: Sequence[tuple[int, int]]) -> Array:
    """Its first part, along every dimension of these sizes."""
    import numpy as np

    for old, new in sizes:
        array = array[tuple(slice(new if size == old else None) for size in array.shape)]
    return np.ascontiguousarray(array).reshape(array.shape)
