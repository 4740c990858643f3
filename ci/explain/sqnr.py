"""Measure how far two models' outputs are from each other, for a search: there is a figure whatever they
are."""

from __future__ import annotations

from collections.abc import Sequence

from ci.models.inputs import Array
from ci.suite.accuracy import Pair, Unusable, least_sqnr_db
from provisioning.base.units import EXACT_DB


def pairs_of(exact: Sequence[Array], outputs: Sequence[Array]) -> list[Pair]:
    """Return the outputs of one sample, each with what it is compared with."""
    pairs = enumerate(zip(exact, outputs, strict=True))
    return [Pair(f"output {number}", *arrays) for number, arrays in pairs]


def least_db(pairs: Sequence[Pair]) -> float:
    """Return the least SQNR; the lowest figure if one model alone gives no number, or another shape."""
    try:
        return max(least_sqnr_db(pairs), -EXACT_DB)
    except Unusable:
        return -EXACT_DB


def sqnr_between(exact: Sequence[Array], outputs: Sequence[Array]) -> float:
    """Return the least SQNR of one sample's outputs."""
    return least_db(pairs_of(exact, outputs)) if len(exact) == len(outputs) else -EXACT_DB
