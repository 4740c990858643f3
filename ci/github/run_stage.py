"""Run a session of nox in a job of GitHub Actions, and show its report there.

The action `run-stage` calls `stage`: it runs the session, turns its report into annotations and the job's
summary, and sets the step's outputs. A session that writes no report gets one made from its exit code."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.gate.supervision import death, log_of, report_of, supervise
from ci.github.step_files import annotate, set_outputs
from ci.report.collect import clean_report
from provisioning.base.command_line import STARTED_IN
from provisioning.base.commands import SPELLED_INSTALLED, Fix, session
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.findings import Artifact, Outcome, Report, Severity
from provisioning.base.parser import Parser
from provisioning.base.places import Places
from provisioning.base.rendering import LOG
from provisioning.base.settings import DEFAULT_PROFILE, ROOT
from provisioning.base.stage_run import StageRun

WITHOUT_REPORT = frozenset({"tests", "bench", "lock", "store", "generate", "env"})
"""These sessions write no report; one is made from their exit code."""

REPORTED_BY_VERB = frozenset({"lab"})
"""The first argument of these sessions is the verb, and the verb writes the report."""

JOB_PREFIXES = ("GITHUB_", "RUNNER_")
"""Variables of the job that begin with these would change what the tests see."""

SECRETS = ("HF_TOKEN", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
"""Secrets of gate.yml: in a pull request of a fork they are empty, which counts as not set."""

ANNOTATE_THEMSELVES = frozenset({"gate", "report"})
"""These sessions write annotations and a summary themselves."""


@dataclass(frozen=True, slots=True)
class JobStep:
    """What a step of a job asks for, read from the variables that the action `run-stage` sets."""

    session: str
    arguments: tuple[str, ...]
    reports: Path
    started_in: Path
    """The folder in which the user's paths begin: a folder of the job's workspace."""

    @property
    def name(self) -> str:
        """The name of its report."""
        return self.arguments[0] if self.session in REPORTED_BY_VERB and self.arguments else self.session

    @property
    def command(self) -> Fix:
        return session(self.session, *self.arguments)

    @property
    def report_file(self) -> Path:
        return self.reports / f"{self.name}.json"

    @property
    def annotates_itself(self) -> bool:
        return self.session in ANNOTATE_THEMSELVES


def stage(environ: Mapping[str, str]) -> int:
    """Run a session. Read QNN_CI_STAGE, QNN_CI_AS_ROOT (`true`), QNN_CI_FOLDER (a folder of the workspace, in
    which paths begin), QNN_CI_ARGUMENTS and QNN_CI_VARIABLES. The last two are split as a shell would, but
    never run by one."""
    step = step_of(environ)
    step.report_file.unlink(missing_ok=True)
    command, variables = session_command(step), session_variables(step, environ)
    if environ.get("QNN_CI_AS_ROOT") == "true":
        command = root_command(command, variables)
    sys.stdout.flush()
    start, log = time.monotonic(), log_of(step.name, step.reports)
    provisional = unfinished_report(step.name, step.command).write(step.reports).read_bytes()
    code = supervise(command, variables, log, echo=1)
    if step.report_file.exists() and step.report_file.read_bytes() == provisional:
        step.report_file.unlink()
    report = finished_report(step, code, log, round(time.monotonic() - start, 3))
    if not step.annotates_itself:
        report = replace(report, artifacts=(*report.artifacts, Artifact.of(LOG, log)))
        report.write(step.reports)
        annotate(report, environ)
    # A run refuses a second artifact of one name.
    artifact = f"reports-{step.name}-{secrets.token_hex(4)}"
    outputs = {"outcome": report.outcome.value, "report": str(step.report_file), "artifact": artifact}
    set_outputs(outputs, environ)
    return code or (0 if report.outcome is Outcome.PASS else 1)


def step_of(environ: Mapping[str, str]) -> JobStep:
    session_name = environ.get("QNN_CI_STAGE", "")
    if not session_name.replace("_", "").isalnum():
        raise UsageError(f"QNN_CI_STAGE={session_name!r}: expected a session", fix="`nox -l` lists them")
    arguments = tuple(split(environ.get("QNN_CI_ARGUMENTS", "")))
    # Jobs of gate.yml have two repositories in their workspace: paths begin in one of them.
    folder = environ.get("QNN_CI_FOLDER")
    started_in = Path(environ.get("GITHUB_WORKSPACE", ""), folder) if folder else Parser.user_folder()
    return JobStep(session_name, arguments, reports_of(environ), started_in.absolute())


def session_command(step: JobStep) -> list[str]:
    """Return the command line that runs the step's session."""
    nox = shutil.which("nox")
    if nox is None:
        raise EnvironmentLacking("nox is not on PATH", fix="python -m pip install nox")
    arguments = ["--", *step.arguments] if step.arguments else []
    return [nox, "-f", str(ROOT / "noxfile.py"), "-s", step.session, *arguments]


def session_variables(step: JobStep, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the session."""
    variables = {**environ}
    if step.session == "tests":
        variables = {name: value for name, value in environ.items() if not name.startswith(JOB_PREFIXES)}
    elif step.session not in WITHOUT_REPORT:
        variables["QNN_CI_REPORTS"] = str(step.reports)
    variables[STARTED_IN] = str(step.started_in)
    if step.started_in.resolve() != ROOT:
        variables[SPELLED_INSTALLED] = "true"
    variables = {name: value for name, value in variables.items() if value or name not in SECRETS}
    if source := environ.get("QNN_CI_EXECUTORCH"):
        workspace = Path(environ.get("GITHUB_WORKSPACE", "")).absolute()
        variables["EXECUTORCH_ROOT"] = str(workspace / source)
    if not step.annotates_itself:
        variables.pop("GITHUB_STEP_SUMMARY", None)
    return variables | variables_of(environ.get("QNN_CI_VARIABLES", ""))


def finished_report(step: JobStep, code: int, log: Path, seconds: float) -> Report:
    """Return the session's report, or one made from its exit code, with places in the user's files."""
    blank = StageRun(step.name, DEFAULT_PROFILE, "", step.command).finish(Outcome.ERROR)
    report = report_from(step.report_file, code, replace(blank, seconds=seconds), log)
    if not step.report_file.exists():
        places = Places.of(report.command)
        report = replace(report, findings=tuple(map(places.located, report.findings)))
    return clean_report(report, step.started_in)


def unfinished_report(name: str, call: str) -> Report:
    """The stage's report until it has its own: a job that GitHub ends has no time to write one."""
    stage = StageRun(name, DEFAULT_PROFILE, "", call)
    message = "the job ended before it: its time was up, it was cancelled, or the runner was lost"
    fix = "give gate.yml more `minutes`, or the models more `shards`; its log is beside this report"
    stage.add("stage-died", Severity.ERROR, name, message, fix)
    return stage.finish(Outcome.ERROR, provisional=True)


def root_command(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the command to run as root, with these variables: sudo passes none on."""
    with_variables = ["env", *(f"{name}={value}" for name, value in environ.items()), *command]
    if os.geteuid() == 0:
        return with_variables
    if shutil.which("sudo") is None:
        raise EnvironmentLacking(
            f"{command[0]} needs root here, and there is no sudo",
            fix="run the job as root, in a container",
        )
    return ["sudo", "--non-interactive", *with_variables]


def split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r}: {error}", fix="quote run-stage's inputs arguments and variables as for a shell"
        ) from error


def variables_of(text: str) -> dict[str, str]:
    variables = {}
    for word in split(text):
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(
                f"the input variables is {text!r}: expected NAME=VALUE, found {word!r}",
                fix="variables: NAME=VALUE OTHER='two words'",
            )
        variables[name] = value
    return variables


def reports_of(environ: Mapping[str, str]) -> Path:
    """The folder QNN_CI_REPORTS, else a folder of the workspace, which later steps can upload."""
    if folder := environ.get("QNN_CI_REPORTS"):
        return Path(folder).absolute()
    return Path(environ.get("GITHUB_WORKSPACE") or Path.cwd()) / "reports"


def report_from(file: Path, code: int, blank: Report, log: Path) -> Report:
    """The session's report, or one made from its exit code if it writes none."""
    if blank.stage not in WITHOUT_REPORT or file.exists():
        return report_of(file, code, blank, log)
    if code == 0:
        return replace(blank, outcome=Outcome.PASS)
    return replace(blank, findings=(death(blank.stage, code, log, blank.command),))
