"""Give the verdict of a run of gate.yml: it passes if each planned job and program has passed in a report of
this run.

The result that GitHub shows for a job proves nothing: a job whose tools were overwritten, or that ended
early, may still be green."""

from __future__ import annotations

import base64
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.github.step_files import annotate, summarise
from ci.report.collect import report_in, rows_of
from ci.report.page import code
from ci.work import read, to_json
from provisioning.base.errors import CheckFailed, UsageError, exit_code_of
from provisioning.base.findings import Outcome, Report, Severity
from provisioning.base.foreign import escape_line
from provisioning.base.rendering import plural
from provisioning.base.rendering import verdict as verdict_of
from provisioning.base.stage_run import RUN, StageRun

NOT_REPORTED, NOT_GREEN = "verdict-missing", "verdict-red"
SUCCESS = "success"
NOT_RUN = "Not run: only unrelated paths"
MOST_BYTES = 64 << 20
"""The unpacked plan has at most this many bytes."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    artifact: str
    """The artifact in which the job uploads its reports."""
    report: str
    """The stage whose report has the outcome of the job."""


@dataclass(frozen=True, slots=True)
class Planned:
    run: str
    """The run and the attempt that made the plan, as RUN names them in reports."""
    jobs: Mapping[str, PlannedJob]
    programs: Mapping[str, Sequence[str]]
    """Maps a stage to the programs that its reports must have, no matter which job each is in."""
    unrelated: tuple[str, ...] = ()
    """The changed files, if no job is planned because they affect none."""

    def packed(self) -> str:
        """Encode the plan for a variable of a step: on Linux a variable has at most 128 kB."""
        import json

        return base64.b64encode(zlib.compress(json.dumps(to_json(self)).encode(), 9)).decode()


def unpack_plan(text: str) -> Planned:
    import json

    try:
        inflating = zlib.decompressobj()
        content = inflating.decompress(base64.b64decode(text), MOST_BYTES)
        return read(Planned, json.loads(content))
    except (ValueError, zlib.error) as error:
        raise UsageError(
            f"QNN_CI_PLANNED is no plan: {escape_line(str(error))[:200]}", fix="give it the output of plan"
        ) from error


def verdict(environ: Mapping[str, str]) -> int:
    """Read QNN_CI_PLAN and QNN_CI_LIGHTS (how the job plan and all others ended, in GitHub's words),
    QNN_CI_PLANNED (the output of plan) and QNN_CI_REPORTS (the folder with the artifacts of all jobs)."""
    stage = StageRun("verdict", "", "", "gate.yml")
    ended, lights = environ.get("QNN_CI_PLAN", ""), environ.get("QNN_CI_LIGHTS", "")
    if ended != SUCCESS:
        raise CheckFailed(
            f"the job plan ended with {escape_line(ended) or 'nothing'}: nothing was checked",
            fix="read the log of plan, then choose `Re-run all jobs`",
        )
    planned = unpack_plan(environ.get("QNN_CI_PLANNED", ""))
    if not planned.jobs and planned.unrelated and lights == "skipped":
        return not_run(planned.unrelated, environ)
    folder = Path(environ.get("GITHUB_WORKSPACE", ""), environ.get("QNN_CI_REPORTS", ""))
    for rule, subject, message, fix in problems(planned, folder, environ.get(RUN, "")):
        stage.add(rule, Severity.ERROR, subject, message, fix)
    if not planned.jobs:
        stage.add(NOT_REPORTED, Severity.ERROR, "plan", "no job is planned", "read the log of plan")
    if lights != SUCCESS and not stage.findings:
        message = f"all reports are green, and GitHub says that the jobs ended with {escape_line(lights)}"
        stage.add(NOT_GREEN, Severity.ERROR, "jobs", message, "read the log of the job that is red")
    report = stage.finish()
    for finding in report.findings:
        sys.stdout.write(f"{escape_line(finding.subject)}: {escape_line(finding.message)}\n")
    annotate(report, environ)
    programs = sum(map(len, planned.programs.values()))
    counts = f"{plural(len(planned.jobs), 'job')} and {plural(programs, 'verdict')} on programs were planned"
    sys.stdout.write(f"{counts}: {len(report.findings) or 'no'} problems\n")
    return exit_code_of(good=report.outcome is Outcome.PASS)


def not_run(unrelated: Sequence[str], environ: Mapping[str, str]) -> int:
    sys.stdout.write(f"{NOT_RUN}\n" + "".join(f"  {escape_line(file)}\n" for file in unrelated))
    summarise("\n".join([f"### {NOT_RUN}", "", *(f"- {code(file)}" for file in unrelated), "", ""]), environ)
    return 0


Problem = tuple[str, str, str, str]
"""The rule, subject, message and fix of a finding."""


def problems(planned: Planned, folder: Path, run: str) -> Iterator[Problem]:
    """Yield the problems of the run. `folder` has a folder for each artifact. `run` is the run and the
    attempt that gives the verdict: after `Re-run failed jobs` the attempt is later than the plan's."""
    own: dict[str, list[Report]] = {}
    for name, job in planned.jobs.items():
        try:
            report = report_in(folder / job.artifact / f"{job.report}.json")
        except FileNotFoundError:
            message = f"uploaded no report of {job.report}: it did not start, or died before its end"
            yield NOT_REPORTED, name, message, "read its log, then choose `Re-run all jobs`"
            continue
        except (OSError, ValueError) as error:
            yield NOT_REPORTED, name, f"its report of {job.report} cannot be read: {error}", "read its log"
            continue
        if not is_of_run(report.run, planned.run, run):
            message = f"its report is of the run {report.run or 'of no name'}, and this is {run}"
            yield NOT_REPORTED, name, message, "choose `Re-run all jobs`"
            continue
        if report.outcome is not Outcome.PASS:
            message = f"its report of {job.report} says {verdict_of(report)}"
            yield NOT_GREEN, name, message, "read its findings"
        for stage in planned.programs:
            if (other := _report_beside(folder / job.artifact, stage)) and other.run == report.run:
                own.setdefault(stage, []).append(other)
    for stage, names in planned.programs.items():
        rows: dict[str, bool] = {}
        for report in own.get(stage, ()):
            for name, row in rows_of(report, "programs").items():
                rows[name] = rows.get(name, True) and row.passed
        for name in names:
            if name not in rows:
                message = f"was planned for {stage}, and is in no report of this run"
                yield NOT_REPORTED, name, message, "read the findings of its job"
            elif not rows[name]:
                yield NOT_GREEN, name, f"did not pass {stage}", "read its findings in the report of its job"


def _report_beside(folder: Path, stage: str) -> Report | None:
    """Read the report of this stage. None if the job has none, or none that can be read: its programs are
    then missing."""
    try:
        return report_in(folder / f"{stage}.json")
    except (OSError, ValueError):
        return None


_RUN = re.compile(r"([0-9]+)\.([0-9]+)")


def is_of_run(text: str, plan: str, now: str) -> bool:
    """Whether a report is of the plan's run and of an attempt from the plan's to this one."""
    names = [_RUN.fullmatch(name) for name in (text, plan, now)]
    if not all(names):
        return False
    (own, attempt), (planned, first), (this, last) = (match.groups() for match in names if match)
    return own == planned == this and int(first) <= int(attempt) <= int(last)
