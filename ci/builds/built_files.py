"""Checks of built files before they go into dist/: can the target's loader load them?"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from provisioning import elf
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import DEFAULT_TARGET
from provisioning.loadable import Demands, complaints

if TYPE_CHECKING:
    from ci.builds.recipes import Kind

CLEAN = "check the toolchain, and build with --clean"
FIXES = {
    "elf": "build with --clean",
    "machine": CLEAN,
    "loader": CLEAN,
    "page-size": "keep -Wl,-z,max-page-size=16384 in the recipe's link_flags, or use NDK r28",
    "relocations": "compile it all with -fPIC",
    "stack": "link with -Wl,-z,noexecstack",
    "needed": "link it statically; a shared library that a project of the recipe defines is shipped",
    "search-path": "build with --clean; a project that sets INSTALL_RPATH itself needs --cmake-arg",
    "glibc": Fix("build it where glibc is older, such as in the container of `{}`", ("image",)),
    "android-api": "keep ANDROID_PLATFORM as the recipe has it, and build with --clean",
    "paths": (
        "compile what contains it with -ffile-prefix-map (build_runner: --remap FROM=TO); clang before 17 "
        "leaves such names in its debug information: take a newer NDK, or --release, which strips it"
    ),
}

_SYSTEM_LIBRARY = re.compile(r"(?:lib(?:c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so\.\d+|ld-linux-.+\.so\.\d+)")
_OF_TORCH = re.compile(r"lib(?:torch\w*|c10)\.so")
"""Whoever loads an adaptor has imported torch."""


LOADERS = {
    "x86_64-linux": "/lib64/ld-linux-x86-64.so.2",
    "aarch64-linux": "/lib/ld-linux-aarch64.so.1",
    "aarch64-android": "/system/bin/linker64",
}


@dataclass(frozen=True, slots=True)
class LoadableFile:
    """A file on its way to dist/."""

    kind: Kind
    path: Path
    place: str
    """Where it goes below dist/<target>/."""


def check(built: Sequence[LoadableFile], target: str, glibc: str, private: Iterable[Path]) -> list[Finding]:
    """`private`: folders of this machine whose names must not occur in any file."""
    demands = _demands(target, glibc)
    places = {file.place for file in built}
    # A root such as `/` occurs in every path of the target.
    private = [folder for folder in private if len(folder.parts) > 1]
    return [
        Finding(f"build-{what}", Severity.ERROR, file.place, message, FIXES[what])
        for file in built
        for what, message in _wrong_with(file, target, demands, places, private)
    ]


def _demands(target: str, glibc: str) -> Demands:
    machine = elf.X86_64 if target == DEFAULT_TARGET else elf.AARCH64
    if target == "aarch64-android":
        from provisioning.validation import tables

        android = tables.validation().android
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
    if file.kind == "runner" and header.interpreter != LOADERS[target]:
        yield "loader", f"expected {LOADERS[target]}, found {header.interpreter or 'none'}"
    for name in header.needed:
        if file.kind == "adaptor" and _OF_TORCH.fullmatch(name):
            continue
        if not _provided(name, target) and not _reachable(name, target, file, header, places):
            yield "needed", f"it needs {name}, which is neither the system's nor where it searches"
    yield from _private_paths(file, private)


def _provided(name: str, target: str) -> bool:
    if target == DEFAULT_TARGET:
        return _SYSTEM_LIBRARY.fullmatch(name) is not None
    from provisioning.validation import tables

    return name in tables.device_libraries().provides(target)


def _reachable(name: str, target: str, file: LoadableFile, header: elf.Elf, places: set[str]) -> bool:
    """Whether the loader finds a library of this build.

    A library is searched for by the program that loads it; on Android LD_LIBRARY_PATH names the folder."""
    if file.kind != "runner" or target == "aarch64-android":
        return any(PurePosixPath(place).name == name for place in places)
    folder = posixpath.dirname(file.place)
    searched = (*header.rpath, *header.runpath)
    folders = (posixpath.normpath(entry.replace("$ORIGIN", folder, 1)) for entry in searched)
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
