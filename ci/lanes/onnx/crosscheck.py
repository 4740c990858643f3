"""Compares two runs of one case: at one precision and for one chip, through ExecuTorch and ONNX Runtime.

ExecuTorch's figures come from the reports of this run, else from its baseline, because the two lanes live in
environments that need not fit together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci.lanes.onnx.suite import OnnxProgram
from ci.plain import read
from ci.suite.accepted import load_baseline
from ci.suite.precision import PRECISIONS, written_name
from ci.suite.suite_file import read_suite
from provisioning.base.commands import joined, session
from provisioning.base.findings import Finding, Report, Severity
from provisioning.base.units import bound_in_decibels, in_decibels

DDR = ("ddr_read", "ddr_written")
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

    @classmethod
    def of(
        cls,
        costs: Mapping[str, float | None],
        figures: Mapping[str, float | None],
        build_id: str,
        *,
        agreed: bool = False,
    ) -> LaneFigures:
        values = (costs.get("pte_bytes") or costs.get("context_bytes"), *map(costs.get, DDR))
        size, read, written = (None if value is None else int(value) for value in values)
        near = figures.get("cosine"), figures.get("sqnr_db")
        return cls(*near, size, read, written, build_id, agreed)


@dataclass(frozen=True, slots=True)
class ReportedProgram:
    """What the other lane's report says of a program, as far as it is compared. A figure that is no number is
    None there."""

    suite: str = ""
    costs: Mapping[str, float | None] = field(default_factory=dict)
    figures: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportedPrograms:
    build_id: str = ""
    programs: Mapping[str, ReportedProgram] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, profile: str, run: str) -> ReportedPrograms:
        """None of another profile or run, which may be about other models."""
        try:
            report = Report.read(path)
            ours = run and report.profile == profile and report.run == run
            return read(cls, report.metrics) if ours else cls()
        except (OSError, ValueError):
            return cls()

    def of(self, suite: Path, name: str) -> ReportedProgram:
        program = self.programs.get(name, ReportedProgram())
        return program if program.suite == str(suite) else ReportedProgram()


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
    lowering, emulator = (ReportedPrograms.read(reports / f"{stage}.json", profile, run) for stage in STAGES)
    lanes: dict[tuple[Path, str], LaneFigures] = {}
    for suite in dict.fromkeys(program.suite for program in programs if program.suite.is_file()):
        names = _names(suite) & {counterpart(program) for program in programs if program.suite == suite}
        baseline = load_baseline(suite, profile, LANE)
        for name in names:
            costs, figures = lowering.of(suite, name).costs, emulator.of(suite, name).figures
            if costs or figures:
                build_id = lowering.build_id or emulator.build_id
                lanes[suite, name] = LaneFigures.of(costs, figures, build_id)
            elif agreed := baseline.of(name):
                accepted = {cost: getattr(agreed, cost) for cost in ("pte_bytes", *DDR)}
                known = LaneFigures.of(accepted, agreed.accuracy, agreed.build_id, agreed=True)
                lanes[suite, name] = known
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
        difference, ours, theirs = pair.difference_db, pair.onnx, pair.executorch
        if difference is None or abs(difference) <= tolerance_db:
            continue
        whose = "ExecuTorch's baseline" if theirs.agreed else "ExecuTorch"
        severity = Severity.WARNING if theirs.agreed else Severity.ERROR
        reached = [in_decibels(row.sqnr_db or 0.0) for row in (ours, theirs)]
        message = (
            f"ONNX Runtime reaches {reached[0]} and {whose} {reached[1]}: expected at most"
            f" {bound_in_decibels(tolerance_db)} between them, found {in_decibels(abs(difference))}"
        )
        fix = f"look for what {'ONNX Runtime' if difference < 0 else whose} quantizes or computes otherwise"
        yield Finding("onnx-cross-check", severity, pair.name, message, fix)
