"""Reading a report's metrics, which may have any form: what is not as expected counts as absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provisioning.base.findings import Metric, Report
from provisioning.base.units import in_decibels, seconds, size

Row = Mapping[str, Metric]


def mapping(value: Metric) -> Row:
    return value if isinstance(value, dict) else {}


def entries(value: Metric) -> Sequence[Metric]:
    return value if isinstance(value, list) else []


def word(row: Row, key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""


def number(row: Row, key: str) -> float | None:
    value = row.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18:
        return float(value)
    return None


def in_unit(key: str, value: float) -> str:
    """The figure with this name, in its unit: decibels, time or bytes."""
    if key.endswith("_db"):
        return in_decibels(value)
    return seconds(value) if key.endswith("seconds") else size(int(value))


ORDER = ("fail", "pass")
"""The worst verdict first."""


def verdict_of(*rows: Row) -> str:
    """The worst of a program's rows; one without a verdict has failed."""
    words = [word(row, "verdict") for row in rows]
    return min((text if text in ORDER else ORDER[0] for text in words), key=ORDER.index, default=ORDER[0])


def rows_of(report: Report, key: str) -> dict[str, Row]:
    """The rows of a table in the report, by name."""
    return {name: mapping(row) for name, row in mapping(report.metrics.get(key)).items()}
