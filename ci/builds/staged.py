"""What the loader of the target's machine will say of a staged runner, read from its files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from provisioning import elf
from provisioning.base.findings import Finding, Severity

RUNNER = Path("bin/qnn_executor_runner")
LIBRARIES = Path("lib")
MANIFEST = "manifest.json"
"""Only of a build from source."""

RUNPATH = "$ORIGIN/../lib"

SYSTEM_LIBRARIES = re.compile(r"(?:lib(?:c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so\.\d+|ld-linux-.+\.so\.\d+)")


@dataclass(frozen=True, slots=True)
class Platform:
    machine: str
    interpreter: str


PLATFORMS = {
    "x86_64-linux": Platform(elf.X86_64, "/lib64/ld-linux-x86-64.so.2"),
    "aarch64-linux": Platform(elf.AARCH64, "/lib/ld-linux-aarch64.so.1"),
}


@dataclass(frozen=True, slots=True)
class Inspected:
    findings: tuple[Finding, ...]
    runner: elf.Elf
    glibc: str
    """The highest version that any staged file needs."""


def inspect(dist: Path, target: str, glibc_floor: str, private: Iterable[Path]) -> Inspected:
    """`private`: folders of this machine whose names must not be inside the runner."""
    path = dist / RUNNER
    runner = elf.read(path)
    platform = PLATFORMS[target]
    findings: list[Finding] = []

    def wrong(rule: str, message: str, remedy: str) -> None:
        findings.append(Finding(rule, Severity.ERROR, str(path), message, remedy))

    if runner.machine != platform.machine:
        wrong(
            "runner-machine",
            f"expected a program for {target}, found one for {runner.machine_name}",
            "unset CXX, or set it to a compiler for this machine",
        )
    if runner.interpreter != platform.interpreter:
        wrong(
            "runner-interpreter",
            f"expected {platform.interpreter}, found {runner.interpreter or 'none'}",
            "build it with a compiler for glibc",
        )
    if runner.rpath or runner.runpath != (RUNPATH,):
        wrong(
            "runner-runpath",
            f"expected {RUNPATH} alone, found {':'.join(runner.rpath + runner.runpath) or 'none'}",
            "unset LDFLAGS and LD_RUN_PATH, which may add search paths, and build with --clean",
        )
    for name in runner.needed:
        if not SYSTEM_LIBRARIES.fullmatch(name) and not (dist / LIBRARIES / name).is_file():
            wrong(
                "runner-needed",
                f"it needs {name}, which is neither beside it nor a system library",
                "unset LDFLAGS, which may add libraries, and build with --clean",
            )
    staged = (path, *sorted((dist / LIBRARIES).glob("*.so")))
    glibc = max((elf.read(file).highest("GLIBC") or "0" for file in staged), key=elf.version_key)
    if elf.version_key(glibc) > elf.version_key(glibc_floor):
        wrong(
            "runner-glibc",
            f"expected to need glibc {glibc_floor} at most, found {glibc}",
            "build it on a machine with an older glibc, such as the container of `nox -s image`",
        )
    content = path.read_bytes()
    for folder in private:
        # A root such as `/` is in every path of the target's own.
        if len(folder.parts) > 1 and os.fsencode(folder) in content:
            wrong(
                "runner-paths",
                f"expected no path of this machine inside, found {folder}",
                f"--remap {folder}=.",
            )
    return Inspected(tuple(findings), runner, glibc)
