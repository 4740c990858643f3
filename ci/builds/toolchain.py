"""The programs that build: CMake, Ninja, and compilers of this machine, a cross toolchain or the NDK."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci.builds.tree import Recipe
from provisioning.base.commands import quote_command, version_line
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.findings import Artifact
from provisioning.components import ANDROID_NDK, NDK_TOOLCHAIN, identity_of
from provisioning.elf import version_key

PACKAGES = {
    "g++": "g++",
    "c++": "g++",
    "clang++": "clang",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
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


def find_program(*names: str, environ: Mapping[str, str] = os.environ) -> BuildTool:
    """The first program on PATH of one of these names that runs; else an error that says why it does not, or
    names its package."""
    reasons: list[str] = []
    for name in names:
        if program := next(_running(name, environ, reasons), None):
            return program
    if reasons:
        raise EnvironmentLacking(
            "; ".join(reasons), fix="run it by hand, and reinstall it or put another one before it on PATH"
        )
    if len(names[0].split()) > 1:
        raise EnvironmentLacking(
            f"{names[0]!r} is not a program on PATH",
            fix="name the program alone, without a launcher or arguments",
        )
    listing, package = " nor ".join(names), PACKAGES.get(Path(names[0]).name)
    raise EnvironmentLacking(
        f"neither {listing} is on PATH" if names[1:] else f"{listing} is not on PATH",
        fix=quote_command("apt-get", "install", package)
        if package
        else f"install {listing} and put it on PATH",
    )


def find_compiler(environ: Mapping[str, str] = os.environ) -> BuildTool:
    """CXX if it is set, else g++, else clang++."""
    compiler = environ.get("CXX")
    return find_program(*([compiler] if compiler else ["g++", "clang++"]), environ=environ)


def find_cmake(floor: str, environ: Mapping[str, str] = os.environ) -> BuildTool:
    """This interpreter's CMake or one on PATH, not older than `floor`."""
    versions = []
    for cmake in _running("cmake", environ, [], beside_python=True):
        if version_key(cmake.version) >= version_key(floor):
            return cmake
        versions.append(f"{cmake.version} at {cmake.path}")
    listing = f"found {' and '.join(versions)}" if versions else "found none"
    raise EnvironmentLacking(
        f"CMake: expected {floor} or newer, {listing}",
        fix=quote_command(sys.executable, "-m", "pip", "install", f"cmake>={floor}"),
    )


def find_ninja() -> BuildTool:
    if ninja := next(_running("ninja", os.environ, [], beside_python=True), None):
        return ninja
    raise EnvironmentLacking(
        "Ninja is neither beside this Python nor on PATH",
        fix=quote_command(sys.executable, "-m", "pip", "install", "ninja"),
    )


def _running(
    name: str, environ: Mapping[str, str], reasons: list[str], *, beside_python: bool = False
) -> Iterator[BuildTool]:
    """The programs of that name that say what they are. Appends to `reasons` why others do not."""
    folders = [str(Path(sys.executable).parent)] if beside_python else []
    folders += environ.get("PATH", os.defpath).split(os.pathsep)
    programs = (shutil.which(name, path=folder) for folder in dict.fromkeys(folders) if folder)
    for program in [name] if os.sep in name else filter(None, programs):
        path = Path(program).absolute()  # CMake runs elsewhere, and takes no relative path for a compiler.
        if not path.exists():
            continue
        identity, why_not = version_line(path)
        if identity:
            yield BuildTool(path, identity)
        else:
            reasons.append(f"{path} does not say its version: {why_not}")


_C_OF = {"g++": "gcc", "clang++": "clang", "c++": "cc"}


@dataclass(frozen=True, slots=True)
class Toolchain:
    identity: str
    """A description. Another toolchain needs an empty build directory."""
    definitions: Mapping[str, str]
    version: str = ""
    """The NDK's revision; empty for others."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Values of a recipe's placeholders."""
    roots: tuple[Path, ...] = ()
    """The toolchain's folders, whose names must not occur in any binary."""


def host(environ: Mapping[str, str]) -> Toolchain:
    cxx = find_compiler(environ)
    cc = find_program(environ.get("CC") or str(c_compiler_of(cxx.path)), environ=environ)
    return _compilers(cc, cxx)


def cross(recipe: Recipe, environ: Mapping[str, str], file: Path | None) -> Toolchain:
    """The cross compilers on PATH, or a vendor's, which a CMake toolchain file names with their sysroot."""
    if file is None:
        cxx = find_program(f"{recipe.compiler}g++", environ=environ)
        return _compilers(
            find_program(str(cxx.path.with_name(f"{recipe.compiler}gcc")), environ=environ), cxx
        )
    if not file.is_file():
        raise UsageError(f"--toolchain-file {file}: there is no such file")
    path = file.absolute()
    return Toolchain(
        identity=f"{path} {Artifact.of('', path).sha256}",
        definitions={"CMAKE_TOOLCHAIN_FILE": str(path)},
    )


def ndk(root: Path) -> Toolchain:
    toolchain = root / NDK_TOOLCHAIN
    properties = root / "source.properties"
    for path in (toolchain, properties):
        if not path.is_file():
            raise EnvironmentLacking(
                f"{root}: expected an Android NDK with {path.relative_to(root)}, found none",
                fix="set ANDROID_NDK_ROOT to the folder that holds source.properties",
            )
    revision = identity_of(ANDROID_NDK, root).version or "unknown"
    return Toolchain(
        identity=f"Android NDK {revision} in {root}",
        # The recipe names the toolchain file, which finds the rest.
        definitions={},
        version=revision,
        values={"ndk": str(root)},
        roots=(root,),
    )


def c_compiler_of(cxx: Path) -> Path:
    """The C compiler that belongs to a C++ compiler: beside it, of the same version."""
    for name, c_name in _C_OF.items():
        if re.search(rf"(^|-){re.escape(name)}(-\d+)?$", cxx.name):
            return cxx.with_name(cxx.name.replace(name, c_name))
    raise EnvironmentLacking(f"{cxx}: no C compiler is known to belong to it", fix="set CC as well as CXX")


def _compilers(cc: BuildTool, cxx: BuildTool) -> Toolchain:
    return Toolchain(
        identity=f"{cxx.path}: {cxx.identity}",
        definitions={"CMAKE_C_COMPILER": str(cc.path), "CMAKE_CXX_COMPILER": str(cxx.path)},
        values={"cc": str(cc.path), "cxx": str(cxx.path)},
    )
