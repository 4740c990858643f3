"""Reading a report's metrics, which may have any form: what is not as expected is absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from provisioning.base.findings import Metric, Report
from provisioning.base.units import in_decibels, seconds, size

Row = Mapping[str, Metric]

Lane = Literal["executorch", "onnx", "llm"]
LANES: dict[str, Lane] = {
    "test_lowering": "executorch", "test_emulator": "executorch", "test_onnx": "onnx", "test_llm": "llm",
}  # fmt: skip
"""By stage: the lane of the programs in its report."""


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


UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("*_db", in_decibels),
    ("*seconds", seconds),
    ("*_bytes", size),
    ("ddr_*", size),
    ("passed", lambda value: "pass" if value else "fail"),
    ("*", lambda value: f"{value:.6g}"),
)
"""By the form of a figure's name: how its value is shown."""


def in_unit(key: str, value: float) -> str:
    return next(shown(value) for form, shown in UNITS if fnmatchcase(key, form))


ORDER = ("fail", "pass")
"""The worst verdict first."""


def verdict_of(*rows: Row) -> str:
    """The worst of a program's rows; one without a verdict has failed."""
    words = [word(row, "verdict") for row in rows]
    return min((text if text in ORDER else ORDER[0] for text in words), key=ORDER.index, default=ORDER[0])


def rows_of(report: Report, key: str) -> dict[str, Row]:
    """The rows of a table in the report, by name."""
    return {name: mapping(row) for name, row in mapping(report.metrics.get(key)).items()}


def rows_of_models(reports: Iterable[Report]) -> dict[str, list[Row]]:
    """The rows of each program of a suite, and of each model of a command, in all stages."""
    rows: dict[str, list[Row]] = {}
    for report in reports:
        for table in ("programs", "models"):
            for name, row in rows_of(report, table).items():
                rows.setdefault(name, []).append(row)
    return rows
