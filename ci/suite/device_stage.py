"""Judge the programs of a suite on a device. All lanes whose programs have samples share this.

What a device gave comes from a folder that has a folder for each program."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.models.inputs import Sample
from ci.suite.accepted import Recorded
from ci.suite.accuracy import Unusable
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
from ci.suite.options import DeviceFlags
from ci.suite.programs import P, Program, Suites
from ci.suite.stage import Verdict
from ci.work import Failure, Result
from provisioning.base.commands import Fix
from provisioning.base.errors import UsageError
from provisioning.base.files import empty_folder
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.option_fields import option_words

DEVICE = "device"
"""The name of the step of all lanes that has what a device gave."""
TO_RUN = "to-run"
"""The folder among the reports with the files of programs that no device has run."""
FIELDS = {"sqnr_db": "device_sqnr_db", "agreement": "device_agreement"}
"""Maps a figure against the emulator to the field of an accepted result that has it."""


@dataclass(frozen=True, slots=True)
class ReadyProgram:
    """A program that ran on the emulator, with what a device needs to run it."""

    samples: JudgedSamples
    files: Sequence[Path]


def device_results(
    programs: Sequence[P], ready: Callable[[P], ReadyProgram | None], flags: DeviceFlags, logs: Path
) -> dict[str, Result]:
    """Judge each program that the emulator ran; `ready` returns None for the others, which have findings of
    their own."""
    folder = flags.outputs
    if folder is None or not folder.is_dir():
        raise UsageError(
            f"--outputs: expected a folder with a folder for each program, found {folder or 'none'}",
            fix="give --outputs DIR",
        )
    results = {}
    for program in programs:
        if prepared := ready(program):
            results[program.name] = _judge(program, prepared, folder / program.name, flags, logs)
    return results


def _judge(program: Program, prepared: ReadyProgram, outputs: Path, flags: DeviceFlags, logs: Path) -> Result:
    if not outputs.is_dir():
        kit = write_kit(prepared, logs / TO_RUN / program.name)
        fix = f"run {kit} on the device with its input_list.txt, and copy the outputs to {outputs}"
        return Result(failure=Failure("not-run", f"no device has run it: {outputs} is no folder", fix))
    try:
        judgement = judge_outputs(prepared.samples, read_outputs(outputs, prepared.samples.emulated))
    except Unusable as error:
        fix = f"copy all outputs of one run of this program to {outputs}"
        return Result(failure=Failure(error.rule, str(error), fix))
    except UsageError as error:
        return Result(failure=Failure("missing", error.message, error.fix))
    words = add_samples(describe_figures(judgement.figures), judgement.each_db)
    sys.stderr.write(f"{program.name}: {words} on the device; {judgement.difference}\n")
    return Result(record=JudgedRun(judgement, RanOn(way=flags.way, device=str(outputs))))


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


def accepted_fields(result: Result) -> dict[str, float]:
    """Return the fields of an accepted result that say how far the device may be from the emulator."""
    difference = accepted_difference(result.read(JudgedRun).judgement.difference)
    return {FIELDS[name]: value for name, value in difference.items()}
