"""Reading reports/: one profile, the newest run first. Each file and each expected stage is accounted for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

from provisioning.base.command_line import Parser
from provisioning.base.commands import joined, quoted, session
from provisioning.base.findings import (
    Finding,
    Metric,
    Outcome,
    Report,
    Severity,
    outcome_of,
)
from provisioning.base.foreign import mapped, visible
from provisioning.base.rendering import DID_NOT_RUN, EARLIER_RUN, NOT_ASKED, plural
from provisioning.base.stage_run import RUN

GATE = "gate"
"""The gate's own report repeats the stages' reports, so it is left out beside them."""

MERGE = "merge"
"""The run of all reports of several jobs, and the stage of those that could not be read."""

ONE_DAY = dt.timedelta(days=1)
"""Reports that began this much earlier than the newest do not belong on the same page."""


def collect(directory: Path) -> list[Report]:
    """Every stage's report: those that the last gate was to run first and in their order, then what was done
    of single models, then the others by name.

    A report of an earlier run says so, and a gate takes its own run alone."""
    from ci.report.programs import of_one_model

    reports, problems = _read_all(directory)
    reports, left_out = _one_page(reports)
    gate = reports.get(GATE)
    models = [stage for stage, report in reports.items() if of_one_model(report)]
    expected = list(dict.fromkeys(_stages_of(gate)))
    rows: list[Report] = []
    for stage in dict.fromkeys([*expected, *models, *reports, *left_out]):
        if stage in reports:
            rows.append(_agreeing(reports[stage]))
        elif stage in expected:
            rows.append(did_not_run(stage, left_out.get(stage, f"there is no report of {stage}")))
        else:
            rows.append(_not_asked(stage, left_out[stage]))
    rows = [report for report in rows if report.stage != GATE]
    if problems:
        rows.append(_stand_in("report", tuple(problems), session("report", "--reports", directory)))
    return rows


def merge(folder: Path, into: Path) -> None:
    """Write one report for each stage into `into`, of those of several jobs in folders below `folder`."""
    by_stage: dict[str, list[Report]] = {}
    problems: list[Finding] = []
    for of_job in sorted([folder, *(path for path in folder.iterdir() if path.is_dir())]):
        reports, unreadable = _read_all(of_job)
        problems += unreadable
        for stage, report in reports.items():
            by_stage.setdefault(stage, []).append(report)
    into.mkdir(parents=True, exist_ok=True)
    for several in by_stage.values():
        _merged(several).write(into)
    if problems:
        _stand_in(MERGE, tuple(problems), session("report", "--merge", folder)).write(into)


def _merged(reports: Sequence[Report]) -> Report:
    """Of shards of one stage. A figure that they do not share is none of all of them."""
    first = reports[0]
    metrics: dict[str, Metric] = {}
    for name in dict.fromkeys(name for report in reports for name in report.metrics):
        values = [report.metrics[name] for report in reports if name in report.metrics]
        rows = [value for value in values if isinstance(value, dict)]
        if len(rows) == len(values):
            metrics[name] = {key: row for table in rows for key, row in table.items()}
        elif all(value == values[0] for value in values):
            metrics[name] = values[0]
    ranks = list(Outcome)
    return replace(
        first,
        outcome=max((report.outcome for report in reports), key=ranks.index),
        started=min(report.started for report in reports),
        seconds=sum(report.seconds for report in reports),
        findings=tuple(dict.fromkeys(finding for report in reports for finding in report.findings)),
        artifacts=tuple(artifact for report in reports for artifact in report.artifacts),
        metrics=metrics,
        command=first.command if len(reports) == 1 else session(first.stage),
        run=MERGE,
    )


def did_not_run(stage: str, reason: str, command: str = "", *, asked_for: bool = False) -> Report:
    """Stands in for the report of a stage that never ran; `asked_for` if the user skipped it."""
    severity = Severity.NOTE if asked_for else Severity.ERROR
    command = command or session(stage)
    return _stand_in(stage, (Finding(DID_NOT_RUN, severity, stage, reason, command),), command)


def _not_asked(stage: str, reason: str) -> Report:
    command = session(stage)
    return _stand_in(stage, (Finding(NOT_ASKED, Severity.NOTE, stage, reason, command),), command)


def _read_all(directory: Path) -> tuple[dict[str, Report], list[Finding]]:
    reports: dict[str, Report] = {}
    problems: list[Finding] = []
    for path in sorted(directory.glob("*.json")):
        try:
            report = Report.read(path)
            if report.stage != path.stem:
                raise ValueError(f"{path}: holds the report of {report.stage}")
            _began(report)
            reports[report.stage] = cleaned(report, Parser.user_folder().absolute())
        except (OSError, ValueError) as error:
            fix = f"run the stage again, or remove the file if it is no report: {quoted('rm', path)}"
            problems.append(Finding("report-unreadable", Severity.ERROR, path.name, str(error), fix))
    return reports, problems


def cleaned(report: Report, folder: Path) -> Report:
    """A report that anybody may have written, with no text that steers a terminal or a CI runner, and with
    paths as a user in this folder would write them."""

    def shown(value: object) -> object:
        if isinstance(value, str) and not isinstance(value, Enum):
            return visible(value).replace(f"{folder}/", "")
        return value

    cleaned_report: Report = mapped(report, shown)
    return cleaned_report


def _one_page(reports: Mapping[str, Report]) -> tuple[dict[str, Report], dict[str, str]]:
    """The reports that belong on a page with the newest one, and why each other one is left out."""
    from ci.report.programs import of_one_model

    began = {stage: when for stage, report in reports.items() if (when := _began(report))}
    by_age = sorted(began, key=lambda stage: began[stage], reverse=True)
    if not by_age:
        return dict(reports), {}
    newest = reports[by_age[0]]
    profile = next((reports[stage].profile for stage in by_age if reports[stage].profile), "")
    alone = GATE in reports and _same_run(reports[GATE], newest)
    page: dict[str, Report] = {}
    left_out: dict[str, str] = {}
    for stage, report in reports.items():
        # The gate writes reports without a time for stages that it does not run.
        timed = report if stage in began else reports.get(GATE, report)
        earlier = not _same_run(report, newest)
        by_hand = of_one_model(report) and not alone
        old = timed.stage not in began or began[newest.stage] - began[timed.stage] > ONE_DAY
        message = f"its report is of an earlier run, {_shown(timed.started)}"
        if by_hand:
            page[stage] = report
        elif report.profile not in ("", profile):
            left_out[stage] = f"its report is of profile {report.profile}, and this run's is {profile}"
        elif old or (earlier and (alone or stage not in began)):
            left_out[stage] = message
        elif earlier and stage != GATE:
            page[stage] = replace(report, findings=(_earlier(report, message), *report.findings))
        else:
            page[stage] = report
    return page, left_out


def _same_run(one: Report, other: Report) -> bool:
    """Two reports that name no run are of different runs."""
    return one is other or bool(one.run and one.run == other.run)


def _earlier(report: Report, message: str) -> Finding:
    fix = joined([report.command, f"or set {RUN} alike for calls that belong together"], ", ")
    return Finding(EARLIER_RUN, Severity.NOTE, report.stage, message, fix)


def _shown(started: str) -> str:
    return dt.datetime.fromisoformat(started).strftime("%Y-%m-%d %H:%M %Z") if started else "at no known time"


def _began(report: Report) -> dt.datetime | None:
    """Raises ValueError if it is no time."""
    if not report.started:
        return None
    when = dt.datetime.fromisoformat(report.started)
    return when if when.tzinfo else when.replace(tzinfo=dt.timezone.utc)


def _stages_of(gate: Report | None) -> Iterable[str]:
    rows = gate.metrics.get("stages") if gate else None
    names = [row.get("stage") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [name for name in names if isinstance(name, str)]


def _agreeing(report: Report) -> Report:
    """The report; if its outcome and findings contradict each other, a failure that says so."""
    implied_outcome = outcome_of(report.findings, strict=report.outcome is not Outcome.PASS)
    if (report.outcome is Outcome.PASS) == (implied_outcome is Outcome.PASS):
        return report
    errors = sum(finding.severity is Severity.ERROR for finding in report.findings)
    contradiction = Finding(
        "report-contradiction",
        Severity.ERROR,
        f"{report.stage}.json",
        f"its outcome is {report.outcome.value}, and it holds {plural(errors, 'error')}",
        report.command,
    )
    outcome = Outcome.FAIL if report.outcome is Outcome.PASS else report.outcome
    return replace(report, outcome=outcome, findings=(contradiction, *report.findings))


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
