"""Collect the files of a bundle, check that they fit together, write them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.artifacts.against_sdk import version
from ci.artifacts.program import CompiledProgram
from ci.device import bundle_contents
from ci.device.bundle_contents import (
    BACKEND,
    DIALOG,
    DSP,
    LPAI,
    MANIFEST_NAME,
    QNN,
    RUN,
    SPEAKER,
    Bundle,
    BundledFile,
    BundleItem,
    Model,
    run_script,
)
from provisioning import elf, qnn_libraries
from provisioning.base.commands import Fix, capture
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.findings import Artifact, Finding, Report, Severity
from provisioning.base.settings import ANDROID, OFFICIAL_PROFILE, ROOT, WINDOWS, Selection, dist_path
from provisioning.base.stage_run import StageRun
from provisioning.build_ids import build_ids
from provisioning.components import ANDROID_NDK, EXECUTORCH_SOURCE, QNN_SDK
from provisioning.dist import BUNDLES, RUNNER, SIGNED, build_of
from provisioning.elf import Demands, Wrong, complaints
from provisioning.environment import provision_flags, resolve, why_no_phone
from provisioning.manifest import Soc, soc_named

SIGNATURE_SECONDS = 300
DEVELOPMENT = "development"

TARGETS = (ANDROID, "aarch64-linux", WINDOWS)


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """What `bundle` was asked for; None if the user left the choice to us."""

    models: Sequence[Path]
    files: Sequence[Path]
    dist: Path | None
    runner: str | None
    lpai: bool
    signed: Path | None
    root: Path | None
    purpose: str
    """The devices that the signed skel is for: production or development."""
    allow_flags: int
    """The bits of its metadata flags that these devices are known to take."""
    output: Path | None


@dataclass(frozen=True, slots=True)
class Draft:
    """What the models need on the device, before it is checked."""

    items: list[BundleItem]
    models: list[Model]
    runner: str = ""
    """What run.sh starts; empty where an application of the user's is the runner."""
    arguments: str = ""
    """Arguments of run.sh, where they are always the same."""


def assemble(options: BundleOptions, selection: Selection, stage: StageRun) -> None:
    """Write the bundle, unless a check finds an error."""
    target = selection.target
    if target not in TARGETS:
        raise UsageError(f"bundles are for devices: expected --target {' or '.join(TARGETS)}, found {target}")
    soc = soc_named(selection.soc)
    if target == WINDOWS:  # the folder that an application with ONNX Runtime ships
        _refuse_runner(options, f"{WINDOWS}, where the application itself is the runner")
        models = bundle_contents.windows_models(options.models)
        draft = Draft(list(bundle_contents.windows_items(_sdk(selection), soc, models)), models)
    elif any(path.is_dir() for path in options.models):
        draft = _dialog(options, selection, soc)
    else:
        draft = _programs(options, selection, soc)
    items = [*draft.items, *bundle_contents.file_items(options.files)]
    stage.findings += check(items, draft.models, target, selection.soc, soc)
    if signed := [item.path for item in items if item.kind == "signed"]:
        stage.findings += signature_findings(signed, options)
    build_id = sdk_build(items)
    stage.metrics |= {"files": len(items), "qnn_build_id": build_id, "soc": selection.soc}
    if any(finding.severity is Severity.ERROR for finding in stage.findings):
        return
    into = (options.output or BUNDLES / f"{target}-{selection.soc}").absolute()
    bundle = write(items, into, selection, build_id, draft)
    stage.artifacts += [
        Artifact(file.kind, str(into / file.path), file.sha256, file.size) for file in bundle.files
    ]


def _for_phones(selection: Selection) -> Fix:
    official = replace(selection, profile=OFFICIAL_PROFILE)
    return Fix(
        "name by QNN_SDK_ROOT an SDK that has them; or {}, then {}, and compile and bundle with {} as well",
        (
            *("provision", *provision_flags(official, os.environ)),
            *("--component", QNN_SDK, "--component", ANDROID_NDK, "--component", EXECUTORCH_SOURCE),
        ),
        ("build_android", "--profile", OFFICIAL_PROFILE),
        ("--profile", OFFICIAL_PROFILE),
    )


def _require_phone(selection: Selection, fix: str) -> None:
    if selection.target == ANDROID and (why := why_no_phone(selection, os.environ)):
        raise EnvironmentLacking(
            f"QNN's libraries for Android are not at hand: {why}",
            fix=fix,
        )


def _sdk(selection: Selection) -> Path:
    return resolve(selection, os.environ, needs=(QNN_SDK,)).root(QNN_SDK).path


def _programs(options: BundleOptions, selection: Selection, soc: Soc) -> Draft:
    """Programs, and ExecuTorch's runner."""
    if options.root and not options.lpai:
        raise UsageError("--root is about LPAI's skel, and --lpai is missing", fix="add --lpai")
    if options.root and not options.root.is_file():
        raise UsageError(f"--root {options.root}: there is no such file", fix="name the root certificate")
    models = bundle_contents.read_models(options.models)
    # Models may be added to a bundle later.
    needs_qnn = options.lpai or not models or any(model.for_qnn for model in models)
    if needs_qnn:  # before an hour of building what no program will run on
        _require_phone(selection, _for_phones(selection))
    dist = options.dist.absolute() if options.dist else build_of(dist_path() / selection.target)
    runner = options.runner or RUNNER.name
    items = list(bundle_contents.built_items(dist, selection, runner))
    if needs_qnn:
        sdk = _sdk(selection)
        online = any(model.online for model in models)
        gpu = any("gpu" in model.processors for model in models)
        items += bundle_contents.qnn_items(sdk, selection.target, soc, online=online, gpu=gpu)
        if options.lpai:
            signed = options.signed.absolute() if options.signed else SIGNED
            items += bundle_contents.lpai_items(sdk, selection, soc, signed)
    items += [BundleItem("model", model.path, f"models/{model.path.name}") for model in models]
    return Draft(items, models, runner)


def _dialog(options: BundleOptions, selection: Selection, soc: Soc) -> Draft:
    """A language model, and Genie, which runs it."""
    _refuse_runner(options, "a language model, which Genie runs")
    if len(options.models) > 1:
        raise UsageError("a language model is bundled alone", fix="name one folder")
    _require_phone(selection, "name by QNN_SDK_ROOT an official SDK of the build that compiled the model")
    sdk, [folder] = _sdk(selection), options.models
    items = list(bundle_contents.dialog_items(folder))
    models = bundle_contents.read_models([item.path for item in items if item.kind == "context"])
    items += bundle_contents.qnn_items(sdk, selection.target, soc)
    items += bundle_contents.genie_items(sdk, selection.target, soc)
    return Draft(items, models, bundle_contents.SPEAKER, f"-c {bundle_contents.DIALOG} -p 'The answer is'")


def _refuse_runner(options: BundleOptions, kind: str) -> None:
    names = ("lpai", "root", "runner", "dist", "signed")
    if flags := [f"--{name}" for name in names if getattr(options, name)]:
        raise UsageError(f"{', '.join(flags)}: not for {kind}", fix=f"leave out {' '.join(flags)}")


def write(
    items: Sequence[BundleItem], into: Path, selection: Selection, build_id: str, draft: Draft
) -> Bundle:
    """Replace an older bundle in one step. Raises UsageError if `into` holds anything else."""
    is_bundle = all((into / name).is_file() for name in ([RUN] if draft.runner else []) + [MANIFEST_NAME])
    if into.exists() and any(into.iterdir()) and not is_bundle:
        raise UsageError(f"{into} is not empty, and no bundle", fix="name another folder with --output")
    part = into.with_name(f".{into.name}.part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    try:
        for item in items:
            to = part / item.place
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(item.path, to)
            to.chmod(0o755 if item.kind == "runner" else 0o644)
        files = [_file(part, item.kind, item.place) for item in items]
        if draft.runner:
            script = run_script(selection.target, draft.runner, draft.arguments)
            (part / RUN).write_text(script, encoding="utf-8")
            (part / RUN).chmod(0o755)
            files.append(_file(part, "script", RUN))
        bundle = Bundle(
            selection.target, selection.soc, selection.profile, build_id, tuple(files), draft.runner
        )
        (part / MANIFEST_NAME).write_text(bundle.encode(), encoding="utf-8")
        shutil.rmtree(into, ignore_errors=True)
        part.replace(into)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return bundle


def _file(root: Path, kind: str, place: str) -> BundledFile:
    artifact = Artifact.of(kind, root / place)
    return BundledFile(place, kind, artifact.sha256, artifact.size)


def signature_findings(libraries: Sequence[Path], options: BundleOptions) -> tuple[Finding, ...]:
    """An error for what is not signed for these devices, does not fit its hashes, or does not end in the
    root.

    For development the root may be missing: a warning then says that somebody unknown signed.
    """
    command = [sys.executable, "-m", "ci", "signing", "verify", "--for", options.purpose]
    command += ["--allow-unchecked", "signature", "--allow-flags", hex(options.allow_flags)]
    if options.root:
        command += ["--root", str(options.root.absolute())]
    elif options.purpose == DEVELOPMENT:
        command += ["--allow-unchecked", "root"]
    with tempfile.TemporaryDirectory(prefix="qnn-ci-") as reports:
        command += ["--reports", reports, *(str(path.absolute()) for path in libraries)]
        process = capture(command, cwd=ROOT, timeout=SIGNATURE_SECONDS)
        try:
            return Report.read(Path(reports) / "signing_verify.json").findings
        except (OSError, ValueError) as error:
            raise EnvironmentLacking(
                f"signatures could not be verified: {process.stderr.strip() or error}",
                fix=Fix("{}, which has what verifying needs", ("bundle",)),
            ) from error


# Whether the files of a bundle fit each other, the chip and the SDK. Checks read the files themselves.


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
