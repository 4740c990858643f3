"""The compilers of a target: this machine's, a cross compiler's, the Android NDK's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.builds.build_tools import BuildTool, find_compiler, find_program
from ci.builds.recipes import Recipe
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.findings import Artifact
from provisioning.components import ANDROID_NDK, NDK_TOOLCHAIN, identity_of

_C_OF = {"g++": "gcc", "clang++": "clang", "c++": "cc"}


@dataclass(frozen=True, slots=True)
class Toolchain:
    identity: str
    """A description. Another toolchain needs an empty build directory."""
    definitions: Mapping[str, str]
    files: tuple[Path, ...] = ()
    """The toolchain's own CMake files; they may read options of a recipe."""
    version: str = ""
    """The NDK's revision; empty for others."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Values of a recipe's placeholders."""
    roots: tuple[Path, ...] = ()
    """The toolchain's folders, whose names must not occur in any binary."""


def host(environ: Mapping[str, str]) -> Toolchain:
    cxx = find_compiler(environ)
    cc = find_program(environ.get("CC") or str(c_compiler_of(cxx.path)), environ)
    return _compilers(cc, cxx)


def cross(
    recipe: Recipe, environ: Mapping[str, str], prefix: str | None, sysroot: Path | None, file: Path | None
) -> Toolchain:
    """Named by the prefix of its programs, or by a CMake toolchain file."""
    if file is not None:
        if prefix is not None or sysroot is not None:
            raise UsageError("--toolchain-file says what --compiler and --sysroot say: give one or the other")
        if not file.is_file():
            raise UsageError(f"--toolchain-file {file}: there is no such file")
        path = file.absolute()
        return Toolchain(
            identity=f"{path} {Artifact.of('', path).sha256}",
            definitions={"CMAKE_TOOLCHAIN_FILE": str(path)},
            files=(path,),
        )
    name = prefix if prefix is not None else recipe.compiler
    cxx = find_program(f"{name}g++", environ)
    cc = find_program(str(cxx.path.with_name(f"{Path(name).name}gcc")), environ)
    compilers = _compilers(cc, cxx)
    if sysroot is None:
        return compilers
    if not sysroot.is_dir():
        raise UsageError(f"--sysroot {sysroot}: there is no such folder")
    return replace(
        compilers,
        identity=f"{compilers.identity}, sysroot {sysroot.absolute()}",
        definitions={**compilers.definitions, "CMAKE_SYSROOT": str(sysroot.absolute())},
        roots=(sysroot.absolute(),),
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
        files=tuple(sorted(toolchain.parent.glob("*.cmake"))),
        version=revision,
        values={"ndk": str(root)},
        roots=(root,),
    )


def c_compiler_of(cxx: Path) -> Path:
    """The C compiler that belongs to a C++ compiler: beside it, of the same version."""
    for name, other in _C_OF.items():
        if re.search(rf"(^|-){re.escape(name)}(-\d+)?$", cxx.name):
            return cxx.with_name(cxx.name.replace(name, other))
    raise EnvironmentLacking(f"{cxx}: no C compiler is known to belong to it", fix="set CC as well as CXX")


def _compilers(cc: BuildTool, cxx: BuildTool) -> Toolchain:
    return Toolchain(
        identity=f"{cxx.path}: {cxx.identity}",
        definitions={"CMAKE_C_COMPILER": str(cc.path), "CMAKE_CXX_COMPILER": str(cxx.path)},
        values={"cc": str(cc.path), "cxx": str(cxx.path)},
    )
