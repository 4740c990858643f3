"""Check whether the files of a bundle fit each other, the chip, the device's system and the models.

`check` reads the files themselves, not what their names promise, and returns a finding for whatever a device
would stumble over: a library of another machine or of another QNN build, one that is missing, a model
compiled for another chip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.artifacts.against_sdk import version
from ci.artifacts.program import CompiledProgram
from ci.device.bundle_contents import (
    BACKEND,
    DIALOG,
    DSP,
    LPAI,
    QNN,
    SPEAKER,
    BundleItem,
    Model,
)
from provisioning import elf, qnn_libraries
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import WINDOWS
from provisioning.build_ids import build_ids
from provisioning.elf import Demands, Wrong, complaints
from provisioning.manifest import Soc

ANDROID_RUNTIME = "libc++_shared.so"
RESTORE = Fix(
    "restore it: {}; instead of your own SDK: unset QNN_SDK_ROOT; {}",
    ("store", "repair"),
    ("provision", "--target", "aarch64-windows"),
)


def check(
    items: Sequence[BundleItem], models: Sequence[Model], target: str, soc_name: str, soc: Soc
) -> list[Finding]:
    findings = [*_machines(items, soc), *_one_build(items)]
    if target == WINDOWS:
        findings += _skel_path(items)
    else:
        findings += [*_dependencies(items, target), *_backend(items, models), *_genie(items)]
    return [*findings, *(finding for model in models for finding in _model(model, items, soc_name, soc))]


def _skel_path(items: Sequence[BundleItem]) -> Iterator[Finding]:
    yield _finding(
        "skel-path",
        next(item.path for item in items if item.kind == DSP),
        "Windows looks for the skel in ADSP_LIBRARY_PATH, and not beside a QnnHtp.dll that Python loads; "
        "without it 0x80000406 and 3110 follow, and the model runs on the CPU with no error "
        "(onnxruntime-qnn 593)",
        "set ADSP_LIBRARY_PATH to this folder on the device before the session is created",
        Severity.NOTE,
    )


def _genie(items: Sequence[BundleItem]) -> Iterator[Finding]:
    dialog = next((item.path for item in items if item.place == DIALOG), None)
    if dialog and not any(item.kind == "runner" for item in items):
        yield _finding(
            "runner",
            dialog,
            f"this QNN has no {SPEAKER}, which run.sh starts: wheels have the libraries alone",
            f"put {SPEAKER} of the official SDK, of the same build, into bin/, or link libGenie.so yourself",
            Severity.WARNING,
        )


def sdk_build(items: Sequence[BundleItem]) -> str:
    """The build id of the bundle's QNN libraries; empty without QNN."""
    builds = sorted({build_id for item in items if item.kind == QNN for build_id in build_ids(item.path)})
    return builds[-1] if builds else ""


def _finding(
    rule: str, subject: object, message: str, fix: str, severity: Severity = Severity.ERROR
) -> Finding:
    return Finding(f"bundle-{rule}", severity, str(subject), message, fix)


def _machines(items: Sequence[BundleItem], soc: Soc) -> Iterator[Finding]:
    for item in items:
        if item.kind in ("model", "context", "file"):
            continue
        if item.path.suffix == qnn_libraries.DLL:
            yield from _windows_machine(item)
            continue
        demands = Demands(elf.HEXAGON, bits=32) if item.kind in (DSP, "signed") else Demands(elf.AARCH64)
        try:
            header = elf.read(item.path)
        except CheckFailed as error:
            yield _finding("elf", item.path, error.message, "build or provision it again")
            continue
        wrong = dict(complaints(header, demands))
        if Wrong.MACHINE in wrong:
            message = f"{item.place}: {wrong[Wrong.MACHINE]}"
            yield _finding("machine", item.path, message, "build or provision it for this target")
        elif item.kind == DSP and header.arch != soc.arch:
            message = f"expected a library for Hexagon v{soc.arch}, found one for v{header.arch}"
            fix = f"take the one of lib/hexagon-v{soc.arch}/unsigned"
            yield _finding("arch", item.path, message, fix)
        else:
            yield from _own_name(item, header.soname)


def _windows_machine(item: BundleItem) -> Iterator[Finding]:
    try:
        library = qnn_libraries.read_pe(item.path)
    except qnn_libraries.BrokenPe as error:
        yield _finding("elf", item.path, error.reason, "provision it again")
        return
    if library.machine != qnn_libraries.ARM64:
        yield _finding("machine", item.path, f"expected Arm64, found {library.machine_name}", RESTORE)
    else:
        yield from _own_name(item, library.own_name)


def _own_name(item: BundleItem, own_name: str) -> Iterator[Finding]:
    of_qnn = item.kind in (QNN, DSP, "signed")
    if true_name := qnn_libraries.table().other_name(item.path.name, own_name, of_qnn=of_qnn):
        message = f"it calls itself {true_name}: it is another library, or was renamed"
        yield _finding("name", item.path, message, "provision it again, or unpack the SDK again")


def _one_build(items: Sequence[BundleItem]) -> Iterator[Finding]:
    ids = {item.path: build_ids(item.path) for item in items if item.kind in (QNN, DSP, "signed")}
    all_builds = sorted({build for builds in ids.values() for build in builds})
    if len(all_builds) > 1:
        rows = [f"{path.name} {', '.join(builds)}" for path, builds in sorted(ids.items()) if builds]
        message = f"expected libraries of one SDK, found {' and '.join(all_builds)}: {'; '.join(rows)}"
        fix = "take them all from one SDK: a device answers a mix with error 1008 or 14001"
        yield _finding("build-id", "QNN", message, fix)


def _dependencies(items: Sequence[BundleItem], target: str) -> Iterator[Finding]:
    names = {Path(item.place).name for item in items}
    provides = qnn_libraries.device_table().provides(target)
    for item in items:
        if item.kind not in ("runner", "library", QNN):
            continue
        try:
            dependencies = elf.read(item.path).needed
        except CheckFailed:
            continue  # _machines reports it
        for name in dependencies:
            if name not in names and name not in provides:
                of_ndk = ": the NDK's sysroot has it" if name == ANDROID_RUNTIME else ""
                fix = f"put {name} into lib/ of the build{of_ndk}"
                message = f"it needs {name}, which is neither in the bundle nor of the device's system"
                yield _finding("needed", item.path, message, fix)


def _backend(items: Sequence[BundleItem], models: Sequence[Model]) -> Iterator[Finding]:
    """Report a build without the backend, which makes QNN's libraries useless. It is an error only if a
    program needs them."""
    files = {Path(item.place).name for item in items}
    if files & {BACKEND, DIALOG} or not any(item.kind == QNN for item in items):
        return
    for_qnn = [model.path for model in models if model.for_qnn]
    yield _finding(
        "backend",
        for_qnn[0] if for_qnn else BACKEND,
        f"the build has no {BACKEND}, so its runner can run no program for QNN",
        Fix("build it from source: {}, or build_android", ("build_linux_arm64",)),
        Severity.ERROR if for_qnn else Severity.WARNING,
    )


def _model(model: Model, items: Sequence[BundleItem], soc_name: str, soc: Soc) -> Iterator[Finding]:
    sdk = sdk_build(items)
    if LPAI in model.processors and not any(item.kind == "signed" for item in items):
        message = "it was compiled for LPAI, and the bundle has no libraries for LPAI"
        yield _finding("lpai", model.path, message, "--lpai")
    for context in model.contexts:
        for build in context.build_ids:
            message = f"it was compiled by QNN {build}, and the bundle's is the"
            if sdk and version(build) > version(sdk):
                fix = "compile it with this SDK, or bundle the newer one"
                yield _finding("model-sdk", model.path, f"{message} older {sdk}: error 5000", fix)
            elif sdk and version(build) < version(sdk):
                fix = "compile it with this SDK to be sure"
                yield _finding("model-sdk", model.path, f"{message} newer {sdk}", fix, Severity.WARNING)
        if context.socs and soc_name not in context.socs:
            message = f"it was compiled for {', '.join(context.socs)}, and the bundle is for {soc_name}"
            fix = f"compile it for {soc_name}, or bundle for {context.socs[0]}"
            yield _finding("model-soc", model.path, message, fix)
        elif context.arches and soc.arch not in context.arches:
            message = f"it is for Hexagon v{context.arches[0]}, and {soc_name} has v{soc.arch}"
            yield _finding("model-soc", model.path, message, f"compile it for {soc_name}")
    if isinstance(model.contents, CompiledProgram):
        for delegate in model.contents.delegates:
            # The HTP's compiler names the chip in its graph, which was compared above; LPAI's does not.
            chips = delegate.context is not None and delegate.context.socs
            if delegate.options is not None and delegate.options.soc_id != soc.id and not chips:
                message = f"it was compiled for SoC id {delegate.options.soc_id}, and {soc_name} is {soc.id}"
                yield _finding("model-soc", model.path, message, f"compile it for {soc_name}")
