"""`run_device PROGRAM`: run one program on a device and judge its outputs, with the samples that `compile
--keep-samples` wrote beside it.

The device is one at adb or ssh, which gets a bundle; one of AI Hub, which gets the program's context; or any
other, whose outputs are in a folder. In each case the outputs are compared with float's and with the
emulator's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ci.artifacts.compiled_onnx import read_model
from ci.artifacts.records import require_recorded
from ci.device.bundle_contents import read_bundle
from ci.device.run_bundle import DeviceOptions, run_bundle, the_bundle
from ci.device.session import OUTPUTS
from ci.hub.service import HubOptions, run_contexts
from ci.models.inputs import Sample
from ci.suite.accuracy import Unusable
from ci.suite.context_jobs import ONNX, DeviceWanted, NotOneContext, onnx_library, prepare_job, sdk_library
from ci.suite.device_judgement import (
    DeviceJudgement,
    RanOn,
    findings_about_device,
    judge_outputs,
    row_of_device,
)
from ci.suite.device_outputs import read_outputs
from ci.suite.device_stage import ran_on_hub
from ci.suite.figures import add_samples, describe_figures
from ci.suite.findings import verdict
from ci.suite.judged_samples import JudgedSamples, digest_of_files, read_samples, samples_path
from ci.suite.options import AIHUB, FOLDER
from ci.suite.ready_environment import provisioned_environment
from ci.suite.suite_file import Thresholds
from ci.work import Failure
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError
from provisioning.base.files import hash_file
from provisioning.base.findings import Metric, Severity
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.base.stage_run import StageRun
from provisioning.base.units import readable
from provisioning.components import QNN_SDK
from provisioning.dist import BUNDLES

ADB, SSH = "adb", "ssh"


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    program: Path
    way: str
    """How the program reaches the device: ADB, SSH, AIHUB or FOLDER."""
    outputs: Path | None
    """The folder of the outputs, where the device ran the program by other means."""
    device: DeviceOptions
    """How the device is reached."""
    wanted: DeviceWanted | None = None
    """The device of AI Hub."""
    uploads_agreed: bool = False
    """Whether the user agreed that the program and its samples are uploaded."""


def judge_program(options: JudgeOptions, selection: Selection, stage: StageRun) -> None:
    """Run the program with its samples, or read what ran elsewhere, and put the verdict into the report."""
    samples = samples_beside(options.program)
    if options.way == AIHUB:
        _judge_on_hub(options, samples, selection, stage)
        return
    if options.way == FOLDER:
        assert options.outputs is not None
        outputs = partial(read_outputs, options.outputs, samples.emulated)
        _judge(options, samples, outputs, RanOn(way=FOLDER, device=str(options.outputs)), stage)
        return
    bundle, model = bundled_program(options, selection, samples)
    with _input_list(samples.inputs) as inputs:
        device = replace(options.device, bundle=bundle, model=model, inputs=inputs)
        folder = run_bundle(device, selection, stage)
    if folder is not None:
        ran_on = RanOn(
            way=options.way,
            device=str(stage.metrics.get("device", "")),
            build_id=read_bundle(bundle).qnn_build_id,
        )
        _judge(options, samples, partial(read_outputs, folder / OUTPUTS, samples.emulated), ran_on, stage)


def _judge_on_hub(
    options: JudgeOptions, samples: JudgedSamples, selection: Selection, stage: StageRun
) -> None:
    """Run the program's context on a device of AI Hub, and judge its outputs."""
    name, wanted = options.program.stem, options.wanted
    assert wanted is not None
    hub = HubOptions(
        store=selection.store,
        uploads_agreed=options.uploads_agreed,
        seconds=options.device.timeout,
    )
    with TemporaryDirectory(prefix="qnn-ci-context-") as scratch:
        try:
            library = system_library(options.program, selection)
            prepared = prepare_job(name, options.program, samples, library, wanted, Path(scratch))
        except NotOneContext as error:
            _report_not_run(options, samples, Failure("not-run", error.message, error.fix), stage)
            return
        outcome = run_contexts(hub, [prepared.job], selection.reports.absolute() / "device")[name]
    if isinstance(outcome, Failure):
        if outcome.exit_code != CheckFailed.exit_code:
            raise ToolkitError(outcome.message, fix=outcome.fix, exit_code=outcome.exit_code)
        _report_not_run(options, samples, outcome, stage)
        return
    ran_on = ran_on_hub(outcome)
    outputs = partial(prepared.read_outputs, outcome.outputs, samples.emulated)
    _judge(options, samples, outputs, ran_on, stage)


def system_library(program: Path, selection: Selection) -> Path:
    """Return the libQnnSystem of the QNN that compiled the program: it reads the context."""
    if program.suffix == ONNX:
        return onnx_library()
    host = replace(selection, named_targets=(DEFAULT_TARGET,))
    return sdk_library(provisioned_environment(host, os.environ).root(QNN_SDK).path)


def _report_not_run(options: JudgeOptions, samples: JudgedSamples, failure: Failure, stage: StageRun) -> None:
    """Report a program that no device has run."""
    name, again = options.program.stem, Fix("{}", _command_again(options))
    stage.add(f"device-{failure.rule}", Severity.ERROR, name, failure.message, failure.fix)
    stage.metrics["programs"] = {name: {**_row_of(samples, again), "verdict": "fail"}}


def _row_of(samples: JudgedSamples, again: Fix) -> dict[str, Metric]:
    return {"soc": samples.facts.soc, "scheme": samples.facts.kind, "command": again}


def samples_beside(program: Path) -> JudgedSamples:
    """Read the program's samples. Raises an error if it has none, or if they are of another program."""
    if not program.is_file():
        fix = "name the .pte or .onnx that compile wrote"
        raise UsageError(f"{program}: there is no such program", fix=fix)
    path = samples_path(program)
    again = session("compile", "MODEL", "--keep-samples", "-o", program.parent)
    if not path.is_file():
        raise UsageError(
            f"{program} has no samples to judge a device with: expected {path}",
            fix=Fix("{}, which compiles nothing again that is unchanged", again),
        )
    files = _files_of(program)
    require_recorded(program, files[1:])
    samples = read_samples(path)
    if digest_of_files(files) != samples.facts.program:
        raise CheckFailed(f"{path}: these are the samples of another program than {program.name}", fix=again)
    return samples


def _files_of(program: Path) -> list[Path]:
    if program.suffix != ".onnx":
        return [program]
    return [program, *(program.with_name(name) for name in read_model(program).files)]


def bundled_program(options: JudgeOptions, selection: Selection, samples: JudgedSamples) -> tuple[Path, str]:
    """Return the bundle, and the name that the program has in it."""
    folder = options.device.bundle or the_bundle(BUNDLES, "", (samples.facts.soc,))
    digest = hash_file(options.program)
    for file in read_bundle(folder).files:
        if file.kind == "model" and file.sha256 == digest:
            return folder, Path(file.path).name
    raise CheckFailed(
        f"{folder} does not have {options.program}",
        fix=Fix("{}", ("bundle", "--soc", samples.facts.soc, options.program)),
    )


@contextmanager
def _input_list(samples: Sequence[Sample]) -> Iterator[Path]:
    """Write the samples as raw files, and the list of them that runners read."""
    with TemporaryDirectory(prefix="qnn-ci-inputs-") as scratch:
        lines = []
        for number, sample in enumerate(samples):
            names = [f"input_{number}_{index}.raw" for index in range(len(sample))]
            for name, array in zip(names, sample.values(), strict=True):
                array.tofile(Path(scratch, name))
            lines.append(" ".join(names) + "\n")
        path = Path(scratch, "list.txt")
        path.write_text("".join(lines), encoding="utf-8")
        yield path


def _judge(
    options: JudgeOptions,
    samples: JudgedSamples,
    outputs: Callable[[], Sequence[Sample]],
    ran_on: RanOn,
    stage: StageRun,
) -> None:
    name, facts = options.program.stem, samples.facts
    again = Fix("{}", _command_again(options))
    try:
        judgement = judge_outputs(samples, outputs())
    except Unusable as error:
        fix = Fix("copy all outputs of one run of this program there; then {}", again)
        _report_not_run(options, samples, Failure(error.rule, str(error), fix), stage)
        return
    findings = list(findings_about_device(name, judgement, Thresholds(), facts.kind, {}, again))
    stage.findings += findings
    result = verdict(findings)
    _print_judgement(name, judgement, ran_on, passed=result == "pass")
    row = row_of_device(judgement, Thresholds(), facts.kind, ran_on)
    stage.metrics["programs"] = {name: {**_row_of(samples, again), "verdict": result, **row}}


def _command_again(options: JudgeOptions) -> tuple[str, ...]:
    words = ["run_device", str(options.program), "--on", options.way]
    if options.outputs:
        words += ["--outputs", str(options.outputs)]
    if options.wanted:
        words += ["--device", options.wanted.name, *(["--measure"] if options.wanted.profile else [])]
    if options.uploads_agreed:
        words.append("--yes")
    return tuple(words)


def _print_judgement(name: str, judgement: DeviceJudgement, ran_on: RanOn, *, passed: bool) -> None:
    on_device = add_samples(describe_figures(judgement.figures), judgement.each_db)
    runtime = f", QNN {ran_on.build_id}" if ran_on.build_id else ""
    lines = [
        f"{'✓' if passed else '✗'} {name} on {ran_on.device}{runtime}: {on_device} against float",
        f"  the emulator: {describe_figures(judgement.emulated)} against float",
        f"  the device: {judgement.difference}",
        *([f"  measured: {ran_on.profile}"] if ran_on.profile else []),
        *(f"  {line}" for line in judgement.slices),
    ]
    sys.stdout.write(readable("\n".join(lines) + "\n", sys.__stdout__ or sys.stdout))
