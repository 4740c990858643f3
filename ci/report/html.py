"""The page of all reports, whose templates show what is here; and the renderings beside the reports."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ci.report.job_summary import markdown
from ci.report.junit_xml import junit
from ci.report.onnx import onnx_of
from ci.report.pages import render
from ci.report.programs import ProgramView, models_of, programs_of
from ci.report.speakers import FIGURES, SpeakerView, speakers_of
from provisioning.base.files import write_named
from provisioning.base.findings import Artifact, Report, Severity
from provisioning.base.rendering.text import (
    LOG,
    NO_MATTER,
    Verdict,
    by_severity,
    duration,
    errors_of,
    headline,
    scalar_metrics,
    summary_of,
    verdict,
    worst,
)

FIX = "choose another with -o or --reports"
SHOWN_ERRORS = 8
"""At the top; the others are in the table of findings."""


@dataclass(frozen=True, slots=True)
class Stage:
    report: Report
    verdict: Verdict
    bad: bool
    summary: str
    began: str
    time: str
    logs: Sequence[str]
    """Links to its output."""


@dataclass(frozen=True, slots=True)
class LinkedFile:
    stage: str
    artifact: Artifact
    href: str


def html(reports: Sequence[Report], folder: Path | None = None) -> str:
    """The page. It links to files below `folder`, where it is written."""
    outcome, head = worst(reports).value, headline(reports)
    started = min((report.started for report in reports if report.started), default="")
    programs, speakers = programs_of(reports), speakers_of(reports)
    anchors = {program.name: program.anchor for program in programs.worst_first} if programs else {}
    anchors |= {speaker.name: speaker.anchor for speaker in speakers}
    stages = [report for report in reports if verdict(report) != "not run"]
    ranks = {severity: rank for rank, severity in enumerate(Severity)}
    # An error is shown once: at its program, else at the top, else in the table.
    shown: list[ProgramView | SpeakerView] = [*(programs.worst_first if programs else ()), *speakers]
    at_programs = {finding for program in shown for finding in program.findings}
    errors = [finding for finding in errors_of(reports) if finding not in at_programs]
    findings = [
        (report.stage, finding)
        for report in stages
        for finding in report.findings
        if finding.severity is not Severity.ERROR or any(finding is error for error in errors[SHOWN_ERRORS:])
    ]
    every = (finding for _, finding in findings)
    return render(
        "report.html.j2",
        style="page.css",
        script="page.js",
        title=f"{outcome.upper()}: {head}",
        outcome=outcome,
        headline=head,
        started=started,
        when=re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d\+00:00$", r"\1 \2 UTC", started),
        profiles=", ".join(sorted({report.profile for report in reports if report.profile})),
        stages=[_stage(report, folder) for report in reports],
        errors=errors[:SHOWN_ERRORS],
        more_errors=len(errors[SHOWN_ERRORS:]),
        models=models_of(reports),
        anchors=anchors,
        programs=programs,
        speakers=speakers,
        figure_names=list(FIGURES.values()),
        onnx=onnx_of(reports),
        findings=sorted(findings, key=lambda pair: ranks[pair[1].severity]),
        ranks=ranks,
        finding_stages=dict.fromkeys(stage for stage, _ in findings),
        severities={severity.value: len(group) for severity, group in by_severity(every).items()},
        files=[
            LinkedFile(report.stage, artifact, _href(artifact.path, folder))
            for report in reports
            for artifact in report.artifacts
        ],
        figures={report.stage: values for report in reports if (values := scalar_metrics(report))},
    )


def _stage(report: Report, folder: Path | None) -> Stage:
    links = (_href(artifact.path, folder) for artifact in report.artifacts if artifact.kind == LOG)
    # Hours and minutes: all reports of a run began within a day.
    began = re.sub(r"^.*T(\d\d:\d\d):\d\d\+00:00$", r"\1", report.started)
    result = verdict(report)
    bad = result not in {"pass", *NO_MATTER}
    return Stage(report, result, bad, summary_of(report), began, duration(report), [*filter(None, links)])


def _href(file: str, folder: Path | None) -> str:
    """A relative link from a page in `folder` to a file below it; empty for a file elsewhere."""
    relative = ".." if folder is None else os.path.relpath(Path(file).absolute(), folder.absolute())
    return "" if relative.startswith("..") else quote(relative, errors="replace")


def publish(reports: Sequence[Report], directory: Path, environ: Mapping[str, str]) -> list[Path]:
    """Write the page and JUnit beside the reports, and in a job on GitHub its summary."""
    written = {directory / "index.html": html(reports, directory), directory / "junit.xml": junit(reports)}
    for path, text in written.items():
        write_named(path, text, fix=FIX)
    if summary := environ.get("GITHUB_STEP_SUMMARY"):
        write_named(Path(summary), markdown(reports), append=True)
    return list(written)
