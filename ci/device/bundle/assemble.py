"""Collect the files of a bundle, check that they fit together, write them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.device.bundle import checks, contents, manifest, scripts
from ci.device.bundle.contents import BundleItem, Model
from provisioning.base.commands import Fix, captured, quoted
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.findings import Artifact, Finding, Report, Severity
from provisioning.base.settings import ANDROID, OFFICIAL_PROFILE, ROOT, WINDOWS, Selection, dist_path
from provisioning.base.stage_run import StageRun
from provisioning.components import ANDROID_NDK, EXECUTORCH_SOURCE, QNN_SDK
from provisioning.dist import BUNDLES, RUNNER, SIGNED, build_of
from provisioning.environment import provision_flags, resolve, why_no_phone
from provisioning.manifest import Soc, soc_named

SIGNATURE_SECONDS = 300

TARGETS = (ANDROID, "aarch64-linux", WINDOWS)


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """What `bundle` was asked for; None where the user left the choice to us."""

    models: Sequence[Path]
    files: Sequence[Path]
    dist: Path | None
    runner: str | None
    lpai: bool
    signed: Path | None
    root: Path | None
    symbols: bool
    """Leave them in what was built."""
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
    strip: bool = False
    """Whether runner and libraries are of a build, and go without their symbols."""


def assemble(options: BundleOptions, selection: Selection, stage: StageRun) -> None:
    """Write the bundle, unless a check finds an error."""
    target = selection.target
    if target not in TARGETS:
        raise UsageError(f"bundles are for devices: expected --target {' or '.join(TARGETS)}, found {target}")
    soc = soc_named(selection.soc)
    if target == WINDOWS:  # the folder that an application with ONNX Runtime ships
        _refuse_runner(options, f"{WINDOWS}, where the application itself is the runner")
        models = contents.windows_models(options.models)
        draft = Draft(list(contents.windows_items(_sdk(selection), soc, models)), models)
    elif any(path.is_dir() for path in options.models):
        draft = _dialog(options, selection, soc)
    else:
        draft = _programs(options, selection, soc)
    items = [*draft.items, *contents.file_items(options.files)]
    stage.findings += checks.check(items, draft.models, target, selection.soc, soc)
    if signed := [item.path for item in items if item.kind == "signed"]:
        stage.findings += signature_findings(signed, options.root)
    build_id = checks.sdk_build(items)
    stage.metrics |= {"files": len(items), "qnn_build_id": build_id, "soc": selection.soc}
    if any(finding.severity is Severity.ERROR for finding in stage.findings):
        return
    into = (options.output or BUNDLES / f"{target}-{selection.soc}").absolute()
    program = _strip_program() if draft.strip else ""
    if draft.strip and not program and any(map(_has_symbols, items)):
        message = f"no program that strips for {target} was found: the files keep their symbols"
        fix = f"put {STRIP[0]} on PATH, or set ANDROID_NDK_ROOT; --symbols keeps them without a word"
        stage.add("bundle-strip", Severity.WARNING, draft.runner, message, fix)
    bundle = write(items, into, selection, build_id, draft, program)
    stage.artifacts += [
        Artifact(file.kind, str(into / file.path), file.sha256, file.size) for file in bundle.files
    ]


STRIP = ("llvm-strip", "aarch64-linux-gnu-strip")


def _strip_program() -> str:
    """One of the NDK, else of this machine; empty if there is none."""
    ndk = Path(os.environ.get("ANDROID_NDK_ROOT") or os.devnull)
    own = sorted(map(str, ndk.glob(f"toolchains/llvm/prebuilt/*/bin/{STRIP[0]}")))
    return next(filter(None, [*own, *map(shutil.which, STRIP)]), "")


def _has_symbols(item: BundleItem) -> bool:
    return item.kind in ("runner", "library") and b".symtab" in item.path.read_bytes()


def _strip(program: str, path: Path) -> None:
    command = [program, "--strip-unneeded", str(path)]
    done = captured(command)
    if done.returncode:
        raise CheckFailed(f"{quoted(*command)} failed: {done.stderr.strip()[-300:]}", fix="--symbols")


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
    models = contents.read_models(options.models)
    # Models may be added to a bundle later.
    needs_qnn = options.lpai or not models or any(model.for_qnn for model in models)
    if needs_qnn:  # before an hour of building what no program will run on
        _require_phone(selection, _for_phones(selection))
    dist = options.dist.absolute() if options.dist else build_of(dist_path() / selection.target)
    runner = options.runner or RUNNER.name
    items = list(contents.built_items(dist, selection, runner))
    if needs_qnn:
        sdk = _sdk(selection)
        online = any(model.online for model in models)
        gpu = any("gpu" in model.processors for model in models)
        items += contents.qnn_items(sdk, selection.target, soc, online=online, gpu=gpu)
        if options.lpai:
            signed = options.signed.absolute() if options.signed else SIGNED
            items += contents.lpai_items(sdk, selection, soc, signed)
    items += [BundleItem("model", model.path, f"models/{model.path.name}") for model in models]
    return Draft(items, models, runner, strip=not options.symbols)


def _dialog(options: BundleOptions, selection: Selection, soc: Soc) -> Draft:
    """A language model, and Genie, which runs it."""
    _refuse_runner(options, "a language model, which Genie runs")
    if len(options.models) > 1:
        raise UsageError("a language model is bundled alone", fix="name one folder")
    _require_phone(selection, "name by QNN_SDK_ROOT an official SDK of the build that compiled the model")
    sdk, [folder] = _sdk(selection), options.models
    items = list(contents.dialog_items(folder))
    models = contents.read_models([item.path for item in items if item.kind == "context"])
    items += contents.qnn_items(sdk, selection.target, soc)
    items += contents.genie_items(sdk, selection.target, soc)
    return Draft(items, models, contents.SPEAKER, f"-c {contents.DIALOG} -p 'The answer is'")


def _refuse_runner(options: BundleOptions, what: str) -> None:
    names = ("lpai", "root", "runner", "symbols", "dist", "signed")
    if named := [f"--{name}" for name in names if getattr(options, name)]:
        raise UsageError(f"{', '.join(named)}: not for {what}", fix=f"leave out {' '.join(named)}")


def write(
    items: Sequence[BundleItem], into: Path, selection: Selection, build_id: str, draft: Draft, strip: str
) -> manifest.Bundle:
    """Replace an older bundle in one step. Raises UsageError if `into` holds anything else."""
    texts = {}
    if draft.runner:
        places = [*(item.place for item in items), scripts.RUN]
        texts = {
            scripts.RUN: scripts.run_script(selection.target, draft.runner, draft.arguments),
            scripts.PUSH: scripts.push_script(selection.target, places, draft.arguments),
        }
    is_bundle = all((into / name).is_file() for name in (*texts, manifest.NAME))
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
            if strip and _has_symbols(item):
                _strip(strip, to)
        for name, text in texts.items():
            (part / name).write_text(text, encoding="utf-8")
            (part / name).chmod(0o755)
        files = [_file(part, item.kind, item.place) for item in items]
        if scripts.RUN in texts:
            files.append(_file(part, "script", scripts.RUN))
        bundle = manifest.Bundle(
            selection.target, selection.soc, selection.profile, build_id, tuple(files), draft.runner
        )
        (part / manifest.NAME).write_text(bundle.encode(), encoding="utf-8")
        shutil.rmtree(into, ignore_errors=True)
        part.replace(into)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return bundle


def _file(root: Path, kind: str, place: str) -> manifest.BundledFile:
    artifact = Artifact.of(kind, root / place)
    return manifest.BundledFile(place, kind, artifact.sha256, artifact.size)


def signature_findings(libraries: Sequence[Path], root: Path | None) -> tuple[Finding, ...]:
    """An error for what is not signed or does not fit its hashes, or does not end in `root`.

    Where no root is named, a warning says that somebody unknown signed.
    """
    command = [sys.executable, "-m", "ci", "signing", "verify", "--allow-unchecked", "signature"]
    command += ["--root", str(root.absolute())] if root else ["--allow-unchecked", "root"]
    with tempfile.TemporaryDirectory(prefix="qnn-ci-") as reports:
        command += ["--reports", reports, *(str(path.absolute()) for path in libraries)]
        done = captured(command, cwd=ROOT, timeout=SIGNATURE_SECONDS)
        try:
            return Report.read(Path(reports) / "signing_verify.json").findings
        except (OSError, ValueError) as error:
            raise EnvironmentLacking(
                f"signatures could not be verified: {done.stderr.strip() or error}",
                fix=Fix("{}, which has what verifying needs", ("bundle",)),
            ) from error
