"""`inspect` of a package: which QNN libraries an APK, an AAR or a folder has, and what is wrong with them.

`run` unpacks the libraries of each package, checks them together and writes one report. The checks answer
what a phone would: is each library whole and for this processor, are all of one QNN build, and does each find
what it needs?"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provisioning import elf, qnn_libraries
from provisioning.archive import extract
from provisioning.base import answer
from provisioning.base.errors import ArchiveError, CheckFailed, UsageError
from provisioning.base.findings import Finding, Metric, Outcome, Severity, outcome_of
from provisioning.base.foreign import escape_line
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.build_ids import build_ids
from provisioning.manifest import Soc, soc_named

ABIS = {"arm64-v8a": elf.AARCH64, "armeabi-v7a": "EM_ARM", "x86": "EM_386", "x86_64": elf.X86_64}
"""The machine of each of Android's ABIs."""

PHONES = "arm64-v8a"
"""The ABI of phones with an HTP."""
DIALOG = "genie_config.json"
"""Genie's configuration, which names the files of a language model."""
MOST_BYTES = 8 << 30
"""The libraries of one package may have so many bytes when unpacked. An APK is at most half of it."""
ARCHIVES = (".apk", ".aar")
_OTHER_ARCHIVES = {
    ".aab": "bundletool build-apks --mode=universal, and name the universal.apk in what it writes",
    ".apks": "unzip it, and name the folder of its APKs",
    ".xapk": "unzip it, and name the folder of its APKs",
}
_QNN = re.compile(r"lib(?:Qnn|Genie|qnn_executorch)\w*\.so")
_STUB_OR_SKEL = re.compile(r"libQnnHtpV(\d{2,3})(Stub|Skel)\.so")
_SAME_SDK = "take all of them from one SDK: a phone answers a mix with error 1008 or 14001"


@dataclass(frozen=True, slots=True)
class PackagedLibrary:
    place: str
    elf: elf.Elf | None
    """The facts about the library; None for a damaged one, whose `damage` says how."""
    builds: tuple[str, ...]
    """The build ids of QNN in the library."""
    damage: str = ""

    @property
    def name(self) -> str:
        return PurePosixPath(self.place).name

    @property
    def folder(self) -> str:
        return PurePosixPath(self.place).parent.as_posix()

    @property
    def abi(self) -> str:
        """The folder of an APK or AAR that it lies in; empty elsewhere."""
        folder = PurePosixPath(self.folder)
        return folder.name if folder.parent.name in ("lib", "jni") else ""

    @property
    def is_qnn_library(self) -> bool:
        return _QNN.fullmatch(self.name) is not None or bool(self.builds)

    def describe(self) -> str:
        machine = f"for {self.elf.machine_name}" if self.elf else "damaged"
        return f"{self.place}: {machine}, QNN {', '.join(self.builds) or 'not named'}"


def is_package(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() in (*ARCHIVES, *_OTHER_ARCHIVES)


def run(paths: Sequence[Path], selection: Selection) -> int:
    """Write one report for all packages."""
    stage = StageRun("inspect", selection.profile, "aarch64-android")
    socs = {name: soc_named(name) for name in selection.named_socs}
    packages: dict[str, Metric] = {}
    with stage.reported(selection.reports, "inspect", str(paths[0])):
        for path in paths:
            with _unpacked_folder(path) as folder:
                libraries = _read_libraries(folder)
                stage.findings += _check(path, folder, libraries, socs)
            rows = [library.describe() for library in libraries if library.is_qnn_library]
            packages[str(path)] = {"libraries": [*rows]}
            for line in [str(path), *(f"  {row}" for row in rows)]:
                sys.stdout.write(f"{escape_line(line)}\n")
            sys.stdout.flush()
    stage.metrics["packages"] = packages
    answer.add(kind="package", good=outcome_of(stage.findings) is Outcome.PASS, packages=packages)
    return stage.close(selection.reports)


@contextmanager
def _unpacked_folder(path: Path) -> Iterator[Path]:
    """Yield a folder with the package's libraries. Raises CheckFailed for a damaged package, UsageError for
    another kind."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder", fix="name an APK, an AAR or a folder")
    if fix := _OTHER_ARCHIVES.get(path.suffix.lower()):
        raise UsageError(f"{path}: expected an APK, an AAR or a folder, found {path.suffix}", fix=fix)
    splits = {f"{apk.name}/": apk for apk in sorted(path.glob("*.apk"))} if path.is_dir() else {"": path}
    if not splits:
        yield path
        return
    with tempfile.TemporaryDirectory() as temporary:
        for prefix, archive in splits.items():
            _unpack(archive, prefix, Path(temporary))
        yield Path(temporary)


def _unpack(archive: Path, prefix: str, folder: Path) -> None:
    def place(name: str) -> str | None:
        return f"{prefix}{name}" if name.endswith(".so") else None

    try:
        extract(archive, folder, place, most_bytes=MOST_BYTES)
    except ArchiveError as error:
        raise CheckFailed(error.message, fix="build or download it again") from error


def _read_libraries(folder: Path) -> list[PackagedLibrary]:
    # Regular files alone: a link may lead out of the package, and a pipe never ends.
    files = (path for path in sorted(folder.rglob("*.so")) if path.is_file() and not path.is_symlink())
    return [_read_library(path, path.relative_to(folder).as_posix()) for path in files]


def _read_library(path: Path, place: str) -> PackagedLibrary:
    try:
        header = elf.read(path)
    except elf.NotElf as error:
        return PackagedLibrary(place, None, (), error.reason)
    if header.beyond_end:
        # Android's loader reads them, unlike glibc's.
        damage = f"it is cut short: its section headers are outside the file: {header.beyond_end}"
        return PackagedLibrary(place, None, build_ids(path), damage)
    return PackagedLibrary(place, header, build_ids(path))


def _finding(rule: str, subject: object, message: str, fix: str) -> Finding:
    return Finding(rule, Severity.ERROR, str(subject), message, fix)


def _check(
    path: Path, folder: Path, libraries: Sequence[PackagedLibrary], socs: Mapping[str, Soc]
) -> Iterator[Finding]:
    """Check the libraries. `socs` are the chips that the user named."""
    dialogs = [file for file in sorted(folder.rglob(DIALOG)) if not file.is_symlink()]
    qnn = [library for library in libraries if library.is_qnn_library]
    if not qnn and not dialogs:
        message = "it contains no library of QNN"
        fix = "name another package, or look whether its build takes the libraries in (jniLibs)"
        yield _finding("package-empty", path, message, fix)
    for library in libraries:
        yield from _check_library(library)
    yield from _check_builds(qnn)
    yield from _check_dependencies(libraries)
    if qnn:
        yield from _check_stubs_and_skels(path, qnn, socs)
    for dialog in dialogs:
        yield from _check_dialog(dialog, dialog.relative_to(folder).as_posix())


def _check_library(library: PackagedLibrary) -> Iterator[Finding]:
    if library.elf is None:
        yield _finding("package-damaged", library.place, library.damage, "build or provision it again")
    elif (machine := ABIS.get(library.abi)) and library.elf.machine not in (machine, elf.HEXAGON):
        expected = elf.Elf(64, machine, 0).machine_name
        found = library.elf.machine_name
        message = f"expected a library for {library.abi} ({expected}), found one for {found}"
        yield _finding("package-abi", library.place, message, f"take the one for {library.abi}")


def _check_builds(libraries: Sequence[PackagedLibrary]) -> Iterator[Finding]:
    names_by_build: dict[str, set[str]] = {}
    for library in libraries:
        for build in library.builds:
            names_by_build.setdefault(build, set()).add(library.name)
    if len(names_by_build) > 1:
        rows = "; ".join(f"{build}: {', '.join(sorted(names))}" for build, names in names_by_build.items())
        message = f"libraries of {len(names_by_build)} QNN builds: {rows}"
        yield _finding("package-mixed", "QNN", message, _SAME_SDK)


def _check_dependencies(libraries: Sequence[PackagedLibrary]) -> Iterator[Finding]:
    """Android's loader looks beside a library, and among those that the phone has for every app."""
    phones = [library for library in libraries if library.abi == PHONES]
    names = {library.name for library in phones}
    system_names = qnn_libraries.device_table().provides("aarch64-android")
    for library in phones:
        if library.elf is None or library.elf.machine != elf.AARCH64:
            continue
        gaps = [name for name in library.elf.needed if name not in names and name not in system_names]
        if gaps:
            message = f"it needs {', '.join(gaps)}, which is neither beside it nor of Android"
            yield _finding("package-missing", library.place, message, f"put it into {library.folder}")


def _check_stubs_and_skels(
    path: Path, libraries: Sequence[PackagedLibrary], socs: Mapping[str, Soc]
) -> Iterator[Finding]:
    """Require both halves of the way to each HTP: the stub for Android and the skel for the DSP, and the
    libraries that they need."""
    names = {library.name for library in libraries}
    users_by_arch: dict[str, str] = {}
    for name in sorted(names):
        if match := _STUB_OR_SKEL.fullmatch(name):
            users_by_arch.setdefault(match[1], name)
    for name, soc in socs.items():
        users_by_arch.setdefault(str(soc.arch), name)
    for arch, user in users_by_arch.items():
        yield from _require_files(path, user, names, (f"libQnnHtpV{arch}Stub.so", f"libQnnHtpV{arch}Skel.so"))
    if users_by_arch:
        yield from _require_files(path, "HTP", names, ("libQnnHtp.so", "libQnnSystem.so"))
    elif "libQnnHtp.so" in names:
        message = f"it reaches no HTP: {path.name} has no libQnnHtpV…Stub.so"
        fix = "put the stub and the skel of each chip's HTP arch into it"
        yield _finding("package-missing", "libQnnHtp.so", message, fix)


def _require_files(path: Path, user: str, names: Set[str], pair: Sequence[str]) -> Iterator[Finding]:
    gaps = " and ".join(name for name in pair if name not in names)
    if gaps:
        message = f"it needs {gaps}, which {path.name} lacks"
        yield _finding("package-missing", user, message, f"put {gaps} of the same SDK into it")


def _check_dialog(config: Path, place: str) -> Iterator[Finding]:
    try:
        dialog = json.loads(config.read_text(encoding="utf-8"))["dialog"]
        engine = dialog["engine"]
        names = [*engine["model"]["binary"]["ctx-bins"], dialog["tokenizer"]["path"]]
        names += filter(None, [engine["backend"].get("extensions")])
        gaps = [name for name in names if not (config.parent / name).is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"expected Genie's configuration, found {error!r}"
        yield _finding("package-damaged", place, message, "copy it again, or compile the model again")
        return
    if gaps:
        message = f"it names {', '.join(gaps)}, which is no file beside it"
        fix = "put it there: the paths are relative to the folder that Genie is started in"
        yield _finding("package-missing", place, message, fix)
