"""Make a bundle: collect the files that models need on a device, have them checked, write them in one folder.

`assemble` is what the verb `bundle` calls. Which files a target needs is in `bundle_contents`, whether they
fit is asked of `bundle_checks`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.device import bundle_contents
from ci.device.bundle_checks import check, sdk_build
from ci.device.bundle_contents import (
    MANIFEST_NAME,
    RUN,
    Bundle,
    BundledFile,
    BundleItem,
    Model,
    run_script,
)
from provisioning.base.commands import Fix, capture
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.findings import Artifact, Finding, Report, Severity
from provisioning.base.settings import ANDROID, OFFICIAL_PROFILE, ROOT, WINDOWS, Selection, dist_path
from provisioning.base.stage_run import StageRun
from provisioning.components import ANDROID_NDK, EXECUTORCH_SOURCE, QNN_SDK
from provisioning.dist import BUNDLES, RUNNER, SIGNED, build_of
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
        message = f"bundles are for devices: expected --target {' or '.join(TARGETS)}, found {target}"
        raise UsageError(message, fix=f"add --target {ANDROID}")
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
    [folder] = options.models
    items = list(bundle_contents.dialog_items(folder))
    _require_phone(selection, "name by QNN_SDK_ROOT an official SDK of the build that compiled the model")
    sdk = _sdk(selection)
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
