"""Judge one program on a device: with the samples that `compile --keep-samples` wrote beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ci.artifacts.compiled_onnx import read_model
from ci.artifacts.records import require_recorded
from ci.device.bundle_contents import read_bundle
from ci.device.run_bundle import DeviceOptions, run_bundle, the_bundle
from ci.device.session import OUTPUTS
from ci.models.inputs import Sample
from ci.suite.accuracy import Unusable
from ci.suite.device_judgement import (
    DeviceJudgement,
    RanOn,
    findings_about_device,
    judge_outputs,
    row_of_device,
)
from ci.suite.device_outputs import read_outputs
from ci.suite.figures import add_samples, describe_figures
from ci.suite.findings import verdict
from ci.suite.judged_samples import JudgedSamples, digest_of_files, read_samples, samples_path
from ci.suite.suite_file import Thresholds
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file
from provisioning.base.findings import Metric, Severity
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.base.units import readable
from provisioning.dist import BUNDLES

FOLDER, ADB, SSH = "folder", "adb", "ssh"


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    program: Path
    way: str
    outputs: Path | None
    """The folder of the outputs, where the device ran the program by other means."""
    device: DeviceOptions
    """How the device is reached."""


def judge_program(options: JudgeOptions, selection: Selection, stage: StageRun) -> None:
    """Run the program with its samples, or read what ran elsewhere, and put the verdict into the report."""
    samples = samples_beside(options.program)
    if options.way == FOLDER:
        assert options.outputs is not None
        _judge(options, samples, options.outputs, RanOn(way=FOLDER, device=str(options.outputs)), stage)
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
        _judge(options, samples, folder / OUTPUTS, ran_on, stage)


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
    options: JudgeOptions, samples: JudgedSamples, folder: Path, ran_on: RanOn, stage: StageRun
) -> None:
    name, facts = options.program.stem, samples.facts
    again = Fix("{}", _again(options))
    row: dict[str, Metric] = {"soc": facts.soc, "scheme": facts.kind, "command": again}
    try:
        judgement = judge_outputs(samples, read_outputs(folder, samples.emulated))
    except Unusable as error:
        fix = Fix("copy all outputs of one run of this program there; then {}", again)
        stage.add(f"device-{error.rule}", Severity.ERROR, name, str(error), fix)
        stage.metrics["programs"] = {name: {**row, "verdict": "fail"}}
        return
    findings = list(findings_about_device(name, judgement, Thresholds(), facts.kind, {}, again))
    stage.findings += findings
    result = verdict(findings)
    _show(name, judgement, ran_on, passed=result == "pass")
    row |= {"verdict": result, **row_of_device(judgement, Thresholds(), facts.kind, ran_on)}
    stage.metrics["programs"] = {name: row}


def _again(options: JudgeOptions) -> tuple[str, ...]:
    words = ["run_device", str(options.program), "--on", options.way]
    if options.outputs:
        words += ["--outputs", str(options.outputs)]
    return tuple(words)


def _show(name: str, judgement: DeviceJudgement, ran_on: RanOn, *, passed: bool) -> None:
    on_device = add_samples(describe_figures(judgement.figures), judgement.each_db)
    lines = [
        f"{'✓' if passed else '✗'} {name} on {ran_on.device}: {on_device} against float",
        f"  the emulator: {describe_figures(judgement.emulated)} against float",
        f"  the device: {judgement.difference}",
        *(f"  {line}" for line in judgement.slices),
    ]
    sys.stdout.write(readable("\n".join(lines) + "\n", sys.__stdout__ or sys.stdout))
