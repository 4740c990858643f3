"""Read the reports in a folder: those of one profile, the newest run first. Each file and each expected stage
is accounted for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from ci.suite.options import GATE
from ci.work import read
from provisioning.base.commands import join_fixes, quote_command, session
from provisioning.base.findings import (
    Finding,
    Metric,
    Outcome,
    Report,
    Severity,
    outcome_of,
)
from provisioning.base.foreign import map_values, visible
from provisioning.base.parser import Parser
from provisioning.base.rendering import DID_NOT_RUN, EARLIER_RUN
from provisioning.base.stage_run import RUN
from provisioning.base.units import format_decibels, seconds, size

PREPARING = ("provision", "build_runner")
"""Stages that the commands for one model start if they must: an earlier pass is no news about a model."""

MERGE = "merge"
"""The name of a run that merges the reports of several jobs, and the stage of reports that could not be
read."""

ONE_DAY = dt.timedelta(days=1)
"""Reports that began this much earlier than the newest do not belong on the same page."""


def collect(directory: Path) -> list[Report]:
    """Return every stage's report: first those that the last gate was to run, in its order, then those of
    single models, then the others by name.

    A report of an earlier run says so, and a gate takes only its own run."""
    reports, problems = _read_all(directory)
    page, left_out = _one_page(reports)
    stages = list(_stages_of(page.get(GATE)))
    models = [stage for stage, report in page.items() if is_about_models(report)]
    rows = [
        page.get(stage)
        or did_not_run(stage, left_out.get(stage, f"there is no report of {stage}"), due=stage in stages)
        for stage in dict.fromkeys([*stages, *models, *page, *left_out])
        if stage != GATE
    ]
    if problems:
        rows.append(_stand_in("report", tuple(problems), session("report", "--reports", directory)))
    return rows


def merge(folder: Path, into: Path) -> None:
    """Write one report for each stage into `into`, merged from those of several jobs in folders below
    `folder`."""
    by_stage: dict[str, list[Report]] = {}
    problems: list[Finding] = []
    for job_folder in sorted([folder, *(path for path in folder.iterdir() if path.is_dir())]):
        reports, unreadable = _read_all(job_folder)
        problems += unreadable
        for stage, report in reports.items():
            by_stage.setdefault(stage, []).append(report)
    into.mkdir(parents=True, exist_ok=True)
    for shards in by_stage.values():
        _merge_shards(shards).write(into)
    if problems:
        _stand_in(MERGE, tuple(problems), session("report", "--merge", folder)).write(into)


def _merge_shards(reports: Sequence[Report]) -> Report:
    """Merge the shards of one stage: each has its own rows in the tables. Other metrics are dropped, because
    none holds for all shards."""
    first = reports[0]
    tables: dict[str, dict[str, Metric]] = {}
    for report in reports:
        for name, value in report.metrics.items():
            if isinstance(value, dict):
                tables.setdefault(name, {}).update(value)
    ranks = list(Outcome)
    return replace(
        first,
        outcome=max((report.outcome for report in reports), key=ranks.index),
        started=min(report.started for report in reports),
        seconds=sum(report.seconds for report in reports),
        findings=tuple(dict.fromkeys(finding for report in reports for finding in report.findings)),
        artifacts=tuple(artifact for report in reports for artifact in report.artifacts),
        metrics={**tables},
        command=first.command if len(reports) == 1 else session(first.stage),
        run=MERGE,
    )


def did_not_run(stage: str, reason: str, command: str = "", *, due: bool = True) -> Report:
    """Make a report in place of a stage that did not run; an error if it was `due`."""
    severity = Severity.ERROR if due else Severity.NOTE
    command = command or session(stage)
    return _stand_in(stage, (Finding(DID_NOT_RUN, severity, stage, reason, command),), command)


def report_in(path: Path) -> Report:
    """Read a report. Raises ValueError with the reason if the file is no report, contradicts itself, or has
    rows that no stage writes."""
    from pydantic import ValidationError

    report = Report.read(path)
    if report.outcome is Outcome.PASS and outcome_of(report.findings) is not Outcome.PASS:
        raise ValueError("its outcome is pass, and it holds an error")
    try:
        rows_of(report, "programs", "models")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return report


def _read_all(directory: Path) -> tuple[dict[str, Report], list[Finding]]:
    reports: dict[str, Report] = {}
    problems: list[Finding] = []
    for path in sorted(directory.glob("*.json")):
        try:
            report = report_in(path)
            if report.stage != path.stem:
                raise ValueError(f"{path}: holds the report of {report.stage}")
            _start_of(report)
            reports[report.stage] = clean_report(report, Parser.user_folder().absolute())
        except (OSError, ValueError) as error:
            fix = f"run the stage again, or remove the file if it is no report: {quote_command('rm', path)}"
            problems.append(Finding("report-unreadable", Severity.ERROR, path.name, str(error), fix))
    return reports, problems


def clean_report(report: Report, folder: Path) -> Report:
    """Clean a report that anybody may have written: no text controls a terminal or a CI runner, and paths are
    as a user in this folder would write them."""

    def clean(value: object) -> object:
        if isinstance(value, str) and not isinstance(value, Enum):
            return visible(value).replace(f"{folder}/", "")
        return value

    cleaned: Report = map_values(report, clean)
    return cleaned


def _one_page(reports: Mapping[str, Report]) -> tuple[dict[str, Report], dict[str, str]]:
    """Choose the reports that belong on a page with the newest one; also return why each other one is left
    out."""
    times = {stage: when for stage, report in reports.items() if (when := _start_of(report))}
    by_age = sorted(times, key=lambda stage: times[stage], reverse=True)
    if not by_age:
        return dict(reports), {}
    newest = reports[by_age[0]]
    profile = next((reports[stage].profile for stage in by_age if reports[stage].profile), "")
    alone = GATE in reports and _same_run(reports[GATE], newest)
    page: dict[str, Report] = {}
    left_out: dict[str, str] = {}
    for stage, report in reports.items():
        when = times.get(stage)
        date = f"{when:%Y-%m-%d %H:%M %Z}" if when else "at no known time"
        message = f"its report is of an earlier run, {date}"
        old = when is not None and times[newest.stage] - when > ONE_DAY
        same = _same_run(report, newest)
        if is_about_models(report) and not alone:
            page[stage] = report
        elif is_about_models(report) and not same:
            # A command that was typed before the gate is none of its stages.
            continue
        elif report.profile not in ("", profile):
            left_out[stage] = f"its report is of profile {report.profile}, and this run's is {profile}"
        elif old or (not same and (alone or when is None)):
            left_out[stage] = message
        elif same:
            page[stage] = report
        else:
            fix = join_fixes([report.command, f"or set {RUN} alike for calls that belong together"], ", ")
            note = Finding(EARLIER_RUN, Severity.NOTE, stage, message, fix)
            page[stage] = replace(report, findings=(note, *report.findings))
    # A gate says itself which stages it was to run.
    no_news = [stage for stage in PREPARING if GATE not in page and _is_no_news(reports.get(stage), newest)]
    for stage in no_news:
        page.pop(stage, None)
        left_out.pop(stage, None)
    return page, left_out


def _is_no_news(report: Report | None, newest: Report) -> bool:
    """Whether a model only needed the stage, which an earlier run had passed already."""
    if report is None or _same_run(report, newest):
        return False
    return is_about_models(newest) and report.outcome is Outcome.PASS


def _same_run(one: Report, other: Report) -> bool:
    """Whether two reports are of one run; reports that name no run are of different runs."""
    return one is other or bool(one.run and one.run == other.run)


def _start_of(report: Report) -> dt.datetime | None:
    """When the report's stage began. Raises ValueError if it is no time."""
    if not report.started:
        return None
    when = dt.datetime.fromisoformat(report.started)
    return when if when.tzinfo else when.replace(tzinfo=dt.timezone.utc)


def _stages_of(gate: Report | None) -> Iterable[str]:
    rows = gate.metrics.get("stages") if gate else None
    names = [row.get("stage") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [name for name in names if isinstance(name, str)]


def _stand_in(stage: str, findings: tuple[Finding, ...], command: str) -> Report:
    return Report(
        stage=stage,
        profile="",
        target="",
        outcome=Outcome.ERROR,
        started="",
        seconds=0.0,
        findings=findings,
        artifacts=(),
        metrics={},
        command=command,
    )


# A report's metrics


@dataclass(frozen=True, slots=True)
class TextFigure:
    """How well a language model predicts held-out text, with the standard error."""

    value: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class PlacedOperators:
    """The operators in one delegate, or on the CPU."""

    where: str
    count: int
    operators: dict[str, int]


@dataclass(frozen=True, slots=True)
class LayersPart:
    """A part of a language model, measured by itself."""

    name: str
    output: str
    db: float | None = None
    least_db: float | None = None
    cpu_db: float | None = None


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    """What a device measured of a program's inferences."""

    latency_us: float = 0.0
    spread_us: float = 0.0
    peak_bytes: float | None = None
    load_us: float | None = None
    layers: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceOfRow:
    """The device that ran a program."""

    way: str
    device: str
    build_id: str = ""
    profile: LatencyProfile | None = None


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A row of a report about a program of a stage, or a model of a command. Its fields are the names that
    tables of reports have."""

    verdict: str = ""
    command: str = ""
    case: str = ""
    run: str = ""
    soc: str = ""
    scheme: str = ""
    precision: str = ""
    through: str = ""
    cached: bool = False
    seconds: float | None = None
    delegates: int | None = None
    cpu_operators: int | None = None
    partition: list[PlacedOperators] = field(default_factory=list)
    """The graph in order: the parts that run on the HTP, and the parts on the CPU between them."""
    figures: dict[str, float | dict[str, TextFigure] | None] = field(default_factory=dict)
    thresholds: dict[str, float | None] = field(default_factory=dict)
    costs: dict[str, float | None] = field(default_factory=dict)
    bytes: float | None = None
    """The size of a language model's binaries."""
    baseline: dict[str, float | None] = field(default_factory=dict)
    baseline_build_id: str = ""
    parts: list[LayersPart] = field(default_factory=list)
    slices: list[str] = field(default_factory=list)
    ran_on: DeviceOfRow | None = None
    """Its figures are then of this device."""
    emulated: dict[str, float | None] = field(default_factory=dict)
    """The emulator's figures against float, beside a device's."""
    against_emulator: dict[str, float | None] = field(default_factory=dict)
    """The device's figures against the emulator."""
    when: str = ""
    said: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"


def rows_of(report: Report, *tables: Literal["programs", "models"]) -> dict[str, ReportRow]:
    """The rows of these tables in the report, by name; `report_in` has refused a report with others."""
    rows: dict[str, ReportRow] = {}
    for table in tables:
        rows |= read(dict[str, ReportRow], report.metrics.get(table, {}))
    return rows


def is_about_models(report: Report) -> bool:
    """Whether a report is about single models, one command after the other."""
    return "models" in report.metrics


UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("*_db", format_decibels),
    ("*seconds", seconds),
    ("*bytes", size),
    ("ddr_*", size),
    ("passed", lambda value: "pass" if value else "fail"),
    ("*", lambda value: f"{value:.6g}"),
)
"""Maps the form of a figure's name to how its value is shown; the first match counts."""


def show_figure(key: str, value: float) -> str:
    return next(render(value) for form, render in UNITS if fnmatchcase(key, form))
