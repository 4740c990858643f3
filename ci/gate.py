"""`gate`: the stages that decide a pull request, in order, each a process of its own, and their summary.

Exit code: 130 if interrupted, else the worst of the stages' by meaning, so that a 1 says that all could be
checked: 2 (usage), 3 (the environment lacks something, or a stage died), 4 (upstream), 1 (a check says no).
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ci.report.collect import GATE, did_not_run
from ci.report.publish import publish
from provisioning.errors import UsageError
from provisioning.findings import Finding, Outcome, Report, Severity, StageRun
from provisioning.rendering import github_annotations
from provisioning.rendering.terminal import overview, terminal_width, wants_colour, write
from provisioning.rendering.text import found, seconds, verdict, worst
from provisioning.rendering.workflow_commands import command
from provisioning.settings import Selection, add_selection, selection_of

EXAMPLES = """\
  nox
  nox -- --soc SM8750
  nox -- --suite ../mine/models.toml
  python -m ci gate --only validate
"""


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    program: str
    """The module to run with -m; it takes the name as its verb."""
    needs: tuple[str, ...] = ()
    """Stages that must have passed, or been skipped on purpose, for this one to make sense."""
    flags: tuple[str, ...] = ()
    """Given to it beside the selection."""
    takes_suites: bool = False
    """Whether the gate's --suite is for it."""


STAGES: tuple[Stage, ...] = (
    Stage("provision", "provisioning"),
    Stage("validate", "provisioning", needs=("provision",)),
    Stage("build_runner", "ci", needs=("provision",)),
    Stage("test_lowering", "ci", ("validate",), ("--tag", "pr"), takes_suites=True),
    Stage("test_emulator", "ci", ("validate", "build_runner"), ("--tag", "pr"), takes_suites=True),
)

INTERRUPTED = 130
LACKING = 3
MEANING = (INTERRUPTED, 2, LACKING, 4, 1)
"""Exit codes, the one that says most about the run first."""

UNDER_GATE = "QNN_CI_GATE"
"""Set for the stages, which then leave GitHub's annotations and summary to the gate."""

PATIENCE = 3.0
"""Seconds that an interrupted stage has before it is told again, and louder."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A stage as the gate saw it; `code` is None where it was not started."""

    report: Report
    code: int | None = None

    @property
    def lets_on(self) -> bool:
        """Whether stages that need this one may run."""
        return verdict(self.report) in ("pass", "skipped")


def stage_names() -> list[str]:
    return [stage.name for stage in STAGES]


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    group = parser.add_argument_group("stages")
    group.add_argument("--only", action="append", choices=stage_names(), help="run this one; may be repeated")
    group.add_argument("--skip", action="append", choices=stage_names(), help="not this one; may be repeated")
    group.add_argument(
        "--suite",
        action="append",
        metavar="FILE",
        help="models of your own for test_lowering and test_emulator; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    selection = selection_of(args)
    flags = selection_flags(args)
    chosen = [name for name in args.only or stage_names() if name not in (args.skip or ())]
    if not chosen:
        raise UsageError("--only and --skip leave no stage to run", remedy="leave one of them out")
    suites = [part for suite in args.suite or () for part in ("--suite", suite)]
    gate = StageRun(GATE, selection.profile, selection.target, _command(GATE, [*flags, *suites]))
    rans = run_stages([with_suites(stage, suites) for stage in STAGES], chosen, flags, selection)
    reports = [ran.report for ran in rans]
    summarised(gate, rans).write(selection.reports)
    conclude(reports, selection.reports, os.environ)
    return exit_code(rans)


def with_suites(stage: Stage, flags: Sequence[str]) -> Stage:
    return replace(stage, flags=(*stage.flags, *flags)) if stage.takes_suites else stage


def run_stages(
    stages: Sequence[Stage], chosen: Sequence[str], flags: Sequence[str], selection: Selection
) -> list[Ran]:
    """Run what was chosen, in order; afterwards reports/ holds one report of each stage, and no older one."""
    for name in (GATE, *(stage.name for stage in stages)):
        with suppress(NotADirectoryError):  # which writing a report will say better
            (selection.reports / f"{name}.json").unlink(missing_ok=True)
    rans: dict[str, Ran] = {}
    for stage in stages:
        failed = [need for need in stage.needs if need in rans and not rans[need].lets_on]
        if any(ran.code == INTERRUPTED for ran in rans.values()):
            ran = Ran(did_not_run(stage.name, "the gate was interrupted"))
        elif stage.name not in chosen:
            ran = Ran(did_not_run(stage.name, "left out by --only or --skip", asked_for=True))
        elif failed:
            ran = Ran(did_not_run(stage.name, f"needs {' and '.join(failed)}, which did not pass"))
        else:
            ran = run_stage(stage, flags, selection)
        ran.report.write(selection.reports)
        rans[stage.name] = ran
    return list(rans.values())


def run_stage(stage: Stage, flags: Sequence[str], selection: Selection) -> Ran:
    begun = time.monotonic()
    flags = [*flags, *stage.flags]
    with folded(stage.name, _command(stage.name, flags), os.environ):
        argv = [sys.executable, "-m", stage.program, stage.name, *flags]
        code = supervise(argv, {**os.environ, UNDER_GATE: "1"})
    took = round(time.monotonic() - begun, 3)
    ran = judge(stage, code, selection, took, _command(stage.name, flags))
    _say(f"{stage.name}: {verdict(ran.report)} in {seconds(took)}")
    return ran


def judge(stage: Stage, code: int, selection: Selection, took: float, command_line: str) -> Ran:
    """The stage's own report if it wrote one that agrees with its exit code; never a pass otherwise."""
    if code == INTERRUPTED:
        return Ran(did_not_run(stage.name, f"{stage.name} was interrupted"), code)
    try:
        report = Report.read(selection.reports / f"{stage.name}.json")
        if (code == 0) == (report.outcome is Outcome.PASS):
            return Ran(report, code)
        fault = f"its report says {report.outcome.value}"
    except (OSError, ValueError) as error:
        fault = "wrote no report" if isinstance(error, FileNotFoundError) else f"its report: {error}"
        run_of = StageRun(stage.name, selection.profile, selection.target, command_line)
        report = replace(run_of.finish(Outcome.ERROR), seconds=took)
    ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    finding = Finding(
        "gate.stage-died",
        Severity.ERROR,
        stage.name,
        f"{ended}, and {fault}",
        f"read what it printed, repeat with: {command_line}; python -m ci diagnose explains a saved log",
    )
    report = replace(report, outcome=Outcome.ERROR, findings=(*report.findings, finding))
    return Ran(report, code if code in MEANING and code != 1 else LACKING)


def supervise(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a process to its end. Interrupted, it is given time to tidy up, and then ended; the code is 130."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        process = subprocess.Popen(argv, env=environ)
        try:
            return process.wait()
        except KeyboardInterrupt:
            _end(process)
            return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(rans: Iterable[Ran]) -> int:
    codes = {ran.code for ran in rans if ran.code is not None}
    return next((code for code in MEANING if code in codes), 0)


def summarised(gate: StageRun, rans: Sequence[Ran]) -> Report:
    """The gate's own report: a finding for each stage that did not pass."""
    for ran in rans:
        report = ran.report
        gate.artifacts += report.artifacts
        said = verdict(report)
        if said != "pass":
            severity = Severity.NOTE if said == "skipped" else Severity.ERROR
            gate.add("gate.stage", severity, report.stage, f"{said}: {found(report)}", report.command)
    gate.metrics["stages"] = [
        {"stage": r.report.stage, "verdict": verdict(r.report), "seconds": r.report.seconds, "exit": r.code}
        for r in rans
    ]
    return gate.finish(worst(ran.report for ran in rans))


def conclude(reports: Sequence[Report], directory: Path, environ: Mapping[str, str]) -> None:
    """Print the table and write the renderings; on GitHub also the annotations and the job's summary."""
    _say("")
    write(
        overview(reports, colour=wants_colour(sys.stdout, environ), width=terminal_width(environ)), sys.stdout
    )
    if _on_github(environ):
        for report in reports:
            write(github_annotations(report), sys.stdout)
    page, _ = publish(reports, directory, environ)
    _say(f"the whole of it: {page}")


def selection_flags(args: argparse.Namespace) -> list[str]:
    """The selection as it was typed, for the stages; what came from the environment reaches them there."""
    flags: list[str] = []
    for name in ("profile", "target", "soc", "store", "reports"):
        value = getattr(args, name)
        for one in value if isinstance(value, list) else [value] if value else []:
            flags += [f"--{name}", str(one)]
    return flags


@contextmanager
def folded(title: str, line: str, environ: Mapping[str, str]) -> Iterator[None]:
    """A heading around a stage's output; on GitHub one that folds."""
    if _on_github(environ):
        _say(command("group", f"{title}: {line}"))
    else:
        _say(f"\n━━ {title}: {line}")
    try:
        yield
    finally:
        if _on_github(environ):
            _say(command("endgroup"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """A terminal has interrupted the stage as well; if it was only us, tell it, and insist."""
    for number in (None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            if number is not None:
                process.send_signal(number)
            process.wait(PATIENCE)
            return
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            process.kill()
            process.wait()
            return


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _command(session: str, flags: Sequence[str]) -> str:
    return shlex.join(["nox", "-s", session, *(["--", *flags] if flags else [])])


def _on_github(environ: Mapping[str, str]) -> bool:
    return environ.get("GITHUB_ACTIONS") == "true"


def _say(text: str) -> None:
    write(f"{text}\n", sys.stdout)
