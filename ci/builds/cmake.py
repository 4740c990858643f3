"""Finding CMake, Ninja and a compiler, and running one build with its output in a log."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provisioning.base.commands import quoted
from provisioning.base.diagnosis import causes
from provisioning.base.errors import CheckFailed, EnvironmentLacking

PACKAGES = {
    "g++": "g++",
    "c++": "g++",
    "clang++": "clang",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
}
"""The Debian and Ubuntu package of a program."""

_VERSION = re.compile(r"\b(\d+(?:\.\d+)+)")
_ERROR = re.compile(
    r"^(?:CMake Error|ninja: error|.*?(?:fatal )?error: |.*undefined reference|.*ld: cannot find)"
)
_CONTEXT_LINES = 12


@dataclass(frozen=True, slots=True)
class Program:
    """A program that was found; `identity` is the first line it says of itself."""

    path: Path
    identity: str

    @property
    def version(self) -> str:
        found = _VERSION.search(self.identity)
        return found.group(1) if found else ""


def find_program(name: str, environ: Mapping[str, str] = os.environ) -> Program:
    """The first of that name on PATH that runs, with the package to install when there is none."""
    for path in _candidates(name, environ):
        if identity := _identity(path):
            return Program(path, identity)
    package = PACKAGES.get(Path(name).name)
    if len(name.split()) > 1:
        raise EnvironmentLacking(
            f"{name!r} is no program on PATH",
            remedy="name the program alone, without a launcher or arguments",
        )
    raise EnvironmentLacking(
        f"{name} is not on PATH",
        remedy=quoted("apt-get", "install", package) if package else f"install {name} and put it on PATH",
    )


def find_compiler(environ: Mapping[str, str] = os.environ) -> Program:
    """CXX if it is set, else g++, else clang++."""
    if named := environ.get("CXX"):
        return find_program(named, environ)
    for name in ("g++", "clang++"):
        try:
            return find_program(name, environ)
        except EnvironmentLacking:
            continue
    raise EnvironmentLacking(
        "no C++ compiler: neither g++ nor clang++ is on PATH, and CXX is not set",
        remedy=quoted("apt-get", "install", PACKAGES["g++"]),
    )


def find_cmake(floor: str, environ: Mapping[str, str] = os.environ) -> Program:
    """This interpreter's CMake or one on PATH, not older than `floor`."""
    old = []
    for path in _candidates("cmake", environ, beside_python=True):
        if not (identity := _identity(path)):
            continue
        cmake = Program(path, identity)
        if _key(cmake.version) >= _key(floor):
            return cmake
        old.append(f"{cmake.version} at {path}")
    found = f"found {' and '.join(old)}" if old else "found none"
    raise EnvironmentLacking(
        f"CMake: expected {floor} or newer, {found}",
        remedy=quoted(sys.executable, "-m", "pip", "install", f"cmake>={floor}"),
    )


def find_ninja(environ: Mapping[str, str] = os.environ) -> Program:
    for path in _candidates("ninja", environ, beside_python=True):
        if identity := _identity(path):
            return Program(path, identity)
    raise EnvironmentLacking(
        "Ninja is neither beside this Python nor on PATH",
        remedy=quoted(sys.executable, "-m", "pip", "install", "ninja"),
    )


@dataclass(frozen=True, slots=True)
class Build:
    """One configured build tree. Every command and all it says goes to `log`."""

    cmake: Program
    ninja: Program
    source: Path
    tree: Path
    log: Path
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def configure(self, definitions: Mapping[str, str], *, inputs: str = "") -> None:
        """Configure, in an emptied tree if anything but the sources is other than the last time.

        CMake keeps what it found in its cache: a moved tree fails, another compiler is half taken. `inputs`
        stands for whatever else the objects in the tree were made from.
        """
        defined = [f"-D{name}={value}" for name, value in sorted(definitions.items())]
        where = ["-S", str(self.source), "-B", str(self.tree), "-G", "Ninja"]
        command = [*where, f"-DCMAKE_MAKE_PROGRAM={self.ninja.path}", *defined]
        made_from = json.dumps([*command, self.cmake.identity, inputs])
        stamp = self.tree / "configured.json"
        if not stamp.is_file() or stamp.read_text(encoding="utf-8") != made_from:
            shutil.rmtree(self.tree, ignore_errors=True)
        self.tree.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("", encoding="utf-8")
        self._run("configuring", command)
        stamp.write_text(made_from, encoding="utf-8")

    def build(self, jobs: int, *targets: str) -> None:
        wanted = [argument for target in targets for argument in ("--target", target)]
        self._run("building", ["--build", str(self.tree), "--parallel", str(jobs), *wanted])

    def install(self, prefix: Path, *, strip: bool) -> None:
        self._run(
            "installing",
            ["--install", str(self.tree), "--prefix", str(prefix), *(["--strip"] if strip else [])],
        )

    def _run(self, doing: str, arguments: Sequence[str]) -> None:
        command = [str(self.cmake.path), *arguments]
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            result = subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, env=dict(self.environ), check=False
            )
        if result.returncode != 0:
            error = first_error(self.log.read_text(encoding="utf-8", errors="replace"))
            raise CheckFailed(
                f"{doing} {self.source.name} failed with exit code {result.returncode}:\n"
                f"{error}{causes(error)}",
                remedy=f"read {self.log}",
            )


def first_error(log: str) -> str:
    """The first error of a build's log and what follows it; the log's end when none is recognised."""
    lines = log.splitlines()
    for index, line in enumerate(lines):
        if _ERROR.match(line):
            return "\n".join(f"  {text}" for text in lines[index : index + _CONTEXT_LINES])
    return "\n".join(f"  {text}" for text in lines[-_CONTEXT_LINES:])


def _candidates(name: str, environ: Mapping[str, str], *, beside_python: bool = False) -> Iterator[Path]:
    # CMake runs elsewhere, and takes no relative path for a compiler.
    if os.sep in name:
        yield Path(name).absolute()
        return
    folders = [str(Path(sys.executable).parent)] if beside_python else []
    for folder in dict.fromkeys([*folders, *environ.get("PATH", os.defpath).split(os.pathsep)]):
        if folder and (found := shutil.which(name, path=folder)):
            yield Path(found).absolute()


def _identity(path: Path) -> str:
    """The first line of `--version`; empty when the program does not run."""
    try:
        result = subprocess.run(
            [str(path), "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = result.stdout.splitlines()
    return lines[0].strip() if result.returncode == 0 and lines else ""


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
