from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioning.base.units import seconds, size


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (999_500, "1 MB"), (2_261_832_373, "2.26 GB"), (5 * 10**12, "5,000 GB")],
)
def test_sizes_read_well(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.25, "0.25 s"),
        (9.996, "10 s"),
        (119.9, "2 min 00 s"),
        (134.2, "2 min 14 s"),
        (7623, "2 h 07 min"),
        (float("nan"), "? s"),
    ],
)
def test_times_read_well(value: float, shown: str) -> None:
    assert seconds(value) == shown


@given(st.floats(0, 1e15))
def test_any_size_can_be_shown(count: float) -> None:
    assert size(count).split()[1] in ("B", "kB", "MB", "GB")
