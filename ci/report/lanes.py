"""The page's section on ONNX Runtime: its programs beside those of ExecuTorch, and all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ci.report.trends import Glance, glance
from ci.report.values import Row, mapping, number, passed, rows_of
from provisioning.base.findings import Report
from provisioning.base.units import size

STAGE = "test_onnx"
FORMS = {"sqnr_db": ".1f", "cosine": ".6f"}
"""The formats of figures that are not bytes."""
COLUMNS = {
    "sqnr_db": "SQNR dB",
    "cosine": "Cosine",
    "size": "Size",
    "ddr_read": "DDR read",
    "ddr_written": "DDR written",
}
BESIDE = {key: name for key, name in COLUMNS.items() if key != "cosine"}
LANES = {"onnx": "ONNX", "executorch": "ExecuTorch"}


@dataclass(frozen=True, slots=True)
class Number:
    key: float
    """What it is sorted by."""
    text: str


@dataclass(frozen=True, slots=True)
class OnnxRow:
    name: str
    passed: bool
    figures: Sequence[Number]
    """One for each column."""


@dataclass(frozen=True, slots=True)
class Onnx:
    columns: Sequence[str]
    rows: Sequence[OnnxRow]
    other_builds: str
    """The QNNs that baselines are of, if they are others."""
    beside: Mapping[str, Sequence[Sequence[Number]]]
    """Of each program that both lanes have: for each of its columns one number a lane."""
    beside_columns: Sequence[str]
    lanes: Sequence[str]
    builds: Sequence[str]
    """One for each lane."""
    agreed: int
    """How many figures of ExecuTorch are its baseline's."""
    glance: Glance | None


def onnx_of(reports: Sequence[Report]) -> Onnx | None:
    """None if ONNX Runtime's stage did not run."""
    every = [row for each in reports if each.stage == STAGE for row in rows_of(each, "programs").items()]
    programs = dict(sorted(dict(every).items(), key=lambda item: passed(item[1])))
    pairs = {name: row for name, row in dict(every).items() if _lane(row, "executorch")}
    if not programs:
        return None
    others = {str(row["baseline_build_id"]) for row in programs.values() if "baseline_build_id" in row}
    builds = [{str(_lane(row, lane).get("build_id")) for row in pairs.values()} for lane in LANES]
    return Onnx(
        [*COLUMNS.values()],
        [
            OnnxRow(name, passed(row), [_figure(_lane(row, "onnx"), key) for key in COLUMNS])
            for name, row in programs.items()
        ],
        ", ".join(sorted(others)),
        {
            name: [[_figure(_lane(row, lane), key) for lane in LANES] for key in BESIDE]
            for name, row in pairs.items()
        },
        [*BESIDE.values()],
        [*LANES.values()],
        [", ".join(sorted(each)) for each in builds],
        sum(bool(_lane(row, "executorch").get("agreed")) for row in pairs.values()),
        glance([(name, "", [row]) for name, row in programs.items()]),
    )


def _figure(figures: Row, key: str) -> Number:
    value = number(figures, key)
    if value is None:
        return Number(-1, "–")
    return Number(value, format(value, FORMS[key]) if key in FORMS else size(int(value)))


def _lane(row: Row, lane: str) -> Row:
    return mapping(mapping(row.get("lanes")).get(lane))
