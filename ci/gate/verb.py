"""`gate`: run the stages that decide a pull request, in order, each as its own process, and sum them up. The
stages of one lane judge one pass over the suites: they share a process.

The exit code is 130 or 143 if interrupted, else the stages' worst: 70 (an error of our own), 2 (usage),
3 (the environment lacks something, or a stage died), 4 (network or upstream), 1 (a check failed, and
everything could be checked).
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci.gate.options import GateOptions, add_flags, read_options
from ci.gate.supervision import LACKING, LOGS, WORST_FIRST, log_of, report_of, supervise
from ci.report.collect import clean_report, did_not_run, report_in
from ci.report.summary import command, conclusion, github_annotations, stage_line, worst
from ci.suite.lane_head import judging
from ci.suite.options import GATE
from provisioning.base import answer
from provisioning.base.commands import Fix, repeat_flag, session
from provisioning.base.errors import STOPPED, CheckFailed
from provisioning.base.findings import Artifact, Outcome, Report, Severity
from provisioning.base.parser import Parser
from provisioning.base.progress import show_working
from provisioning.base.rendering import LOG, render, summary_of, verdict, wants_colour, write
from provisioning.base.settings import Selection
from provisioning.base.stage_run import RUN, StageRun
from provisioning.base.units import terminal_width

if TYPE_CHECKING:
    from ci.gate.table import GateStage

EXAMPLES = """\
  nox
  nox -- --soc SM8750
  nox -- --suite ../mine/models.toml
  nox -- --tag nightly --skip provision
  python -m ci gate --only validate
"""

ERRORS_SHOWN = 10
"""The gate's last lines show at most this many findings; the page has all."""


@dataclass(frozen=True, slots=True)
class StageResult:
    report: Report
    code: int | None = None
    """The exit code; None if the stage was not started."""

    @property
    def lets_others_run(self) -> bool:
        return verdict(self.report) in ("pass", "skipped")


def configure(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    from ci.gate.planning import planned_stages
    from ci.gate.table import gate_stages

    options = read_options(args)
    names = options.flags.chosen_stages
    stages = planned_stages(gate_stages(), options)
    chosen = [stage for stage in stages if stage.name in names]
    # On GitHub a stage's report has the line that is annotated.
    if options.choice.suites and not _is_github_job(os.environ):
        _refuse_mistakes([stage.lane for stage in chosen if stage.lane], options)
    for stage in chosen:
        # One that cannot be made ends the gate before its first stage.
        interpreter_of(stage)
    return run_gate(stages, names, options, echo=options.flags.verbose or _is_github_job(os.environ))


def _refuse_mistakes(lanes: Iterable[str], options: GateOptions) -> None:
    """Raise the error of a suite with mistakes before the first stage runs."""
    from ci.gate.planning import choice_for_lane, jobs_of

    for lane in dict.fromkeys(lanes):
        jobs_of(lane, choice_for_lane(lane, options.programs) or options.programs, options.selection)


def run_gate(
    stages: Sequence[GateStage], names: Sequence[str], options: GateOptions, *, echo: bool = False
) -> int:
    """Run the planned stages that have these names, and report.

    If `echo`, the output of the stages is shown too; otherwise it is only in their logs."""
    # The stages are of the run that this gate is a part of, or of one of its own.
    os.environ[RUN] = os.environ.get(RUN) or os.urandom(16).hex()
    selection = options.selection
    gate = StageRun(GATE, selection.profile, selection.target, options.command)
    results = run_stages(stages, names, options, echo=echo)
    reports = [result.report for result in results]
    for report in reports:
        answer.add_report(report)
    summarise(gate, results).write(selection.reports)
    conclude(reports, selection.reports, os.environ)
    return exit_code(results)


def run_stages(
    stages: Sequence[GateStage], names: Sequence[str], options: GateOptions, *, echo: bool = False
) -> list[StageResult]:
    """Run the chosen stages in order. Afterwards reports/ has one report of each, and none of an earlier
    run."""
    selection, flags = options.selection, options.selection_words
    for name in (GATE, *(stage.name for stage in stages)):
        for old in (selection.reports / f"{name}.json", selection.reports / LOGS / f"{name}.log"):
            with suppress(NotADirectoryError):  # writing a report explains such an error better
                old.unlink(missing_ok=True)
    _unfinished_report(stages, options).write(selection.reports)
    results: dict[str, StageResult] = {}
    width = max(len(stage.name) for stage in stages)
    for _, group in itertools.groupby(stages, _pass_of):
        passing = [*group]
        left_out = {stage.name: _left_out(stage, names, results, flags) for stage in passing}
        judging = [stage for stage in passing if left_out[stage.name] is None]
        ran = run_pass(judging, flags, selection, echo=echo) if judging else {}
        for stage in passing:
            result = left_out[stage.name] or ran[stage.name]
            if stage.name in names:
                line, colour = stage_line(result.report, width), wants_colour(sys.stdout)
                write(render(line, colour=colour, width=terminal_width()), sys.stdout)
            replace(result.report, run=os.environ.get(RUN, "")).write(selection.reports)
            results[stage.name] = result
    return list(results.values())


def _pass_of(stage: GateStage) -> tuple[str, ...]:
    """Stages of one lane judge one pass; any other stage is alone."""
    return (stage.lane or stage.name, *stage.flags)


def _left_out(
    stage: GateStage, names: Sequence[str], results: Mapping[str, StageResult], flags: Sequence[str]
) -> StageResult | None:
    """Return the result of a stage that is not to run; None if it is."""
    call = session(stage.name, *flags, *stage.flags)
    failed = [need for need in stage.needs if not results[need].lets_others_run]
    if stage.name not in names:
        return StageResult(did_not_run(stage.name, "left out by --only or --skip", call, due=False))
    if any(result.code in STOPPED for result in results.values()):
        return StageResult(did_not_run(stage.name, "the gate was interrupted", call))
    if failed:
        reason = f"needs {' and '.join(failed)}, which did not pass"
        return StageResult(did_not_run(stage.name, reason, call))
    return None


def _unfinished_report(stages: Sequence[GateStage], options: GateOptions) -> Report:
    """Return the gate's report until it has its own: if the gate is killed, the report lists the stages that
    never ran."""
    selection = options.selection
    gate = StageRun(GATE, selection.profile, selection.target, options.command)
    gate.metrics["stages"] = [{"stage": stage.name} for stage in stages]
    gate.add("gate-unfinished", Severity.ERROR, GATE, "the gate did not come to its end", gate.command)
    return gate.finish(Outcome.ERROR, provisional=True)


def run_pass(
    stages: Sequence[GateStage], flags: Sequence[str], selection: Selection, *, echo: bool
) -> dict[str, StageResult]:
    """Run one process, of a stage or of the stages that judge one pass."""
    start = time.monotonic()
    names, last = [stage.name for stage in stages], stages[-1]
    flags = [*flags, *last.flags]
    log = log_of(names[0], selection.reports)
    # Unbuffered and with faulthandler, so that the log of a stage that dies is complete and shows where.
    python = [interpreter_of(last), "-u", "-X", "faulthandler", "-m", last.program]
    only = repeat_flag("--only", names)
    call = session(GATE, *only, *flags) if len(names) > 1 else session(last.name, *flags)
    title = " and ".join(names)
    with fold_output(title, call, os.environ) if echo else show_working(f"{title} into {log}", interval=60):
        sys.stdout.flush()
        environ = {**os.environ, **judging(names)} if len(names) > 1 else os.environ
        code = supervise([*python, last.name, *flags], environ, log, echo=1 if echo else None)
    duration = round(time.monotonic() - start, 3)
    results = {}
    for stage, own_code in zip(stages, codes_of_pass(names, code, selection.reports), strict=True):
        result = judge(stage, own_code, selection, duration, session(stage.name, *flags), log)
        report = replace(result.report, artifacts=(*result.report.artifacts, Artifact.of(LOG, log)))
        results[stage.name] = replace(result, report=report)
    return results


def codes_of_pass(names: Sequence[str], code: int, reports: Path) -> list[int]:
    """Return the exit code that each of these stages ended with, as its report says. Their process ended with
    `code`: where no report explains that, it is the last one's."""
    codes = [_code_of(reports / f"{name}.json", code) for name in names]
    return codes if code in codes else [*codes[:-1], code]


def _code_of(file: Path, code: int) -> int:
    try:
        outcome = report_in(file).outcome
    except (OSError, ValueError):
        return code
    return {Outcome.PASS: 0, Outcome.FAIL: CheckFailed.exit_code}.get(outcome, code)


def interpreter_of(stage: GateStage) -> str:
    """Return the Python of the stage's locked environment, which is created if it does not exist."""
    if not stage.environment:
        return sys.executable
    from provisioning.python_environments import PythonEnvironments, environments_folder

    return PythonEnvironments(environments_folder(), _print).interpreter(stage.environment)


def judge(
    stage: GateStage, code: int, selection: Selection, duration: float, command_line: str, log: Path
) -> StageResult:
    if code in STOPPED:
        return StageResult(did_not_run(stage.name, f"{stage.name} was interrupted", command_line), code)
    stage_run = StageRun(stage.name, selection.profile, selection.target, command_line)
    stand_in = replace(stage_run.finish(Outcome.ERROR, provisional=True), seconds=duration)
    report = report_of(selection.reports / f"{stage.name}.json", code, stand_in, log)
    # Exit code 1 means that the checked thing is bad. A stage that could not check it did not find that.
    trusted = report.outcome is not Outcome.ERROR if code == 1 else code in WORST_FIRST
    return StageResult(report, code if trusted or report.outcome is Outcome.PASS else LACKING)


def exit_code(results: Iterable[StageResult]) -> int:
    codes = {result.code for result in results if result.code}
    return next((code for code in WORST_FIRST if code in codes), LACKING if codes else 0)


def summarise(gate: StageRun, results: Sequence[StageResult]) -> Report:
    """Make the gate's own report, with a finding for each stage that did not pass."""
    for result in results:
        report = result.report
        gate.artifacts += report.artifacts
        word = verdict(report)
        if word != "pass":
            severity = Severity.NOTE if word == "skipped" else Severity.ERROR
            gate.add("gate-stage", severity, report.stage, f"{word}: {summary_of(report)}", report.command)
    gate.metrics["stages"] = [
        {"stage": r.report.stage, "verdict": verdict(r.report), "seconds": r.report.seconds, "exit": r.code}
        for r in results
    ]
    return gate.finish(worst(result.report for result in results))


def conclude(reports: Sequence[Report], directory: Path, environ: Mapping[str, str]) -> None:
    """Print the findings and write the renderings; on GitHub, also write the annotations and the job's
    summary."""
    from ci.report.renderings import publish

    reports = [clean_report(report, Parser.user_folder().absolute()) for report in reports]
    _print("")
    colour, width = wants_colour(sys.stdout, environ), terminal_width(environ)
    more = Fix("{} shows them", session("report"))
    write(conclusion(reports, more, colour=colour, width=width, errors=ERRORS_SHOWN), sys.stdout)
    if _is_github_job(environ):
        write(github_annotations(reports), sys.stdout)
    page, *_ = publish(reports, directory, environ)
    _print(f"the whole report: {page}")


@contextmanager
def fold_output(title: str, line: str, environ: Mapping[str, str]) -> Iterator[None]:
    """Print a heading above a stage's output; on GitHub, the output folds under it."""
    if _is_github_job(environ):
        _print(command("group", f"{title}: {line}"))
    else:
        _print(f"\n━━ {title}: {line}")
    try:
        yield
    finally:
        if _is_github_job(environ):
            _print(command("endgroup"))


def _is_github_job(environ: Mapping[str, str]) -> bool:
    return environ.get("GITHUB_ACTIONS") == "true"


def _print(text: str) -> None:
    write(f"{text}\n", sys.stdout)
