"""Compares two runs of one case: at one precision and for one chip, through ExecuTorch and ONNX Runtime.

ExecuTorch's figures come from the reports of this run, else from its baseline, because the two lanes live in
environments that need not fit together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.lanes.onnx.suite import OnnxProgram
from ci.suite.accepted import load_baseline
from ci.suite.precision import PRECISIONS, written_name
from ci.suite.suite_file import read_suite
from provisioning.base.commands import joined, session
from provisioning.base.findings import Finding, Report, Severity
from provisioning.base.units import bound_in_decibels, in_decibels

STAGES = ("test_lowering", "test_emulator")
LANE = "executorch"
NAMED_OTHERWISE = {"label", "qat", "backend"}
AGAIN = joined(map(session, ("provision", "test_lowering", "test_emulator", "test_onnx")), " && ")


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """One lane's figures of a program; None if unknown."""

    cosine: float | None
    sqnr_db: float | None
    size: int | None
    ddr_read: int | None
    ddr_written: int | None
    build_id: str
    agreed: bool = False
    """Whether they are from the baseline, not measured in this run."""


@dataclass(frozen=True, slots=True)
class CrossChecked:
    name: str
    onnx: LaneFigures
    executorch: LaneFigures

    @property
    def difference_db(self) -> float | None:
        """How much more accurate ONNX Runtime's program is."""
        ours, theirs = self.onnx.sqnr_db, self.executorch.sqnr_db
        return None if ours is None or theirs is None else ours - theirs

    def agrees(self, tolerance_db: float) -> bool:
        return self.difference_db is None or abs(self.difference_db) <= tolerance_db


def counterpart(program: OnnxProgram) -> str:
    """The other lane's name for a run that computes the same; empty with a label: it has other settings."""
    if program.run.label:
        return ""
    return f"{program.case_name}/{PRECISIONS[program.run.precision].executorch}/{program.soc}"


def pairs_of(
    programs: Sequence[OnnxProgram],
    lanes: Mapping[str, LaneFigures],
    others: Mapping[tuple[Path, str], LaneFigures],
) -> list[CrossChecked]:
    """The programs that both lanes have; `lanes` has ours by name, `others` theirs by suite and name."""
    return [
        CrossChecked(program.name, lanes[program.name], other)
        for program in programs
        if program.name in lanes and (other := others.get((program.suite, counterpart(program))))
    ]


def executorch_lane(
    programs: Sequence[OnnxProgram], reports: Path, profile: str, run: str
) -> dict[tuple[Path, str], LaneFigures]:
    """By suite and name, the counterparts with figures of this run, else of their baseline."""
    rows = {stage: _rows(reports / f"{stage}.json", profile, run) for stage in STAGES}
    build_id = rows[STAGES[0]][1] or rows[STAGES[1]][1]
    lanes: dict[tuple[Path, str], LaneFigures] = {}
    for suite in dict.fromkeys(program.suite for program in programs if program.suite.is_file()):
        names = _names(suite) & {counterpart(program) for program in programs if program.suite == suite}
        if not names:
            continue
        baseline = load_baseline(suite, profile, LANE)
        for name in names:
            lowered, emulated = (_row(rows[stage][0], name, suite) for stage in STAGES)
            agreed = baseline.of(name)
            if lowered or emulated:
                lanes[suite, name] = lane_figures(
                    lowered.get("costs", {}), emulated.get("figures", {}), build_id
                )
            elif agreed is not None:
                costs = agreed.model_dump()
                lanes[suite, name] = lane_figures(costs, agreed.accuracy, agreed.build_id, agreed=True)
    return lanes


def _names(suite: Path) -> set[str]:
    """The other lane's programs without a setting beside their precision."""
    cases = read_suite(suite).raw.get(LANE, {})
    return {
        f"{name}/{written_name(run.get('precision'))}/{soc}"
        for name, case in cases.items()
        for run in case["run"]
        if not run.keys() & NAMED_OTHERWISE
        for soc in run.get("socs") or ()
    }


def _row(rows: Mapping[str, Mapping[str, Any]], name: str, suite: Path) -> Mapping[str, Any]:
    row = rows.get(name, {})
    return row if row.get("suite") == str(suite) else {}


def _rows(path: Path, profile: str, run: str) -> tuple[dict[str, Mapping[str, Any]], str]:
    """The report's rows; none of another profile or run, which may be about other models."""
    try:
        report = Report.read(path)
    except (OSError, ValueError):
        return {}, ""
    if report.profile != profile or not run or report.run != run:
        return {}, ""
    metrics: Mapping[str, Any] = report.metrics
    rows = metrics.get("programs")
    return (rows if isinstance(rows, dict) else {}), str(metrics.get("build_id", ""))


def lane_figures(
    costs: Mapping[str, Any], figures: Mapping[str, Any], build_id: str, *, agreed: bool = False
) -> LaneFigures:
    size = costs.get("pte_bytes") or costs.get("context_bytes")
    values = (size, costs.get("ddr_read"), costs.get("ddr_written"))
    size, read, written = (None if value is None else int(value) for value in values)
    near = figures.get("cosine"), figures.get("sqnr_db")
    return LaneFigures(*near, size, read, written, build_id, agreed)


def verdicts(pairs: Sequence[CrossChecked], tolerance_db: float, stage: str) -> Iterator[Finding]:
    """An error for a program that is much worse in one lane; a warning if compared with a baseline only."""
    if not pairs:
        message = "no case here has a run through ExecuTorch at the same precision for the same chip"
        yield Finding("onnx-cross-check", Severity.NOTE, stage, f"{message}: nothing was compared", AGAIN)
        return
    if agreed := sum(pair.executorch.agreed for pair in pairs):
        message = f"for {agreed} of {len(pairs)} programs ExecuTorch's figures are not of this run"
        yield Finding("onnx-cross-check", Severity.NOTE, stage, message, AGAIN)
    for pair in pairs:
        if pair.difference_db is None or pair.agrees(tolerance_db):
            continue
        worse, ours, theirs = pair.difference_db < 0, pair.onnx, pair.executorch
        whose = "ExecuTorch's baseline" if theirs.agreed else "ExecuTorch"
        severity = Severity.WARNING if theirs.agreed else Severity.ERROR
        reached = [in_decibels(row.sqnr_db or 0.0) for row in (ours, theirs)]
        message = (
            f"ONNX Runtime reaches {reached[0]} and {whose} {reached[1]}: expected at most"
            f" {bound_in_decibels(tolerance_db)} between them, found {in_decibels(abs(pair.difference_db))}"
        )
        fix = f"look for what {'ONNX Runtime' if worse else whose} quantizes or computes otherwise"
        yield Finding("onnx-cross-check", severity, pair.name, message, fix)
