"""`gate`: the stages that decide a pull request, in order, each a process of its own, and their summary.

Exit code: 130 if interrupted, else the worst of the stages' by meaning, so that a 1 says that all could be
checked: 2 (usage), 3 (the environment lacks something, or a stage died), 4 (upstream), 1 (a check says no).
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ci.engine.supervision import (
    INTERRUPTED,
    LACKING,
    LOGS,
    MEANING,
    log_of,
    memory_kills,
    report_of,
    supervise,
)
from ci.report.collect import GATE, did_not_run
from ci.report.publish import publish
from provisioning.base.errors import UsageError
from provisioning.base.findings import Artifact, Outcome, Report, Severity, StageRun
from provisioning.base.rendering import github_annotations
from provisioning.base.rendering.terminal import overview, terminal_width, wants_colour, write
from provisioning.base.rendering.text import LOG, found, verdict, worst
from provisioning.base.rendering.workflow_commands import command
from provisioning.base.settings import Selection, add_selection, selection_of
from provisioning.base.units import seconds

EXAMPLES = """\
  nox
  nox -- --soc SM8750
  nox -- --suite ../mine/models.toml
  nox -- --tag nightly --skip provision
  python -m ci gate --only validate
"""


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    program: str
    """The module to run with -m; it takes the name as its verb."""
    needs: tuple[str, ...] = ()
    """Stages that must have passed, or been skipped on purpose, for this one to make sense."""
    runs_programs: bool = False
    """Whether the gate's --suite and --tag are for it."""
    flags: tuple[str, ...] = ()
    """Given to it beside the selection."""


STAGES: tuple[Stage, ...] = (
    Stage("provision", "provisioning"),
    Stage("validate", "provisioning", needs=("provision",)),
    Stage("build_runner", "ci", needs=("provision",)),
    Stage("test_lowering", "ci", needs=("validate",), runs_programs=True),
    Stage("test_emulator", "ci", needs=("validate", "build_runner"), runs_programs=True),
)

TAG = "pr"
"""Of the shipped suite; what to run of their own others know best."""

UNDER_GATE = "QNN_CI_GATE"
"""Set for the stages, which then leave GitHub's annotations and summary to the gate."""

SHOWN = 10
"""Errors that the last words of the gate have room for; the page has them all."""


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
        type=Path,
        metavar="FILE",
        help="models of your own for test_lowering and test_emulator; may be repeated",
    )
    group.add_argument(
        "--tag", action="append", help=f"only runs with this tag; may be repeated [{TAG}; with --suite all]"
    )


def run(args: argparse.Namespace) -> int:
    selection = selection_of(args)
    flags = selection_flags(args)
    chosen = [name for name in args.only or stage_names() if name not in (args.skip or ())]
    if not chosen:
        raise UsageError("--only and --skip leave no stage to run", remedy="leave one of them out")
    suites, tags = _each("--suite", args.suite), _each("--tag", args.tag)
    gate = StageRun(GATE, selection.profile, selection.target, _command(GATE, [*flags, *suites, *tags]))
    choice = (*suites, *(tags or ([] if suites else ["--tag", TAG])))
    stages = [replace(stage, flags=choice) if stage.runs_programs else stage for stage in STAGES]
    rans = run_stages(stages, chosen, flags, selection)
    reports = [ran.report for ran in rans]
    summarised(gate, rans).write(selection.reports)
    conclude(reports, selection.reports, os.environ)
    return exit_code(rans)


def run_stages(
    stages: Sequence[Stage], chosen: Sequence[str], flags: Sequence[str], selection: Selection
) -> list[Ran]:
    """Run what was chosen, in order; afterwards reports/ holds one report of each stage, and no older one."""
    for name in (GATE, *(stage.name for stage in stages)):
        for old in (selection.reports / f"{name}.json", selection.reports / LOGS / f"{name}.log"):
            with suppress(NotADirectoryError):  # which writing a report will say better
                old.unlink(missing_ok=True)
    rans: dict[str, Ran] = {}
    for stage in stages:
        failed = [need for need in stage.needs if not rans[need].lets_on]
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
    log = log_of(stage.name, selection.reports)
    killed = memory_kills()
    with folded(stage.name, _command(stage.name, flags), os.environ):
        # A stage that dies says where; what it printed until then is not lost in a buffer.
        argv = [sys.executable, "-u", "-X", "faulthandler", "-m", stage.program, stage.name, *flags]
        code = supervise(argv, {**os.environ, UNDER_GATE: "1"}, log)
    took = round(time.monotonic() - begun, 3)
    ran = judge(stage, code, selection, took, _command(stage.name, flags), memory_kills() - killed)
    ran = replace(ran, report=replace(ran.report, artifacts=(*ran.report.artifacts, Artifact.of(LOG, log))))
    where = "" if ran.lets_on else f", its log is {log}"
    _say(f"{stage.name}: {verdict(ran.report)} in {seconds(took)}{where}")
    return ran


def judge(stage: Stage, code: int, selection: Selection, took: float, command_line: str, killed: int) -> Ran:
    if code == INTERRUPTED:
        return Ran(did_not_run(stage.name, f"{stage.name} was interrupted"), code)
    run_of = StageRun(stage.name, selection.profile, selection.target, command_line)
    stand_in = replace(run_of.finish(Outcome.ERROR), seconds=took)
    log = log_of(stage.name, selection.reports)
    report = report_of(selection.reports / f"{stage.name}.json", code, stand_in, log, killed)
    # A fault that nobody foresaw ends a process with 1 too, and is no verdict.
    crashed = code == 1 and report.outcome is Outcome.ERROR
    agreed = code in MEANING or report.outcome is Outcome.PASS
    return Ran(report, code if agreed and not crashed else LACKING)


def exit_code(rans: Iterable[Ran]) -> int:
    codes = {ran.code for ran in rans if ran.code}
    return next((code for code in MEANING if code in codes), LACKING if codes else 0)


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
    colour, width = wants_colour(sys.stdout, environ), terminal_width(environ)
    write(overview(reports, colour=colour, width=width, errors=SHOWN), sys.stdout)
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
        flags += _each(f"--{name}", value if isinstance(value, list) else [value] if value else [])
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


def _each(flag: str, values: Iterable[object] | None) -> list[str]:
    return [part for value in values or () for part in (flag, str(value))]


def _command(session: str, flags: Sequence[str]) -> str:
    return shlex.join(["nox", "-s", session, *(["--", *flags] if flags else [])])


def _on_github(environ: Mapping[str, str]) -> bool:
    return environ.get("GITHUB_ACTIONS") == "true"


def _say(text: str) -> None:
    write(f"{text}\n", sys.stdout)
