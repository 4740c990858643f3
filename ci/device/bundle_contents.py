"""What is in a bundle: the files that a device needs for a target and a chip; manifest.json, which names each
with its hash; and run.sh, which runs on the device.

Each function that ends in `_items` collects the files of one kind; `read_bundle` reads a bundle that was
written."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from ci.artifacts.compiled_onnx import CompiledModel, read_dlc, read_model
from ci.artifacts.program import DLC_MARK, CompiledProgram, ContextStrings, DelegateOptions, first_bytes
from ci.artifacts.program import read as read_program
from ci.artifacts.records import require_recorded
from ci.models.not_models import refuse_no_program
from provisioning import elf, qnn_libraries
from provisioning.base.commands import Fix, join_fixes, leave_out, session
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.files import hash_file
from provisioning.base.settings import ANDROID, WINDOWS, Selection, profile_flags
from provisioning.dist import LIBRARIES, RUNNER
from provisioning.manifest import Soc
from provisioning.stage_variables import DEVICE_DIRECTORIES, DEVICE_DSP_DIRECTORIES

BACKEND = "libqnn_executorch_backend.so"
ONLINE = "libQnnHtpPrepare.so"
"""Compiles on the device. Programs that were compiled ahead of time do not need it."""

GPU = "libQnnGpu.so"
LPAI = "lpai"

DIALOG = "genie_config.json"
GENIE = ("libGenie.so", "libQnnHtpNetRunExtensions.so")
"""Genie, and what reads the extension file that its configuration names."""
SPEAKER = "genie-t2t-run"

QNN = "qnn"
DSP = "dsp"
PROVIDER = "onnxruntime_providers_qnn.dll"
"""ONNX Runtime's own library for QNN, of the same wheel."""


@dataclass(frozen=True, slots=True)
class BundleItem:
    """`kind`: runner, library (of ExecuTorch or ONNX Runtime), qnn (of the SDK), dsp (for Hexagon), signed,
    model, context, file."""

    kind: str
    path: Path
    place: str


@dataclass(frozen=True, slots=True)
class Model:
    path: Path
    contents: CompiledProgram | ContextStrings | CompiledModel

    @property
    def files(self) -> list[tuple[str, Path]]:
        """The contexts beside a model of ONNX Runtime."""
        names = self.contents.files if isinstance(self.contents, CompiledModel) else ()
        return [(name, self.path.parent / name) for name in names]

    @property
    def contexts(self) -> tuple[ContextStrings, ...]:
        if isinstance(self.contents, ContextStrings):
            return (self.contents,)
        if isinstance(self.contents, CompiledModel):
            return tuple(self.contents.contexts)
        return tuple(delegate.context for delegate in self.contents.delegates if delegate.context)

    @property
    def options(self) -> list[DelegateOptions]:
        """The compile options of the delegates; empty for anything but a program."""
        delegates = self.contents.delegates if isinstance(self.contents, CompiledProgram) else ()
        return [delegate.options for delegate in delegates if delegate.options]

    @property
    def for_qnn(self) -> bool:
        return not isinstance(self.contents, CompiledProgram) or bool(self.options or self.contexts)

    @property
    def processors(self) -> set[str]:
        """The processors that the delegates run on, as far as the program names them: htp, gpu, lpai."""
        return {options.processor for options in self.options}

    @property
    def online(self) -> bool:
        return any(options.online_prepare for options in self.options)


def read_models(paths: Sequence[Path]) -> list[Model]:
    _names_differ("models", paths)
    for path in paths:
        refuse_no_program(path, path)
        if path.suffix == ".onnx":
            raise UsageError(
                f"{path}: ONNX Runtime runs this model, and only bundles for {WINDOWS} are for it",
                fix=Fix(
                    "compile it with ExecuTorch: {}; or {}, where an application has ONNX Runtime",
                    ("compile", "net.py:FUNCTION", "-o", "out"),
                    ("bundle", str(path), "--target", WINDOWS),
                ),
            )
        require_recorded(path)
    return [Model(path, read_program(path)) for path in paths]


def windows_models(paths: Sequence[Path]) -> list[Model]:
    """Select the models that ONNX Runtime compiled: nothing else runs them on Windows."""
    for path in paths:
        if path.suffix != ".onnx":
            raise UsageError(
                f"{path}: on {WINDOWS} ONNX Runtime runs models, and ExecuTorch has no QNN backend there",
                fix=Fix("{}, and name its MODEL_ctx.onnx", ("compile", "MODEL.onnx")),
            )
    _names_differ("models", paths)
    models = [Model(path, read_model(path)) for path in paths]
    for model in models:
        data_files = [path for _, path in model.files]
        require_recorded(model.path, data_files)
        for context in data_files:
            (read_dlc if first_bytes(context).startswith(DLC_MARK) else read_program)(context)
    return models


def windows_items(sdk: Path, soc: Soc, models: Sequence[Model]) -> Iterator[BundleItem]:
    """One flat folder: the DLLs, the skel of the chip and its catalogue, the models and their contexts."""
    for item in qnn_items(sdk, WINDOWS, soc):
        yield BundleItem(item.kind, item.path, item.path.name)
    provider = library_folder(sdk, WINDOWS) / PROVIDER
    if provider.is_file():
        yield BundleItem("library", provider, provider.name)
    for name in qnn_libraries.table().targets["aarch64-windows"].catalogues:
        path = sdk / "lib" / name.format(arch=soc.arch)
        if path.is_file():
            yield BundleItem("file", path, path.name)
    for model in models:
        yield BundleItem("model", model.path, model.path.name)
        yield from (BundleItem("context", path, name) for name, path in model.files)


def dialog_items(folder: Path) -> Iterator[BundleItem]:
    """Collect the files that `compile` wrote into the bundle's root: the configuration names its files
    relative to it."""
    path = folder / DIALOG
    try:
        dialog = json.loads(path.read_text(encoding="utf-8"))["dialog"]
        engine = dialog["engine"]
        binaries = list(engine["model"]["binary"]["ctx-bins"])
        rest = [DIALOG, dialog["tokenizer"]["path"], engine["backend"]["extensions"]]
    except FileNotFoundError:
        raise UsageError(
            f"{folder}: expected {DIALOG} in a folder; found none",
            fix="name what `compile` wrote, or programs one by one",
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckFailed(f"{path}: not Genie's configuration: {error!r}", fix="compile it again") from error
    for name in (*binaries, *rest):
        if Path(name).name != name or not (folder / name).is_file():
            message = f"{path} names {name}, which is no file beside it"
            raise CheckFailed(message, fix="compile it again, or move it there")
    yield from (BundleItem("context", folder / name, name) for name in binaries)
    yield from (BundleItem("file", folder / name, name) for name in rest)


def genie_items(sdk: Path, target: str, soc: Soc) -> Iterator[BundleItem]:
    folder = library_folder(sdk, target)
    for name in GENIE:
        yield BundleItem(QNN, _file_of(sdk, [folder / name], target, soc), f"lib/{name}")
    program = sdk / "bin" / folder.name / SPEAKER
    if program.is_file():
        yield BundleItem("runner", program, f"{RUNNER.parent}/{SPEAKER}")


def file_items(paths: Sequence[Path]) -> list[BundleItem]:
    """Files that a runner reads besides its model, such as a tokenizer."""
    _names_differ("files", paths)
    for path in paths:
        if not path.is_file():
            raise UsageError(f"--file {path}: there is no such file")
    return [BundleItem("file", path, f"files/{path.name}") for path in paths]


def _names_differ(kind: str, paths: Sequence[Path]) -> None:
    names = [path.name for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two {kind} are named {name}", fix="rename one: they share a folder")


def built_items(dist: Path, selection: Selection, runner: str = RUNNER.name) -> Iterator[BundleItem]:
    """The runner, and the libraries of the build that it needs, and these need."""
    target = selection.target
    fix = session(
        "build_android" if target == ANDROID else "build_linux_arm64", *profile_flags(selection.profile)
    )
    if not (dist / RUNNER).is_file():
        raise EnvironmentLacking(f"{dist}: expected {RUNNER} in it, found none", fix=fix)
    programs = sorted(path.name for path in (dist / RUNNER.parent).iterdir() if path.is_file())
    if runner not in programs:
        raise UsageError(
            f"--runner: expected one of those in {dist / RUNNER.parent}, which are {', '.join(programs)}, "
            f"found {runner}",
            fix=Fix("{}, of a tree that has it", fix),
        )
    program = dist / RUNNER.parent / runner
    yield BundleItem("runner", program, f"{RUNNER.parent}/{runner}")
    for path in _needed_libraries(program, dist / LIBRARIES):
        yield BundleItem("library", path, f"lib/{path.name}")


def _needed_libraries(program: Path, folder: Path) -> list[Path]:
    paths: dict[Path, None] = {}
    unread = [program]
    while unread:
        path = unread.pop()
        try:
            names = elf.read(path).needed
        except CheckFailed:
            continue  # The checks name it.
        more = [folder / name for name in names if (folder / name).is_file() and folder / name not in paths]
        paths |= dict.fromkeys(more)
        unread += more
    return sorted(paths)


def qnn_items(
    sdk: Path, target: str, soc: Soc, *, online: bool = False, gpu: bool = False
) -> Iterator[BundleItem]:
    """QNN's libraries for the device, and the skel of the chip's arch."""
    table = qnn_libraries.table().target(target)
    folder = library_folder(sdk, target)
    groups = [*table.libraries, *((name.format(arch=soc.arch),) for name in table.soc_libraries)]
    groups += [(name,) for name, is_needed in ((ONLINE, online), (GPU, gpu)) if is_needed]
    for group in groups:
        library = _file_of(sdk, [folder / name for name in group], target, soc)
        yield BundleItem(QNN, library, f"lib/{library.name}")
    for name in table.skels:
        skel = _file_of(sdk, [sdk / "lib" / name.format(arch=soc.arch)], target, soc)
        yield BundleItem(DSP, skel, f"dsp/{skel.name}")


def lpai_items(sdk: Path, selection: Selection, soc: Soc, signed: Path) -> Iterator[BundleItem]:
    """LPAI's libraries, and its signed skel."""
    target, soc_name = selection.target, selection.soc
    if soc.lpai is None:
        raise UsageError(f"--lpai: {soc_name} has no LPAI that QNN can use", fix=leave_out("--lpai"))
    table = qnn_libraries.table().lpai.get(str(soc.lpai))
    if table is None:
        raise UsageError(f"--lpai: manifests/libraries.toml knows no LPAI v{soc.lpai}")
    folder = library_folder(sdk, target)
    for name in table.libraries:
        yield BundleItem(QNN, _file_of(sdk, [folder / name], target, soc), f"lib/{name}")
    for skel in table.skels:
        name = Path(skel).name
        skels = sorted(signed.rglob(name)) if signed.is_dir() else []
        if len(skels) != 1:
            raise EnvironmentLacking(
                f"{signed}: expected one signed {name} in it, found {len(skels)}",
                fix=session("sign_lpai", *profile_flags(selection.profile), "--soc", soc_name),
            )
        yield BundleItem("signed", skels[0], f"dsp/{name}")


def library_folder(sdk: Path, target: str) -> Path:
    table = qnn_libraries.table().target(target)
    for name in table.directories:
        if (sdk / "lib" / name).is_dir():
            return sdk / "lib" / name
    ours = session("provision", "--target", target)
    own_sdk = "name an SDK that has them with QNN_SDK_ROOT"
    unset = bool(os.environ.get("QNN_SDK_ROOT"))
    fix = join_fixes([own_sdk, ours], ", or unset it and ") if unset else join_fixes([ours, own_sdk], "; or ")
    raise EnvironmentLacking(f"{sdk}: expected lib/{' or lib/'.join(table.directories)}, found none", fix=fix)


def _file_of(sdk: Path, choices: Sequence[Path], target: str, soc: Soc) -> Path:
    """The first of these files that the SDK has."""
    if path := next((path for path in choices if path.is_file()), None):
        return path
    expected = " or ".join(str(path.relative_to(sdk)) for path in choices)
    raise EnvironmentLacking(
        f"{sdk}: expected {expected} for {target} and Hexagon v{soc.arch}, found none",
        fix="provision it for this target and chip, or name an SDK that has it with QNN_SDK_ROOT",
    )


# The bundle's own files


MANIFEST_NAME = "manifest.json"
SCHEMA = 1
AGAIN = Fix("make it again: {}", ("bundle",))


@dataclass(frozen=True, slots=True)
class BundledFile:
    path: str
    kind: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Bundle:
    target: str
    soc: str
    profile: str
    qnn_build_id: str
    files: tuple[BundledFile, ...]
    runner: str = RUNNER.name
    schema: int = SCHEMA

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files if file.kind == "model")

    def encode(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


def read_bundle(folder: Path) -> Bundle:
    """Read a bundle. Raises UsageError if it is none, CheckFailed if a file differs from its manifest."""
    path = folder / MANIFEST_NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}, expected {SCHEMA}")
        bundle = Bundle(**{**data, "files": tuple(BundledFile(**file) for file in data["files"])})
        if bundle.target not in DEVICE_DIRECTORIES:
            raise ValueError(f"target {bundle.target}, expected {' or '.join(DEVICE_DIRECTORIES)}")
        for file in bundle.files:
            if PurePosixPath(file.path).is_absolute() or ".." in PurePosixPath(file.path).parts:
                raise ValueError(f"{file.path} is outside the bundle")
    except FileNotFoundError as error:
        raise UsageError(f"{folder} holds no {MANIFEST_NAME}", fix=AGAIN) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path}: not a bundle's manifest: {error}", fix=AGAIN) from error
    check_files(folder, {file.path: file.sha256 for file in bundle.files}, AGAIN)
    return bundle


def check_files(folder: Path, digests: Mapping[str, str], fix: str) -> None:
    """Raise CheckFailed for a file that is missing, or has another hash than its manifest says."""
    for place, sha256 in digests.items():
        path = folder / place
        actual = hash_file(path) if path.is_file() else "no such file"
        if actual != sha256:
            message = f"{path}: expected {sha256} as {folder / MANIFEST_NAME} says, found {actual}"
            raise CheckFailed(message, fix=fix)


RUN = "run.sh"
WRAPPER = "QNN_CI_WRAPPER"
EXAMPLE = "--model_path models/NAME.pte …"
"""The arguments of run.sh in its comment."""

_RUN = """\
#!/bin/sh
# Runs on the device, from the folder it is in: sh run.sh {arguments}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
cd "$here" || exit 1
chmod +x {runner}
export LD_LIBRARY_PATH="$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
# Separated by semicolons. Our folder comes first, or the system's skel is loaded.
export ADSP_LIBRARY_PATH="$here/dsp;{system}"
mkdir -p outputs
# A program and its arguments that the runner is run with: an emulator, for example.
# shellcheck disable=SC2086
exec ${{{wrapper}:-}} ./{runner} "$@"
"""


def run_script(target: str, runner: str = RUNNER.name, arguments: str = "") -> str:
    program = shlex.quote(f"{RUNNER.parent}/{runner}")
    system = ";".join(DEVICE_DSP_DIRECTORIES[target])
    return _RUN.format(system=system, wrapper=WRAPPER, runner=program, arguments=arguments or EXAMPLE)
