"""`run_device` of a bundle: push it to a device, run it, fetch its outputs, and judge how it ended.

`run_bundle` refuses everything that can be refused before anything is sent, such as another chip. A failure
is explained from the device's logs."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.device import session, transport
from ci.device.bundle_contents import MANIFEST_NAME, Bundle, read_bundle
from ci.device.claim import claim_folder
from ci.device.transport import Device
from ci.diagnose.logs import nearest, read
from provisioning.base.commands import Fix
from provisioning.base.errors import UsageError
from provisioning.base.findings import Artifact, Finding, Severity
from provisioning.base.settings import ANDROID, Selection
from provisioning.base.stage_run import StageRun
from provisioning.dist import BUNDLES, RUNNER
from provisioning.manifest import load_socs, soc_named
from provisioning.stage_variables import DEVICE_DIRECTORIES

_TAIL = 5

SOC_ID = "/sys/devices/soc0/soc_id"
"""The kernel's number of the chip, which is not QNN's."""


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What `run_device` was asked for; None if the user left the choice to us."""

    bundle: Path | None
    serial: str | None
    ssh: str | None
    device_dir: str | None
    wrap: str
    model: str | None
    inputs: Path | None
    runner_arguments: Sequence[str]
    timeout: float
    push_only: bool
    output: Path | None


@dataclass(frozen=True, slots=True)
class DeviceRun:
    bundle: Bundle
    folder: Path
    where: str
    """The folder on the device."""
    flags: tuple[str, ...]
    into: Path


def run_bundle(options: DeviceOptions, selection: Selection, stage: StageRun) -> Path | None:
    """Push a bundle and run it. Returns the folder with its outputs and logs; None if it did not run to its
    end."""
    job = _job(options, selection)
    stage.target = job.bundle.target
    job.into.mkdir(parents=True, exist_ok=True)
    device = _device(options, job.bundle)
    with claim_folder(device, job.where):
        if finding := wrong_chip(device, job.bundle.soc):
            stage.findings.append(finding)
            if finding.severity is Severity.ERROR:
                return None
        _push(device, job, options.inputs, stage)
        if options.push_only:
            return None
        code = _run(device, job, stage, wrapper=options.wrap, seconds=options.timeout)
    return None if code else job.into


def wrong_chip(device: Device, soc_name: str) -> Finding | None:
    """The finding if the device has another chip than the bundle is for; asked before anything is sent."""
    number = device.shell(f"cat {SOC_ID}").out.strip()
    kernel_id = int(number) if number.isdecimal() else None
    if kernel_id in soc_named(soc_name).kernel_ids:
        return None
    chip = next((name for name, soc in load_socs().items() if kernel_id in soc.kernel_ids), None)
    if chip is None:
        message = f"{SOC_ID} says {number[:80] or 'nothing'}, which is no chip of manifests/socs.toml"
        return Finding("device-chip", Severity.NOTE, device.name, message, f"check that it is a {soc_name}")
    own, other = soc_named(chip), soc_named(soc_name)
    runs = own.arch == other.arch and own.vtcm_mb >= other.vtcm_mb
    return Finding(
        "device-chip",
        Severity.NOTE if runs else Severity.ERROR,
        device.name,
        f"it is a {chip} (v{own.arch}, {own.vtcm_mb} MB VTCM; {SOC_ID} says {number}), and the bundle is for"
        f" {soc_name} (v{other.arch}, {other.vtcm_mb} MB)",
        Fix("compile the program for it and bundle again: {}", ("bundle", "--soc", chip, "MODEL")),
    )


def _job(options: DeviceOptions, selection: Selection) -> DeviceRun:
    """The job. Everything that can be refused is refused before anything is sent."""
    folder = options.bundle or the_bundle(BUNDLES, _kind(options, selection), selection.named_socs)
    bundle = read_bundle(folder)
    where = options.device_dir or os.environ.get("QNN_CI_DEVICE_DIR") or DEVICE_DIRECTORIES[bundle.target]
    if not where.startswith("/") or where.strip("/") == "" or any(c in where for c in ";'\"\n"):
        raise UsageError(f"--device-dir: expected a folder from / on without quotes or `;`, found {where!r}")
    flags = () if options.push_only else _flags(options, bundle)
    return DeviceRun(
        bundle, folder, where, flags, (options.output or selection.reports / "device").absolute()
    )


def the_bundle(bundles: Path, target: str, socs: Sequence[str]) -> Path:
    """The only bundle there is; target and chips narrow the choice if they are named."""
    patterns = [f"{target or '*'}-{soc}" for soc in socs] or [f"{target or '*'}-*"]
    files = (path for pattern in patterns for path in bundles.glob(f"{pattern}/{MANIFEST_NAME}"))
    folders = sorted({path.parent for path in files})
    if len(folders) == 1:
        return folders[0]
    if not folders:
        raise UsageError(
            f"{bundles}: expected a bundle ({' or '.join(patterns)}) in it, found none",
            fix=Fix("make one with {}, or name another: {}", ("bundle",), ("run_device", "BUNDLE")),
        )
    raise UsageError(
        f"{bundles} holds {len(folders)} bundles that fit: {', '.join(path.name for path in folders)}",
        fix=Fix("name one: {}", ("run_device", folders[0])),
    )


def _kind(options: DeviceOptions, selection: Selection) -> str:
    """The target that the user named, or that --ssh or --serial implies; empty for any."""
    if selection.named_targets:
        return selection.target
    if options.ssh:
        return "aarch64-linux"
    return ANDROID if options.serial else ""


def _push(device: Device, job: DeviceRun, inputs: Path | None, stage: StageRun) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        files = {file.path: job.folder / file.path for file in job.bundle.files}
        files |= session.stage_inputs(inputs, Path(scratch)) if inputs else {}
        stage.metrics |= {"device": device.name, **session.push(device, job.where, files)}


def _run(device: Device, job: DeviceRun, stage: StageRun, *, wrapper: str, seconds: float) -> int:
    """Run the bundle and fetch its outputs. Returns the exit code; 1 if it did not end in time."""
    try:
        ran = session.run(device, job.where, job.flags, wrapper=wrapper, seconds=seconds)
    except transport.Lost as lost:
        _keep(job.into / "run.log", lost.out, "log", stage)
        raise
    _keep(job.into / "run.log", ran.out, "log", stage)
    stage.metrics["exit_code"] = ran.code
    outputs = session.fetch_outputs(device, job.where, job.into / session.OUTPUTS)
    stage.artifacts += [Artifact.of("output", path) for path in outputs]
    stage.metrics["outputs"] = len(outputs)
    if ran.code != 0:
        report_failure(ran, device, job.into, stage, seconds)
    return 1 if ran.code is None else ran.code


def _device(options: DeviceOptions, bundle: Bundle) -> Device:
    if options.ssh and options.serial:
        raise UsageError("--serial is for adb, --ssh is not: give one of them")
    if options.ssh:
        return transport.ssh(options.ssh)
    if bundle.target != ANDROID and not options.serial:
        raise UsageError(
            f"the bundle is for {bundle.target}: expected --ssh USER@HOST, found none",
            fix=Fix("{}; a Linux device that speaks adb is named with --serial", ("--ssh", "USER@HOST")),
        )
    return transport.adb(options.serial)


def _flags(options: DeviceOptions, bundle: Bundle) -> tuple[str, ...]:
    models = {Path(place).name: place for place in bundle.models}
    name = options.model or (next(iter(models)) if len(models) == 1 else None)
    if name is None or name not in models:
        names = ", ".join(models) or "none"
        raise UsageError(
            f"--model: expected one of the bundle's, which are {names}", fix="name one with --model NAME"
        )
    flags = ["--model_path", models[name]]
    if bundle.runner == RUNNER.name:
        flags += ["--output_folder_path", session.OUTPUTS]
        if options.inputs:
            flags += ["--input_list_path", session.INPUT_LIST]
    elif options.inputs:
        raise UsageError(
            f"--inputs: lists are read by {RUNNER.name}, and the bundle's runner is {bundle.runner}",
            fix="give it its own arguments with --runner-arg",
        )
    return (*flags, *options.runner_arguments)


def report_failure(
    ran: session.RunResult, device: Device, into: Path, stage: StageRun, seconds: float
) -> None:
    system = device.system_log()
    if system:
        _keep(into / "system.log", system, "log", stage)
    if ran.code is not None:
        message = f"the runner ended with exit code {ran.code}{_signal(ran.code)}"
    else:
        state = f"process {ran.still_running} could not be killed: it still runs on the device"
        state = "it was stopped" if ran.still_running is None else state
        message = f"the runner did not end within {seconds:g} s, and {state}"
    lines = [line for line in ran.out.splitlines() if line.strip()][-_TAIL:]
    fix = f"read {into / 'run.log'}"
    stage.add("device-run", Severity.ERROR, device.name, "\n".join([f"{message}:", *lines]), fix)
    for text, subject in ((ran.out, "run.log"), (system, "system.log")):
        if row := nearest(text):
            stage.add("device-diagnosis", Severity.NOTE, f"{subject}: {row.id}", row.cause, row.fix)
    diagnosis = read(ran.out)
    if diagnosis.told_by and not diagnosis.explanations:
        message, fix = f"told by {diagnosis.told_by}", f"collect {diagnosis.collect}"
        stage.add("device-diagnosis", Severity.NOTE, "run.log", message, fix)


def _signal(code: int) -> str:
    """The name of the signal that ended a program, from a shell's exit code."""
    try:
        return f" ({signal.Signals(code - 128).name})"
    except ValueError:
        return ""


def _keep(path: Path, text: str, kind: str, stage: StageRun) -> None:
    path.write_text(text, encoding="utf-8")
    stage.artifacts.append(Artifact.of(kind, path))
