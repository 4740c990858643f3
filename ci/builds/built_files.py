"""Built files on their way to dist/: whether the target's loader can load them, and the folders that builds
write to. Nothing of the user's or of another build's is lost there.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from provisioning import elf
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import DEFAULT_TARGET
from provisioning.dist import MANIFEST
from provisioning.elf import Demands, complaints

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from ci.builds.tree import Kind


CLEAN = "check the toolchain, and build with --clean"
FIXES = {
    "elf": "build with --clean",
    "machine": CLEAN,
    "page-size": "keep -Wl,-z,max-page-size=16384 in the recipe's link_flags, or use NDK r28",
    "relocations": "compile it all with -fPIC",
    "stack": "link with -Wl,-z,noexecstack",
    "needed": "link it statically; a shared library that a project of the recipe defines is shipped",
    "search-path": "build with --clean; a project that sets INSTALL_RPATH itself needs --cmake-arg",
    "glibc": Fix("build it where glibc is older, such as in the container of `{}`", ("image",)),
    "android-api": "keep ANDROID_PLATFORM as the recipe has it, and build with --clean",
    "paths": (
        "compile what contains it with -ffile-prefix-map; clang before 17 "
        "leaves such names in its debug information: take a newer NDK, or strip it with --build-type Release"
    ),
}

_SYSTEM_LIBRARY = re.compile(r"(?:lib(?:c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so\.\d+|ld-linux-.+\.so\.\d+)")
_OF_TORCH = re.compile(r"lib(?:torch\w*|c10)\.so")
"""These libraries are loaded already: whoever loads an adaptor has imported torch."""


@dataclass(frozen=True, slots=True)
class LoadableFile:
    """A file on its way to dist/."""

    kind: Kind
    path: Path
    place: str
    """The path of the file below dist/<target>/."""


def check(files: Sequence[LoadableFile], target: str, glibc: str, private: Iterable[Path]) -> list[Finding]:
    """Check the files. `private` are folders of this machine, whose names must not occur in any file."""
    demands = _demands(target, glibc)
    places = {file.place for file in files}
    # A root such as `/` occurs in every path of the target.
    private = [folder for folder in private if len(folder.parts) > 1]
    return [
        Finding(f"build-{rule}", Severity.ERROR, file.place, message, FIXES[rule])
        for file in files
        for rule, message in _wrong_with(file, target, demands, places, private)
    ]


def _demands(target: str, glibc: str) -> Demands:
    machine = elf.X86_64 if target == DEFAULT_TARGET else elf.AARCH64
    if target == "aarch64-android":
        from provisioning.validation import validation_table

        android = validation_table().android
        return Demands(machine, android_api=android.api, page_size=android.page_size)
    return Demands(machine, glibc=glibc)


def _wrong_with(
    file: LoadableFile, target: str, demands: Demands, places: set[str], private: Sequence[Path]
) -> Iterator[tuple[str, str]]:
    try:
        header = elf.read(file.path)
    except CheckFailed as error:
        yield "elf", error.message
        return
    yield from ((wrong.value, message) for wrong, message in complaints(header, demands))
    for name in header.needed:
        if file.kind == "adaptor" and _OF_TORCH.fullmatch(name):
            continue
        if not _is_provided(name, target) and not _reachable(name, target, file, header, places):
            yield "needed", f"it needs {name}, which is neither the system's nor where it searches"
    yield from _private_paths(file, private)


def _is_provided(name: str, target: str) -> bool:
    if target == DEFAULT_TARGET:
        return _SYSTEM_LIBRARY.fullmatch(name) is not None
    from provisioning import qnn_libraries

    return name in qnn_libraries.device_table().provides(target)


def _reachable(name: str, target: str, file: LoadableFile, header: elf.Elf, places: set[str]) -> bool:
    """Whether the loader finds a library of this build.

    A library is searched for by the program that loads it; on Android LD_LIBRARY_PATH names the folder."""
    if file.kind != "runner" or target == "aarch64-android":
        return any(PurePosixPath(place).name == name for place in places)
    folder = posixpath.dirname(file.place)
    entries = (*header.rpath, *header.runpath)
    folders = (posixpath.normpath(entry.replace("$ORIGIN", folder, 1)) for entry in entries)
    return any(posixpath.normpath(f"{path}/{name}") in places for path in folders)


def _private_paths(file: LoadableFile, private: Sequence[Path]) -> Iterator[tuple[str, str]]:
    content = file.path.read_bytes()
    for folder in private:
        match = re.search(re.escape(os.fsencode(folder)) + rb"(?![\w.-])", content)
        if match:  # One such path is enough to know what was compiled wrongly.
            end = content.find(b"\0", match.start())
            text = content[match.start() : min(end, match.start() + 160)].decode("utf-8", "replace")
            yield "paths", f"expected no path of this machine inside, found {text}"
            return


LICENCES = "licences"
BILL_OF_MATERIALS = "sbom.cdx.json"
OURS = ("bin", "lib", "python", LICENCES, BILL_OF_MATERIALS, MANIFEST)
"""The files and folders of a build below dist/<target>/."""


def refuse_foreign(folder: Path, mark: str, flag: str, ours: Iterable[str] | None = None) -> None:
    """Raise UsageError if `folder` contains something (one of `ours`) but not `mark`, a build's file."""
    if ours is None:
        ours = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ()
    foreign = [name for name in ours if _holds(folder / name)]
    if foreign and not (folder / mark).is_file():
        raise UsageError(
            f"{folder} holds {foreign[0]} of something else, which a build would remove",
            fix=f"name an empty or new folder with {flag}",
        )


def require_writable(folder: Path, flag: str) -> None:
    """Check before an hour of compiling that the folder can be made and written to."""
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not parent.is_dir():
        raise UsageError(
            f"{parent}: expected a folder for {flag}, found a file", fix=f"name a folder with {flag}"
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"{parent} cannot be written to", fix=f"name another folder with {flag}")


def alone_in(folder: Path, role: str) -> BaseFileLock:
    """A mutex: while it is held, no other build uses the folder for this purpose. A folder may serve two
    purposes."""
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(folder.with_name(f".{folder.name}.{role}.lock"))


@contextmanager
def part_of(dist: Path) -> Iterator[Path]:
    """A folder to prepare a build in, beside `dist` and under its mutex. Leftovers of a killed build are
    removed."""
    part = dist.with_name(f".{dist.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def replace_build(part: Path, dist: Path) -> None:
    """Replace the last build, of whichever stage.

    The manifest is removed first and written last. Each file is replaced in one step, so a running program
    keeps the files that it has open."""
    (dist / MANIFEST).unlink(missing_ok=True)
    places = sorted(path.relative_to(part) for path in part.rglob("*") if path.is_file())
    for place in sorted(places, key=lambda path: path.name == MANIFEST):
        (dist / place).parent.mkdir(parents=True, exist_ok=True)
        (part / place).replace(dist / place)
    for name in OURS:
        _remove_others(dist / name, {dist / place for place in places})


def digests_below(dist: Path, folders: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of the files in some folders of dist/, by path."""
    return {
        str(path.relative_to(dist)): hash_file(path)
        for folder in folders
        for path in sorted((dist / folder).glob("*"))
        if path.is_file()
    }


def _remove_others(path: Path, files: set[Path]) -> None:
    """Remove files below `path` that are not in `files`, and folders that become empty."""
    if path.is_dir() and not path.is_symlink():
        for entry in path.iterdir():
            _remove_others(entry, files)
        if not any(path.iterdir()):
            path.rmdir()
    elif path not in files:
        path.unlink(missing_ok=True)


def _holds(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists() or path.is_symlink()
