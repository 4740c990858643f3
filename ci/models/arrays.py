"""Samples in an .npz, each array as `<index>/<name>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    # Commands that find their work done need no arrays, and it takes a tenth of their time to import.
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"
Sample: TypeAlias = dict[str, Array]
"""The inputs or the outputs of one inference, by name."""


def save(path: Path, samples: Sequence[Mapping[str, Array]]) -> None:
    import numpy as np

    arrays = {f"{index}/{name}": array for index, row in enumerate(samples) for name, array in row.items()}
    np.savez(path, **arrays)  # type: ignore[arg-type]


def saved(path: Path) -> list[Sample]:
    import numpy as np

    samples: dict[int, Sample] = {}
    with np.load(path) as archive:
        for key in archive.files:
            index, _, name = key.partition("/")
            samples.setdefault(int(index), {})[name] = archive[key]
    return [samples[index] for index in sorted(samples)]
