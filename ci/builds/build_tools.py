"""Finding CMake, Ninja and compilers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.commands import captured, quoted
from provisioning.base.errors import EnvironmentLacking
from provisioning.symbol_versions import version_key

PACKAGES = {
    "g++": "g++",
    "c++": "g++",
    "clang++": "clang",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
}
"""The Debian and Ubuntu package of a program."""

_VERSION = re.compile(r"\b(\d+(?:\.\d+)+)")


@dataclass(frozen=True, slots=True)
class BuildTool:
    """`identity` is the first line that the program prints of itself."""

    path: Path
    identity: str

    @property
    def version(self) -> str:
        version = _VERSION.search(self.identity)
        return version.group(1) if version else ""


def find_program(name: str, environ: Mapping[str, str] = os.environ) -> BuildTool:
    """The first program of that name on PATH that runs; else an error that names its package."""
    if program := next(_running(name, environ), None):
        return program
    if len(name.split()) > 1:
        raise EnvironmentLacking(
            f"{name!r} is not a program on PATH",
            fix="name the program alone, without a launcher or arguments",
        )
    package = PACKAGES.get(Path(name).name)
    raise EnvironmentLacking(
        f"{name} is not on PATH",
        fix=quoted("apt-get", "install", package) if package else f"install {name} and put it on PATH",
    )


def find_compiler(environ: Mapping[str, str] = os.environ) -> BuildTool:
    """CXX if it is set, else g++, else clang++."""
    if named := environ.get("CXX"):
        return find_program(named, environ)
    for name in ("g++", "clang++"):
        if program := next(_running(name, environ), None):
            return program
    raise EnvironmentLacking(
        "no C++ compiler: neither g++ nor clang++ is on PATH, and CXX is not set",
        fix=quoted("apt-get", "install", PACKAGES["g++"]),
    )


def find_cmake(floor: str, environ: Mapping[str, str] = os.environ) -> BuildTool:
    """This interpreter's CMake or one on PATH, not older than `floor`."""
    old = []
    for cmake in _running("cmake", environ, beside_python=True):
        if version_key(cmake.version) >= version_key(floor):
            return cmake
        old.append(f"{cmake.version} at {cmake.path}")
    listing = f"found {' and '.join(old)}" if old else "found none"
    raise EnvironmentLacking(
        f"CMake: expected {floor} or newer, {listing}",
        fix=quoted(sys.executable, "-m", "pip", "install", f"cmake>={floor}"),
    )


def find_ninja() -> BuildTool:
    if ninja := next(_running("ninja", os.environ, beside_python=True), None):
        return ninja
    raise EnvironmentLacking(
        "Ninja is neither beside this Python nor on PATH",
        fix=quoted(sys.executable, "-m", "pip", "install", "ninja"),
    )


def _running(name: str, environ: Mapping[str, str], *, beside_python: bool = False) -> Iterator[BuildTool]:
    folders = [str(Path(sys.executable).parent)] if beside_python else []
    folders += environ.get("PATH", os.defpath).split(os.pathsep)
    on_path = (shutil.which(name, path=folder) for folder in dict.fromkeys(folders) if folder)
    for program in [name] if os.sep in name else filter(None, on_path):
        path = Path(program).absolute()  # CMake runs elsewhere, and takes no relative path for a compiler.
        if identity := _identity(path):
            yield BuildTool(path, identity)


def _identity(path: Path) -> str:
    """The first line of `--version`; empty when the program does not run."""
    try:
        result = captured([str(path), "--version"], timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = result.stdout.splitlines()
    return lines[0].strip() if result.returncode == 0 and lines else ""
