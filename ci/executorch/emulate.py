"""`test_emulator`: every chosen program run on the HTP emulator and compared with PyTorch."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.engine.jobs import Job
from ci.executorch.verb import add_flags
from ci.suites.flags import add_accuracy
from provisioning.base.command_line import duration
from provisioning.base.commands import typed
from provisioning.base.settings import DEFAULT_TARGET, ROOT, Selection, add_selection, selection_of

if TYPE_CHECKING:
    from ci.engine.progress import Line

EXAMPLES = """\
  nox -s test_emulator
  nox -s test_emulator -- --tag pr
  nox -s test_emulator -- -k llama_decode/16a4w --soc SM8750
  nox -s test_emulator -- --update-thresholds
  nox -s build_android test_emulator
"""

MEASURING = ("ci/executorch/emulate.py", "ci/suites/accuracy.py")
"""The files of ours that figures and times come from: a change of them forgets what was kept."""

CLEARLY_DB = 6.0

RUNNER_MEMORY = 300 << 20
TAIL = 4000


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run on the emulator gave: figures by threshold name, and times; or the fault that stopped it."""

    figures: Mapping[str, float] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    rule: str = ""
    message: str = ""
    expected: bool = False
    """The suite says that it does not run, and it did not."""
    cached: bool = False
    seconds: float = 0.0
    kept: Path | None = None
    """Inputs, outputs and log of a failure."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    group = add_flags(parser)
    add_accuracy(group)
    group.add_argument(
        "--run-timeout",
        type=duration,
        default=300,
        metavar="S",
        help="end a run after S seconds [%(default)g]",
    )


def run(args: argparse.Namespace) -> int:
    from ci.executorch import stage as lowering
    from ci.suites.flags import check
    from ci.suites.stage import finish
    from provisioning.base.findings import StageRun

    selection = selection_of(args)
    check(args.suite or ())
    if args.list:
        return lowering.print_list(args, selection)
    command = typed("nox -s test_emulator --", sys.argv[2:])
    stage = StageRun("test_emulator", selection.profile, DEFAULT_TARGET, command)
    with stage.reported(selection.reports, "emulator-not-run"):
        _run(args, selection, stage, os.environ)
    return finish(stage, selection)


def _run(args: argparse.Namespace, selection: Selection, stage: Any, environ: Mapping[str, str]) -> None:
    from ci.engine.installed import ready_runner
    from ci.executorch.compile import Compiled
    from ci.executorch.stage import plan_of
    from ci.suites.baseline import agree

    runner = ready_runner(environ, selection.reports)
    plan = plan_of(args, selection, environ, "emulator")
    compiled = plan.compiled(environ)
    work = {name: each for name, each in compiled.items() if isinstance(each, Compiled)}
    measured = _measure_all(args, plan, runner, work, environ)
    figures = {name: rounded(each.figures) for name, each in measured.items() if not each.rule}
    if args.update_baseline or args.update_thresholds:
        agree(plan.baselines, plan.programs, figures, args.reason, stage.command)
    if args.update_baseline:
        update(plan, compiled, measured)
    if args.update_thresholds:
        plan = with_thresholds(plan, figures)
    judge(stage, plan, compiled, measured)


def _measure_all(
    args: argparse.Namespace, plan: Any, runner: Path, work: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, Measured]:
    """From the cache where nothing changed; a result that misses its thresholds is measured anew, so that
    its outputs are there to look at."""
    from ci.engine.installed import runner_digest
    from ci.engine.jobs import default_slots, memory_budget, run_jobs
    from ci.engine.memo import VerdictCache, digest_of_files, key_of
    from ci.engine.progress import progress

    cache = VerdictCache(plan.settings.store, "emulator", enabled=not args.no_cache)
    basis: dict[str, Any] = {
        "measuring": digest_of_files(ROOT, [ROOT / name for name in MEASURING]),
        "runner": runner_digest(runner),
        "sdk": dict(plan.basis.sdk),
    }
    programs = {program.name: program for program in plan.programs}
    keys = {
        name: key_of(
            {
                **basis,
                "program": each.facts["content"],
                "non_finite": programs[name].case.non_finite,
            }
        )
        for name, each in work.items()
    }
    measured: dict[str, Measured] = {}
    for name, key in keys.items():
        if kept := cache.get(key):
            result = _from_cache(kept)
            if not findings_of(programs[name], result):
                measured[name] = result
    jobs = [_job(name, plan.baseline(programs[name]).of(name)) for name in work if name not in measured]
    sys.stderr.write(f"{len(work)} programs on the emulator: {len(measured)} unchanged, {len(jobs)} to run\n")
    slots = args.jobs or default_slots()
    environment = {
        **plan.found.merged(environ),
        "OMP_NUM_THREADS": str(max(1, default_slots() // slots)),
    }

    def once(job: Job, slot: RunSlot) -> Measured:
        folder = plan.settings.logs / job.name.replace("/", "-")
        result = slot.measure(work[job.name], folder, programs[job.name].case.non_finite)
        if findings_of(programs[job.name], result):
            return result
        shutil.rmtree(result.kept or "", ignore_errors=True)
        if result.rule != "timeout":
            cache.put(keys[job.name], _to_cache(result))
        return replace(result, expected=bool(result.rule))

    with progress("runs on the emulator", jobs, slots, line_of) as shown:
        measured |= run_jobs(
            jobs,
            lambda: RunSlot(runner, environment, args.run_timeout, once),
            slots=slots,
            memory=memory_budget(),
            observer=shown,
        )
    cache.prune()
    return measured


def _to_cache(result: Measured) -> dict[str, Any]:
    return {
        "figures": dict(result.figures),
        "times": dict(result.times),
        "rule": result.rule,
        "message": result.message,
    }


def _from_cache(kept: Mapping[str, Any]) -> Measured:
    return Measured(
        _numbers(kept["figures"]), _numbers(kept["times"]), kept["rule"], kept["message"], cached=True
    )


def _numbers(value: Any) -> dict[str, float]:
    return {str(name): float(number) for name, number in value.items()}


def _job(name: str, recorded: Any) -> Job:
    return Job(name, (recorded.run_seconds if recorded else None) or 2.0, RUNNER_MEMORY)


class RunSlot:
    """A slot of the scheduler: one runner at a time, ended with the slot."""

    def __init__(self, runner: Path, environment: Mapping[str, str], timeout: float, once: Any) -> None:
        self._runner, self._environment, self._timeout, self._once = runner, environment, timeout, once
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def run(self, job: Job) -> Measured:
        result: Measured = self._once(job, self)
        return result

    def close(self) -> None:
        self._closed = True
        if self._process is not None and self._process.poll() is None:
            _kill(self._process)

    def measure(self, compiled: Any, folder: Path, non_finite: bool = False) -> Measured:
        """Run the program on its inputs and compare; the folder keeps everything of this run."""
        from ci.suites.accuracy import Unusable, compare, in_files

        shutil.rmtree(folder, ignore_errors=True)
        outputs = folder / "outputs"
        outputs.mkdir(parents=True)
        facts = compiled.facts
        for each in sorted(compiled.folder.glob("*.raw")):
            _link(each, folder / each.name)
        listed = "\n".join(
            " ".join(f'"{folder / row["file"]}"' for row in inference) for inference in facts["inputs"]
        )
        (folder / "input_list.txt").write_text(listed + "\n", encoding="utf-8")
        began = time.monotonic()
        code, late = self._execute(compiled.path, folder, outputs)
        seconds = time.monotonic() - began
        if late:
            return Measured(
                rule="timeout", message=f"no result after {self._timeout:g} s", seconds=seconds, kept=folder
            )
        if code != 0:
            return Measured(rule="run", message=_ended(code, folder), seconds=seconds, kept=folder)
        try:
            figures = compare(
                in_files(outputs, folder, facts["expected"]),
                in_files(outputs, folder, facts["reference"]),
                non_finite=non_finite,
            )
            times = _times(folder / "metrics.json")
        except Unusable as error:
            return Measured(rule=error.rule, message=str(error), seconds=seconds, kept=folder)
        return Measured(figures, times, seconds=seconds, kept=folder)

    def _execute(self, program: Path, folder: Path, outputs: Path) -> tuple[int, bool]:
        command = [
            str(self._runner),
            *("--model_path", str(program), "--input_list_path", str(folder / "input_list.txt")),
            *("--output_folder_path", str(outputs), "--metrics_path", str(folder / "metrics.json")),
            *("--etdump_path=", "--performance_output_path="),
        ]
        with (folder / "run.log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            if self._closed:
                # Whoever closed the slot found nothing to end yet.
                _kill(self._process)
            try:
                return self._process.wait(self._timeout), False
            except subprocess.TimeoutExpired:
                _kill(self._process)
                return self._process.wait(), True


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _ended(code: int, folder: Path) -> str:
    from ci.engine.supervision import how_it_ended
    from ci.engine.workers.parent import tail
    from provisioning.base.diagnosis import explain

    log = tail(folder / "run.log", TAIL)
    said = [line for line in log.splitlines() if "error:" in line.lower() or "[ERROR]" in line]
    known = explain(log)
    return (
        f"the runner {how_it_ended(code)}"
        + (f": {said[-1].strip()}" if said else "")
        + (f". {known[0]}" if known else "")
    )


def _times(path: Path) -> dict[str, float]:
    from ci.suites.accuracy import Unusable

    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return {
            "load_ms": read["load_ms"],
            "run_ms": read["mean_ms"],
            "peak_bytes": read["peak_rss_kb"] * 1024,
        }
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Unusable("missing", f"the runner wrote no times to {path.name}: {error!r}") from error


def line_of(result: Measured) -> Line:
    from ci.engine.progress import Line, failed

    if result.expected:
        return Line("ran", f"fails as the suite expects: {result.message}")
    if result.rule:
        return failed(f"{result.rule}: {result.message}")
    figures = result.figures
    return Line("ran", f"SQNR {figures['sqnr_db']:.1f} dB, cosine {figures['cosine']:.6f}")


def judge(stage: Any, plan: Any, compiled: Mapping[str, Any], measured: Mapping[str, Measured]) -> None:
    from ci.executorch.compile import Fault
    from ci.executorch.judge import fault_finding, repeat
    from ci.suites.findings import placeholder, verdict
    from provisioning.base.findings import Artifact, Finding

    rows: dict[str, Any] = {}
    for program in plan.programs:
        again = repeat(program, "test_emulator")
        result = measured.get(program.name)
        made = compiled.get(program.name)
        findings: list[Finding]
        if result is not None:
            losses = made.facts.get("losses", ()) if made and not isinstance(made, Fault) else ()
            findings = findings_of(program, result, losses)
            findings += placeholder(program, f"{again} --update-thresholds")
        elif isinstance(made, Fault):
            findings = [fault_finding(program, made, "test_emulator")]
        else:
            findings = [plan.refused[program.name]]
        stage.findings += findings
        if result is not None and result.kept and verdict(findings) == "fail":
            stage.artifacts += [Artifact.of("failure", path) for path in sorted(result.kept.rglob("*.raw"))]
        rows[program.name] = row(program, result, findings, plan.baseline(program).of(program.name))
    stage.metrics |= {
        "selected": len(plan.programs),
        "cached": sum(result.cached for result in measured.values()),
        "failed": sum(each["verdict"] != "pass" for each in rows.values()),
        "build_id": plan.basis.build_id,
        "programs": rows,
    }


def findings_of(program: Any, result: Measured, losses: Sequence[Mapping[str, Any]] = ()) -> list[Any]:
    """What is wrong with a run; `losses` are the operators at which quantizing loses most."""
    from ci.executorch.judge import repeat
    from ci.suites.accuracy import missed
    from provisioning.base.findings import Finding, Severity

    again = repeat(program, "test_emulator")
    where = f"; inputs, outputs and log are in {result.kept}" if result.kept else ""

    def wrong(rule: str, message: str) -> Finding:
        return Finding(f"emulator-{rule}", Severity.ERROR, program.name, message + where, again)

    if fault := program.run.emulator_fault:
        if fault in result.message:
            return []
        found = result.message or "it runs"
        return [wrong("fault", f"expected it not to run ({fault}), found: {found}; correct the suite")]
    if result.rule:
        return [wrong(result.rule, result.message)]
    if not (misses := missed(program.run.effective_thresholds, result.figures)):
        return []
    said = "; ".join(map(str, misses))
    missing = {miss.figure.startswith("reference") for miss in misses}
    figures = result.figures
    # Nearer to the quantized model than to the float one: it is the quantized model that is off.
    follows = figures.get("reference_sqnr_db", math.inf) > figures.get("sqnr_db", math.inf) + CLEARLY_DB
    if True in missing and not (False in missing and follows):
        said += "; the program computes something else than the quantized model that it was made from"
    elif losses:
        said += f"; quantizing loses most in {lost_at(losses[0])}"
    return [wrong("accuracy", said)]


def lost_at(loss: Mapping[str, Any]) -> str:
    where = loss["operator"] + (f" of {loss['module']}" if loss["module"] else "")
    where += f" at {loss['source']} `{loss['code']}`" if loss["source"] else ""
    return f"{where} ({loss['before_db']:g} dB before it, {loss['after_db']:g} dB after)"


def row(program: Any, result: Measured | None, findings: Sequence[Any], agreed: Any) -> dict[str, Any]:
    from ci.executorch.judge import repeat
    from ci.executorch.stage import identity
    from ci.suites.findings import shown_thresholds, verdict

    shown = {
        **identity(program),
        "verdict": verdict(findings),
        "command": repeat(program, "test_emulator"),
        "thresholds": shown_thresholds(program),
        "expected_fault": program.run.emulator_fault,
    }
    if result is None or result.rule:
        return shown
    return shown | {
        "cached": result.cached,
        "figures": dict(result.figures),
        "baseline": dict(agreed.accuracy) if agreed else {},
        **result.times,
    }


def update(plan: Any, compiled: Mapping[str, Any], measured: Mapping[str, Measured]) -> None:
    """Costs and accuracy of what ran, so that those of a program are of one build."""
    from ci.executorch.judge import costs_of
    from ci.executorch.suite import SUITES

    for suite, baseline in list(plan.baselines.items()):
        values = {
            program.name: {
                "build_id": plan.basis.build_id,
                **costs_of(compiled[program.name]),
                "accuracy": rounded(measured[program.name].figures),
                **(
                    {}
                    if measured[program.name].cached
                    else {"run_seconds": round(measured[program.name].seconds, 1)}
                ),
            }
            for program in plan.programs
            if program.suite == suite and program.name in measured and not measured[program.name].rule
        }
        known = [program.name for program in SUITES.all_programs([suite])]
        plan.baselines[suite] = baseline.rewritten(values, known)


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """As the baseline has them, so that thresholds follow from what it says."""
    return {name: round(value, 6) for name, value in figures.items()}


def with_thresholds(plan: Any, figures: Mapping[str, Mapping[str, float]]) -> Any:
    """Write the figures to the suites as thresholds, and give the plan judged by these."""
    from ci.executorch.suite import SUITES
    from ci.suites.baseline import load_tolerances
    from ci.suites.thresholds import update_suite

    changed: dict[str, Any] = {}
    for suite in plan.baselines:
        update_suite(suite, SUITES.programs_of, figures, load_tolerances().sqnr_margin_db)
        programs = SUITES.programs_of(suite, profile=plan.selection.profile)
        changed |= {program.name: program for program in programs}
    return replace(plan, programs=tuple(changed.get(program.name, program) for program in plan.programs))
