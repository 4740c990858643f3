"""Judge the programs of a suite on a device. All lanes whose programs have samples share this.

What a device gave comes from a folder that has a folder for each program."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ci.models.inputs import Sample
from ci.suite.accepted import Recorded
from ci.suite.accuracy import Unusable
from ci.suite.context_jobs import DeviceWanted, NotOneContext, PreparedJob, prepare_job
from ci.suite.contexts import ContextOutcome, ContextRun, RunContexts
from ci.suite.device_judgement import (
    DeviceJudgement,
    RanOn,
    accepted_difference,
    findings_about_device,
    judge_outputs,
    row_of_device,
)
from ci.suite.device_outputs import read_outputs
from ci.suite.figures import add_samples, describe_figures
from ci.suite.judged_samples import JudgedSamples
from ci.suite.lane_head import DEVICE_STAGE
from ci.suite.options import AIHUB, FOLDER, DeviceFlags
from ci.suite.programs import P, Suites
from ci.suite.stage import MeasuredValues, Verdict
from ci.work import Failure, Result
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError
from provisioning.base.files import empty_folder
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.option_fields import option_words

DEVICE = "device"
"""The name of the step of all lanes that has what a device gave."""
OF_HUB = "report what AI Hub gave: docs/devices.md says what is assumed of it"
TO_RUN = "to-run"
"""The folder among the reports with the files of programs that no device has run."""
FIELDS = {"sqnr_db": "device_sqnr_db", "agreement": "device_agreement"}
"""Maps a figure against the emulator to the field of an accepted result that has it."""


PROGRAMS = (".pte", ".onnx")


@dataclass(frozen=True, slots=True)
class ReadyProgram:
    """A program that ran on the emulator, with what a device needs to run it."""

    samples: JudgedSamples
    files: Sequence[Path]

    @property
    def program(self) -> Path:
        return next(path for path in self.files if path.suffix in PROGRAMS)


@dataclass(frozen=True, slots=True)
class HostedDevices:
    """Devices elsewhere that run contexts."""

    run: RunContexts
    library: Path
    """The libQnnSystem that reads the contexts."""


def device_results(
    programs: Sequence[P],
    ready: Callable[[P], ReadyProgram | None],
    flags: DeviceFlags,
    logs: Path,
    hosted: HostedDevices,
) -> dict[str, Result]:
    """Judge each program that the emulator ran; `ready` returns None for the others, which have findings of
    their own."""
    ready_by_name = {program.name: prepared for program in programs if (prepared := ready(program))}
    if flags.way == AIHUB:
        return _hosted_results(ready_by_name, flags, logs, hosted)
    assert flags.outputs is not None
    return {
        name: _judge_folder(name, prepared, flags.outputs / name, logs)
        for name, prepared in ready_by_name.items()
    }


def check_device(flags: DeviceFlags) -> None:
    """Refuse flags that do not say where the outputs come from."""
    if flags.way == AIHUB:
        if flags.outputs or not flags.device:
            message = "--on aihub needs the name of a device, and no --outputs"
            raise UsageError(message, fix="--on aihub --device 'Galaxy S25'")
        return
    if flags.device or flags.yes or flags.measure:
        message = "--device, --yes and --measure are for --on aihub"
        raise UsageError(message, fix="leave them out, or add --on aihub")
    if flags.outputs is None or not flags.outputs.is_dir():
        raise UsageError(
            f"--outputs: expected a folder with a folder for each program, found {flags.outputs or 'none'}",
            fix="give --outputs DIR",
        )


def _hosted_results(
    ready: Mapping[str, ReadyProgram], flags: DeviceFlags, logs: Path, hosted: HostedDevices
) -> dict[str, Result]:
    wanted = DeviceWanted(name=flags.device, profile=flags.measure)
    results: dict[str, Result] = {}
    prepared_jobs: dict[str, PreparedJob] = {}
    with TemporaryDirectory(prefix="qnn-ci-contexts-") as scratch:
        for name, row in ready.items():
            folder = Path(scratch, str(len(prepared_jobs)))
            try:
                job = prepare_job(name, row.program, row.samples, hosted.library, wanted, folder)
                prepared_jobs[name] = job
            except NotOneContext as error:
                results[name] = Result(failure=Failure("not-run", error.message, error.fix))
        jobs = [prepared.job for prepared in prepared_jobs.values()]
        outcomes = hosted.run(jobs, logs) if jobs else {}
        _require_service(outcomes)
    for name, prepared in prepared_jobs.items():
        outcome = outcomes[name]
        if isinstance(outcome, Failure):
            results[name] = Result(failure=outcome)
            continue
        ran_on = ran_on_hub(outcome)
        outputs = partial(prepared.read_outputs, outcome.outputs, ready[name].samples.emulated)
        results[name] = _judge(name, ready[name], outputs, ran_on, OF_HUB)
    return results


def _require_service(outcomes: Mapping[str, ContextOutcome]) -> None:
    """Raise the error that kept all programs from devices, such as a service that is down: it says nothing of
    the programs."""
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, Failure)]
    codes = {failure.exit_code for failure in failures}
    if len(failures) == len(outcomes) and len(codes) == 1 and CheckFailed.exit_code not in codes:
        first = failures[0]
        raise ToolkitError(first.message, fix=first.fix, exit_code=first.exit_code)


def ran_on_hub(run: ContextRun) -> RanOn:
    return RanOn(way=AIHUB, device=run.device, build_id=run.build_id, profile=run.profile)


def _judge_folder(name: str, prepared: ReadyProgram, outputs: Path, logs: Path) -> Result:
    if not outputs.is_dir():
        kit = write_kit(prepared, logs / TO_RUN / name)
        fix = f"run {kit} on the device with its input_list.txt, and copy the outputs to {outputs}"
        return Result(failure=Failure("not-run", f"no device has run it: {outputs} is no folder", fix))
    reading = partial(read_outputs, outputs, prepared.samples.emulated)
    fix = f"copy all outputs of one run of this program to {outputs}"
    return _judge(name, prepared, reading, RanOn(way=FOLDER, device=str(outputs)), fix)


def _judge(
    name: str, prepared: ReadyProgram, outputs: Callable[[], Sequence[Sample]], ran_on: RanOn, fix: str
) -> Result:
    try:
        judgement = judge_outputs(prepared.samples, outputs())
    except Unusable as error:
        return Result(failure=Failure(error.rule, str(error), fix))
    except UsageError as error:
        return Result(failure=Failure("missing", error.message, error.fix))
    words = add_samples(describe_figures(judgement.figures), judgement.each_db)
    sys.stderr.write(f"{name}: {words} on the device; {judgement.difference}\n")
    return Result(record=JudgedRun(judgement, ran_on))


@dataclass(frozen=True, slots=True)
class JudgedRun:
    judgement: DeviceJudgement
    ran_on: RanOn


def write_kit(prepared: ReadyProgram, folder: Path) -> Path:
    """Write the program, its inputs as raw files, and the list of them that runners read."""
    empty_folder(folder)
    for path in prepared.files:
        shutil.copyfile(path, folder / path.name)
    lines = [" ".join(_write_inputs(folder, *row)) + "\n" for row in enumerate(prepared.samples.inputs)]
    (folder / "input_list.txt").write_text("".join(lines), encoding="utf-8")
    return folder


def _write_inputs(folder: Path, number: int, sample: Sample) -> Iterator[str]:
    for index, array in enumerate(sample.values()):
        name = f"input_{number}_{index}.raw"
        array.tofile(folder / name)
        yield name


def verdict_on_device(
    program: P, result: Result | None, again: Fix, columns: Mapping[str, Metric]
) -> Verdict | None:
    """Return the verdict; None if the program did not come as far as a device. `columns` are the row's own of
    the lane, and `again` is the command that judges the program again."""
    if result is None:
        return None
    columns = {**columns, "command": again}
    if failure := result.failure:
        fix = Fix("{}; then {}", failure.fix, again)
        finding = Finding(f"device-{failure.rule}", Severity.ERROR, program.name, failure.message, fix)
        return Verdict([finding], columns)
    run = result.read(JudgedRun)
    accepting = again.plus("--accept")
    findings = findings_about_device(
        program.name,
        run.judgement,
        program.thresholds,
        program.run.kind,
        agreed_difference(program.recorded),
        again,
        accepting,
    )
    row = row_of_device(run.judgement, program.thresholds, program.run.kind, run.ran_on)
    return Verdict(findings, {**columns, **row})


def repeat_on_device(suites: Suites[P], program: P, stage: str, flags: DeviceFlags) -> Fix:
    """Return the command that judges the program again."""
    return suites.repeat(program, stage).plus(*option_words(flags, DEVICE_STAGE))


def agreed_difference(recorded: Recorded | None) -> dict[str, float]:
    """Return the accepted figures against the emulator."""
    if recorded is None:
        return {}
    values = {name: recorded.cost(field) for name, field in FIELDS.items()}
    return {name: value for name, value in values.items() if value is not None}


def measured_on_device(
    results: Mapping[str, Result], fields_of: Callable[[str], Mapping[str, object]]
) -> MeasuredValues:
    """Return how far the device is from the emulator, with a program's other fields of an accepted result."""
    recorded = {
        name: {**fields_of(name), **accepted_fields(result)}
        for name, result in results.items()
        if not result.failure
    }
    return MeasuredValues(recorded=recorded)


def accepted_fields(result: Result) -> dict[str, float]:
    """Return the fields of an accepted result that say how far the device may be from the emulator."""
    difference = accepted_difference(result.read(JudgedRun).judgement.difference)
    return {FIELDS[name]: value for name, value in difference.items()}
