"""The page's section on ONNX Runtime: its programs beside those of ExecuTorch, and all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ci.report.programs import accuracy_of, offers_in, slices_of
from ci.report.values import ORDER, Bar, Row, mapping, number, rows_of, verdict_of
from provisioning.base.findings import Report

STAGE = "test_onnx"


@dataclass(frozen=True, slots=True)
class OnnxRow:
    name: str
    verdict: str
    onnx: Mapping[str, float]
    executorch: Mapping[str, float]
    accuracy: Sequence[Bar]
    slices: Sequence[str]
    offers: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class OnnxPage:
    rows: Sequence[OnnxRow]
    other_builds: str
    """The QNNs that baselines are of, if they are others."""
    beside: Sequence[OnnxRow]
    """The programs that both lanes have."""
    builds: Sequence[str]
    """The QNN builds of ONNX and of ExecuTorch."""
    agreed: int
    """The number of rows in which ExecuTorch's figures are its baseline's."""


def onnx_of(reports: Iterable[Report]) -> OnnxPage | None:
    """None if ONNX Runtime's stage did not run."""
    every = [row for run in reports if run.stage == STAGE for row in rows_of(run, "programs").items()]
    programs = dict(every)
    if not programs:
        return None
    shown = [
        OnnxRow(
            name,
            verdict_of(row),
            _figures(_lane(row, "onnx")),
            _figures(_lane(row, "executorch")),
            list(accuracy_of(row)),
            slices_of(row),
            offers_in(row),
        )
        for name, row in programs.items()
    ]
    pairs = {name: row for name, row in programs.items() if _lane(row, "executorch")}
    builds = [
        {str(_lane(row, lane).get("build_id")) for row in pairs.values()} for lane in ("onnx", "executorch")
    ]
    others = {str(row["baseline_build_id"]) for row in programs.values() if "baseline_build_id" in row}
    worst_first = sorted(shown, key=lambda program: ORDER.index(program.verdict))
    return OnnxPage(
        worst_first,
        ", ".join(sorted(others)),
        [program for program in shown if program.name in pairs],
        [", ".join(sorted(build)) for build in builds],
        sum(bool(_lane(row, "executorch").get("agreed")) for row in pairs.values()),
    )


def _figures(row: Row) -> dict[str, float]:
    return {key: value for key in row if (value := number(row, key)) is not None}


def _lane(row: Row, lane: str) -> Row:
    return mapping(mapping(row.get("lanes")).get(lane))
