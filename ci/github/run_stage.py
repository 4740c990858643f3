"""Run a session in a job, turn its report into annotations and the job's summary, and write the files that
GitHub Actions reads after a step."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci.gate.supervision import death, log_of, report_of, supervise
from ci.report.collect import clean_report
from ci.report.page import markdown
from ci.report.summary import github_annotations
from provisioning.base.command_line import STARTED_IN
from provisioning.base.commands import SPELLED_INSTALLED, session
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.files import write_named
from provisioning.base.findings import Artifact, Outcome, Report, Severity
from provisioning.base.parser import Parser
from provisioning.base.places import Places
from provisioning.base.rendering import LOG
from provisioning.base.settings import DEFAULT_PROFILE, ROOT
from provisioning.base.stage_run import StageRun
from provisioning.verbs.env import github

# What GitHub Actions reads after a step


def set_outputs(outputs: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Print the step's outputs; on GitHub, set them."""
    for name, value in outputs.items():
        sys.stdout.write(f"{name}={value}\n")
    append("GITHUB_OUTPUT", github(outputs), environ)


def export(variables: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Set environment variables for the steps that follow."""
    append("GITHUB_ENV", github(variables), environ)


def summarise(markdown: str, environ: Mapping[str, str]) -> None:
    append("GITHUB_STEP_SUMMARY", markdown, environ)


def annotate(report: Report, environ: Mapping[str, str]) -> None:
    """Show a stage's findings beside the change, and in the job's summary."""
    sys.stdout.write(github_annotations([report]))
    summarise(markdown([report]), environ)


def append(variable: str, text: str, environ: Mapping[str, str]) -> None:
    """Append to the file that the variable names; outside GitHub, do nothing."""
    if name := environ.get(variable):
        write_named(Path(name), text, append=True, fix=f"unset {variable} to run outside GitHub")


# A step


WITHOUT_REPORT = frozenset({"tests", "bench", "lock", "store", "generate", "env"})
"""These sessions write no report; one is made from their exit code."""

OF_A_VERB = frozenset({"lab"})
"""The first argument of these sessions is the verb, and the verb writes the report."""

OF_THE_JOB = ("GITHUB_", "RUNNER_")
"""Variables of the job that begin with these would change what the tests see."""

SECRETS = ("HF_TOKEN", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
"""Secrets of gate.yml: in a pull request of a fork they are empty, which counts as not set."""

ANNOTATE_THEMSELVES = frozenset({"gate", "report"})
"""These sessions write annotations and a summary themselves."""


def stage(environ: Mapping[str, str]) -> int:
    """Run a session. Read QNN_CI_STAGE, QNN_CI_AS_ROOT (`true`), QNN_CI_FOLDER (a folder of the workspace, in
    which paths begin), QNN_CI_ARGUMENTS and QNN_CI_VARIABLES. The last two are split as a shell would, but
    never run by one."""
    stage = environ.get("QNN_CI_STAGE", "")
    if not stage.replace("_", "").isalnum():
        raise UsageError(f"QNN_CI_STAGE={stage!r}: expected a session", fix="`nox -l` lists them")
    arguments = split(environ.get("QNN_CI_ARGUMENTS", ""))
    reports = reports_of(environ)
    name = arguments[0] if stage in OF_A_VERB and arguments else stage
    report_file = reports / f"{name}.json"
    report_file.unlink(missing_ok=True)
    nox = shutil.which("nox")
    if nox is None:
        raise EnvironmentLacking("nox is not on PATH", fix="python -m pip install nox")
    command = [nox, "-f", str(ROOT / "noxfile.py"), "-s", stage, *(["--", *arguments] if arguments else [])]
    inner = {**environ}
    if stage == "tests":
        inner = {name: value for name, value in environ.items() if not name.startswith(OF_THE_JOB)}
    elif stage not in WITHOUT_REPORT:
        inner["QNN_CI_REPORTS"] = str(reports)
    # Paths are of the job's workspace; in jobs of gate.yml of one of the two repositories there.
    folder = environ.get("QNN_CI_FOLDER")
    started_in = Path(environ.get("GITHUB_WORKSPACE", ""), folder) if folder else Parser.user_folder()
    inner[STARTED_IN] = str(started_in.absolute())
    if started_in.resolve() != ROOT:
        inner[SPELLED_INSTALLED] = "true"
    inner = {name: value for name, value in inner.items() if value or name not in SECRETS}
    if source := environ.get("QNN_CI_EXECUTORCH"):
        inner["EXECUTORCH_ROOT"] = str(Path(environ.get("GITHUB_WORKSPACE", "")).absolute() / source)
    if stage not in ANNOTATE_THEMSELVES:
        inner.pop("GITHUB_STEP_SUMMARY", None)
    inner |= variables_of(environ.get("QNN_CI_VARIABLES", ""))
    if environ.get("QNN_CI_AS_ROOT") == "true":
        command = root_command(command, inner)
    sys.stdout.flush()
    start, log = time.monotonic(), log_of(name, reports)
    stand_in = unfinished_report(name, session(stage, *arguments)).write(reports).read_bytes()
    code = supervise(command, inner, log, echo=1)
    if report_file.exists() and report_file.read_bytes() == stand_in:
        report_file.unlink()
    blank = replace(
        StageRun(name, DEFAULT_PROFILE, "", session(stage, *arguments)).finish(Outcome.ERROR),
        seconds=round(time.monotonic() - start, 3),
    )
    report = report_from(report_file, code, blank, log)
    if not report_file.exists():
        places = Places.of(report.command)
        report = replace(report, findings=tuple(map(places.located, report.findings)))
    report = clean_report(report, started_in.absolute())
    if stage not in ANNOTATE_THEMSELVES:
        report = replace(report, artifacts=(*report.artifacts, Artifact.of(LOG, log)))
        report.write(reports)
    if stage not in ANNOTATE_THEMSELVES:
        annotate(report, environ)
    # A run refuses a second artifact of one name.
    artifact = f"reports-{name}-{secrets.token_hex(4)}"
    set_outputs({"outcome": report.outcome.value, "report": str(report_file), "artifact": artifact}, environ)
    return code or (0 if report.outcome is Outcome.PASS else 1)


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
