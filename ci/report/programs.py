"""The programs of all lanes, and the models of all commands, in the one form that a page shows.

`programs_of` joins what several stages report of one program; `models_of` lists what commands such as
`compile` reported."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from ci.lanes.registry import lanes_by_stage
from ci.report.collect import ReportRow, rows_of, show_figure
from ci.suite.lane_head import LaneHead
from provisioning.base.findings import Finding, Report
from provisioning.base.rendering import plural


def cost_titles() -> dict[str, str]:
    """Maps a cost to its title in tables. The only cost of a language model is its size."""
    from ci.suite.accepted import COSTS

    titles = {name: field.title or name for name, field in COSTS.items()}
    return {**titles, "bytes": "size of the binaries"}


@dataclass(frozen=True, slots=True)
class ReportedProgram:
    """A program of a lane, or a model of a command, in all stages that have a row about it."""

    lane: str
    """The lane, or the command."""
    name: str
    rows: Mapping[str, ReportRow]
    """Maps a stage to its row."""
    findings: Collection[Finding] = ()
    head: LaneHead | None = None
    """None for a command."""

    @property
    def compiled_row(self) -> ReportRow:
        """The row of the stage that compiles the program."""
        return self._row_of_stage(0)

    @property
    def run_row(self) -> ReportRow:
        """The row of the stage that runs the program; it may be the one that compiles it."""
        return self._row_of_stage(-1)

    def _row_of_stage(self, number: int) -> ReportRow:
        stages = self.head.gate_stages if self.head else ()
        if len(stages) < 2:
            return next((self.rows[name] for name in stages if name in self.rows), self.first)
        return self.rows.get(stages[number], ReportRow())

    @property
    def device_row(self) -> ReportRow | None:
        """The row of the stage that judged it on a device."""
        return next((row for row in self.rows.values() if row.ran_on), None)

    @property
    def first(self) -> ReportRow:
        return next(iter(self.rows.values()))

    @property
    def case(self) -> str:
        return self.first.case or self.name

    @property
    def scheme(self) -> str:
        return self.first.scheme or self.first.precision

    @property
    def label(self) -> str:
        """Its name in the cell of its case and scheme."""
        run = self.first.run.removeprefix(self.scheme).lstrip("-")
        return " ".join(filter(None, [self.first.soc, run, self.head.mark if self.head else ""]))

    @property
    def verdict(self) -> str:
        return "pass" if all(row.passed for row in self.rows.values()) else "fail"

    @property
    def anchor(self) -> str:
        return f"{self.lane}-{quote(self.name, errors='replace')}"

    @property
    def brief(self) -> str:
        """A few words about it. For a command, the first line with a figure in dB, which people ask for
        first, else the first line."""
        if lines := self.first.said:
            return next((line for line in lines if " dB" in line), lines[0])
        compiled, run = self.compiled_row, self.run_row
        if self.device_row and not run.figures:
            run = self.device_row
        words = [run.through]
        if compiled.delegates is not None:
            delegates = plural(compiled.delegates, "delegate")
            words = [delegates, f"{compiled.cpu_operators or 0} on the CPU", run.through]
        sqnr, share = run.figures.get("sqnr_db"), run.figures.get("agreement")
        words.append(show_figure("sqnr_db", sqnr) if isinstance(sqnr, float) else "")
        words.append(f"{share:.6g} equal" if isinstance(share, float) else "")
        words.append("cached" if all(row.cached for row in self.rows.values()) else "")
        return ", ".join(filter(None, words))


def programs_of(reports: Iterable[Report]) -> list[ReportedProgram]:
    """The programs of all lanes, the worst first."""
    rows: dict[tuple[str, str], dict[str, ReportRow]] = {}
    findings: dict[tuple[str, str], dict[tuple[str, str], Finding]] = {}
    heads = lanes_by_stage()
    for report in reports:
        # A command that checks programs has no lane.
        lane = heads[report.stage].name if report.stage in heads else report.stage
        for name, row in rows_of(report, "programs").items():
            rows.setdefault((lane, name), {})[report.stage] = row
        for finding in report.findings:
            # Two stages report a program that was not compiled; show it once.
            own_findings = findings.setdefault((lane, finding.subject), {})
            own_findings.setdefault((finding.rule, finding.message), finding)
    by_name = {head.name: head for head in heads.values()}
    programs = [
        ReportedProgram(lane, name, stage_rows, findings.get((lane, name), {}).values(), by_name.get(lane))
        for (lane, name), stage_rows in rows.items()
    ]
    return sorted(programs, key=lambda program: (program.verdict, program.name))


def models_of(reports: Iterable[Report]) -> list[ReportedProgram]:
    """The models of all commands, the latest first."""
    models = [
        ReportedProgram(report.stage, name, {report.stage: row})
        for report in reports
        for name, row in rows_of(report, "models").items()
    ]
    return sorted(models, key=lambda model: model.first.when, reverse=True)
