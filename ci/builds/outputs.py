"""What the loader of the target will say of what was built, read from the files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.builds.recipes import Kind
from ci.builds.staged import PLATFORMS, SYSTEM_LIBRARIES
from provisioning import elf
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Finding, Severity
from provisioning.validation import tables

ANDROID_LOADER = "/system/bin/linker64"
_PAGES = "-Wl,-z,max-page-size=16384"


@dataclass(frozen=True, slots=True)
class Built:
    """A file on its way to dist/."""

    kind: Kind
    path: Path
    place: str
    """Where it goes below dist/<target>/."""


@dataclass(frozen=True, slots=True)
class Demands:
    """What a target asks of every file."""

    target: str
    machine: str
    loader: str
    glibc: str | None = None
    api: int | None = None
    page_size: int = 0


def demands_of(target: str, glibc: str) -> Demands:
    if target == "aarch64-android":
        android = tables.validation().android
        return Demands(target, elf.AARCH64, ANDROID_LOADER, api=android.api, page_size=android.page_size)
    platform = PLATFORMS[target]
    return Demands(target, platform.machine, platform.interpreter, glibc=glibc)


def check(built: Sequence[Built], demands: Demands, private: Iterable[Path]) -> list[Finding]:
    names = {Path(file.place).name for file in built}
    private = [folder for folder in private if len(folder.parts) > 1]
    findings: list[Finding] = []
    for file in built:
        try:
            header = elf.read(file.path)
        except CheckFailed as error:
            findings.append(_finding("elf", file, error.message, "build with --clean"))
            continue
        findings += _format(file, header, demands)
        findings += _loading(file, header, demands, names)
        findings += _privacy(file, private)
    return findings


def _finding(rule: str, file: Built, message: str, remedy: str) -> Finding:
    return Finding(f"build-{rule}", Severity.ERROR, str(file.path), message, remedy)


def _format(file: Built, header: elf.Elf, demands: Demands) -> Iterable[Finding]:
    if (header.bits, header.machine) != (64, demands.machine):
        wanted = elf.Elf(bits=64, machine=demands.machine, flags=0)
        yield _finding(
            "machine",
            file,
            f"expected 64-bit {wanted.machine_name} for {demands.target}, "
            f"found {header.bits}-bit {header.machine_name}",
            "check the toolchain, and build with --clean",
        )
    least = min(header.alignments, default=0)
    if least < demands.page_size:
        yield _finding(
            "page-size",
            file,
            f"expected segments aligned to {demands.page_size:#x} for devices with large pages, "
            f"found {least:#x}",
            f"keep {_PAGES} in the recipe's link_flags, or use NDK r28",
        )
    if header.textrel:
        yield _finding(
            "relocations", file, "it needs its code changed when it is loaded", "compile it all with -fPIC"
        )
    if header.execstack:
        yield _finding("stack", file, "it asks for an executable stack", "link with -Wl,-z,noexecstack")


def _loading(file: Built, header: elf.Elf, demands: Demands, names: set[str]) -> Iterable[Finding]:
    if file.kind == "runner" and header.interpreter != demands.loader:
        yield _finding(
            "loader",
            file,
            f"expected {demands.loader}, found {header.interpreter or 'none'}",
            "check the toolchain, and build with --clean",
        )
    for name in header.needed:
        if name not in names and not _provided(name, demands.target):
            yield _finding(
                "needed",
                file,
                f"it needs {name}, which is neither built with it nor of the system",
                "link it statically, or add it to the recipe's outputs",
            )
    for entry in (*header.rpath, *header.runpath):
        if not entry.startswith("$ORIGIN"):
            yield _finding(
                "search-path",
                file,
                f"expected to look for libraries beside itself ($ORIGIN), found {entry}",
                "build with --clean; a project that sets INSTALL_RPATH itself needs --cmake-arg",
            )
    if demands.glibc is not None:
        needed = header.highest("GLIBC") or "0"
        if elf.version_key(needed) > elf.version_key(demands.glibc):
            yield _finding(
                "glibc",
                file,
                f"expected to need glibc {demands.glibc} at most, found {needed}",
                "build it where glibc is older, such as in the container of `nox -s image`",
            )
    if demands.api is not None and (header.android_api is None or header.android_api > demands.api):
        yield _finding(
            "android-api",
            file,
            f"expected Android API {demands.api} at most, found {header.android_api or 'none named'}",
            "keep ANDROID_PLATFORM as the recipe has it, and build with --clean",
        )


def _provided(name: str, target: str) -> bool:
    if target == "x86_64-linux":
        return SYSTEM_LIBRARIES.fullmatch(name) is not None
    systems = {str(system): table for system, table in tables.device_libraries().systems.items()}
    return name in systems[target].provides


def _privacy(file: Built, private: Iterable[Path]) -> Iterable[Finding]:
    content = file.path.read_bytes()
    for folder in private:
        found = re.search(re.escape(os.fsencode(folder)) + rb"(?![\w.-])", content)
        if found:
            end = content.find(b"\0", found.start())
            text = content[found.start() : min(end, found.start() + 160)].decode("utf-8", "replace")
            yield _finding(
                "paths",
                file,
                f"expected no path of this machine inside, found {text}",
                "compile what says it with -ffile-prefix-map, as the recipe does for the tree",
            )
