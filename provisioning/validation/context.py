"""Everything that rules look at, gathered before any of them runs: nothing else touches the machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from packaging.version import Version as Ordered

from provisioning.accepted_file import SHIPPED, load_accepted
from provisioning.base.commands import Fix, captured, quoted
from provisioning.base.errors import ManifestError
from provisioning.base.findings import Metric
from provisioning.base.settings import DEFAULT_TARGET, MANIFESTS, TARGETS, WINDOWS, Selection
from provisioning.components import (
    ANDROID_NDK,
    KINDS,
    NDK_HEADER,
    NDK_PREBUILT,
    NDK_RUNTIME,
    NDK_TOOLCHAIN,
    QNN_SDK,
    identity_of,
    metadata_text,
)
from provisioning.elf import AARCH64, Elf, Loading, load_all
from provisioning.environment import HOST_LIBRARIES, Environment, resolve
from provisioning.manifest import Profile, Soc, load_profile, soc_named
from provisioning.python_environments import STAMP
from provisioning.qnn_libraries import Library, System, libraries_in, read
from provisioning.validation.probe import Answer, ask

MEASURED = MANIFESTS / "accepted" / "compat.json"

STEPS = ("device", "lower_fp16", "run_fp16", "lower_8a8w", "run_8a8w")
"""The order in which they are tried."""

PASSED = "passed"

SUBJECT = "executorch {executorch}, QNN {qnn} ({build_id}), {soc}"
_SUBJECT = re.compile(r"executorch (?P<executorch>\S+), QNN (?P<qnn>\S+) \((?P<build_id>\S+)\), (?P<soc>\S+)")


@dataclass(frozen=True, slots=True)
class Pair:
    executorch: str
    qnn: str
    build_id: str
    soc: str
    values: Mapping[str, Metric]
    """Of each step that was reached: PASSED, or the first line of the log that says what went wrong. Also
    `torch` and `torchao`, and the `package` that the libraries came from: `onnxruntime-qnn 2.5.0`."""

    @property
    def subject(self) -> str:
        return SUBJECT.format(**asdict(self))

    @property
    def works(self) -> bool:
        return all(self.values.get(step) == PASSED for step in STEPS)

    @property
    def error(self) -> str:
        """The first error, and the step that reported it; empty for a pair that works."""
        met = ((step, self.values.get(step, PASSED)) for step in STEPS)
        return next((f"{step}: {value}" for step, value in met if value != PASSED), "")


def load_measured(file: Path = MEASURED) -> tuple[Pair, ...]:
    """In the order of versions; empty if nothing was measured yet."""
    accepted = load_accepted(file, SHIPPED)
    pairs = []
    for subject, values in accepted.subjects.items():
        if (named := _SUBJECT.fullmatch(subject)) is None:
            raise ManifestError(accepted.path, subject, expected=SUBJECT, found="another text", fix=SHIPPED)
        pairs.append(Pair(**named.groupdict(), values=values))
    return tuple(sorted(pairs, key=lambda row: (Ordered(row.executorch), Ordered(row.qnn))))


@dataclass(frozen=True, slots=True)
class ComponentTree:
    """A component's place, and what its own files say about it."""

    path: Path
    origin: str
    """`store`, or `directory` (the user's own)."""
    variable: str = ""
    stated: Mapping[str, str] = field(default_factory=dict)
    """Version by what states it: `sdk.yaml`, `directory`, `source.properties`, `ndk-version.h`."""
    unusable: str = ""
    """Why its compiler cannot build, of an NDK."""

    @property
    def named(self) -> str:
        """The tree as the user knows it."""
        return f"{self.path} ({self.variable})" if self.origin == "directory" else str(self.path)


@dataclass(frozen=True, slots=True)
class Tool:
    path: str
    version: str
    """Empty if it did not say one."""
    silence: str = ""
    """Why it did not."""


@dataclass(frozen=True, slots=True)
class Host:
    system: str
    machine: str
    distribution: str
    """`debian 12`; empty when the system does not say."""
    python: str
    glibc: str
    """The version of glibc; empty on a system with another C library."""
    tools: Mapping[str, Tool]
    packages: Mapping[str, str]
    """Python packages of this interpreter."""
    environment: str = ""
    """The folder of this Python, where sessions made it."""

    @property
    def installing(self) -> Fix:
        """What installs the pinned packages. A session does, unless it made this Python already."""
        if self.environment:
            return Fix("{} && {}", quoted("rm", "-rf", self.environment), ("validate",))
        return Fix("run it as a session, which installs the pinned packages: {}", ("validate",))


@dataclass(frozen=True)
class Context:
    """One set of trees and all that is judged with it. Targets with other trees have their own context."""

    profile: Profile
    targets: tuple[str, ...]
    socs: Mapping[str, Soc]
    trees: Mapping[str, ComponentTree]
    environ: Mapping[str, str]
    """The user's own variables, as they are in the shell."""
    variables: Mapping[str, str]
    """The variables that stages run with: the user's, corrected by `provisioning.environment`."""
    host: Host
    libraries: tuple[Library, ...] = ()
    loading: Mapping[Path, Loading] = field(default_factory=dict)
    """What the loader says of the host's libraries, of those that it was asked to open."""
    answers: Mapping[str, Answer] = field(default_factory=dict)
    """The compiler's answer for each SoC."""
    every_target: bool = False
    """`--target all`: a target that the profile cannot have is no mistake then."""
    measured: tuple[Pair, ...] = ()
    """Which pairs of executorch and QNN were measured, and with what result."""

    @cached_property
    def readable(self) -> tuple[tuple[Library, Elf], ...]:
        return tuple((library, library.elf) for library in self.libraries if library.elf is not None)

    def socs_of(self, target: str) -> Mapping[str, Soc]:
        """The chips on which the target's system runs."""
        return {name: soc for name, soc in self.socs.items() if soc.windows or target != WINDOWS}

    def unreadable(self, place: str) -> bool:
        """Whether this file, or a folder that it is in, cannot be read: it may be there."""
        places = {library.place for library in self.libraries if library.unreadable}
        return not places.isdisjoint({place, *map(str, PurePosixPath(place).parents)})

    def of_system(self, system: System) -> Iterable[tuple[Library, Elf]]:
        return ((library, elf) for library, elf in self.readable if library.system == system)

    def in_directory(self, directory: str) -> dict[str, Library]:
        """Name → library, for one directory under lib/ and what is below it."""
        return {library.name: library for library in self.libraries if library.directory == directory}


def same_path(one: str | Path, other: str | Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


_TOOLS = {
    "cmake": ["--version"],
    "gcc": ["-dumpfullversion", "-dumpversion"],
    "clang": ["--version"],
}
_SECONDS = 20.0
"""How long a program may take to say its version."""
_NUMBER = re.compile(r"\d+(?:\.\d+)+|\d+")


@dataclass(frozen=True)
class _Resolved:
    """Targets that share all their trees, and the variables of the first."""

    targets: tuple[str, ...]
    trees: Mapping[str, ComponentTree]
    variables: Mapping[str, str]


Resolve = Callable[[Selection, Mapping[str, str]], Environment]


def gather(
    selection: Selection,
    environ: Mapping[str, str],
    *,
    asks_compiler: bool = True,
    resolve: Resolve = resolve,
    seconds: float = _SECONDS,
) -> list[Context]:
    """Resolve the environments and read what rules need.

    Every target is judged against its own trees: there is a context for each set of trees. A program gets
    `seconds` to say its version. The compiler takes longer than all else.
    """
    profile = load_profile(selection.profile)
    socs = {name: soc_named(name) for name in selection.socs}
    resolved = _resolved(selection, environ, resolve)
    host, measured = _host(resolved[0].variables, profile.packages, seconds), load_measured()
    contexts = []
    for group in resolved:
        libraries = libraries_in(group.trees[QNN_SDK].path) if QNN_SDK in group.trees else []
        asked = socs if asks_compiler and _lowers(group) else {}
        contexts.append(
            Context(
                profile=profile,
                targets=group.targets,
                socs=socs,
                trees=group.trees,
                environ=environ,
                variables=group.variables,
                libraries=tuple(libraries),
                host=host,
                loading=loading_of(libraries, group.variables),
                answers={soc: ask(soc, group.variables) for soc in asked},
                every_target=set(TARGETS) <= set(selection.targets),
                measured=measured,
            )
        )
    return contexts


def _lowers(resolved: _Resolved) -> bool:
    """Whether models are lowered with it: not with an SDK that was provisioned for devices only."""
    sdk = resolved.trees.get(QNN_SDK)
    return DEFAULT_TARGET in resolved.targets or (
        sdk is not None and (sdk.path / "lib" / HOST_LIBRARIES).is_dir()
    )


def _resolved(selection: Selection, environ: Mapping[str, str], resolve: Resolve) -> list[_Resolved]:
    groups: dict[tuple[tuple[str, Path], ...], _Resolved] = {}
    for target in selection.targets:
        environment = resolve(replace(selection, target=target), environ)
        key = tuple(sorted((name, root.path) for name, root in environment.roots.items()))
        if key in groups:
            groups[key] = replace(groups[key], targets=(*groups[key].targets, target))
            continue
        trees = {
            name: looked_at(name, root.path, root.origin, root.variable)
            for name, root in environment.roots.items()
        }
        groups[key] = _Resolved((target,), trees, environment.merged(environ))
    return list(groups.values())


def _of_ndk_header(root: Path) -> str:
    """The revision by which the NDK's own compiler builds."""
    for path in root.glob(f"toolchains/llvm/prebuilt/*/sysroot/usr/include/android/{NDK_HEADER}"):
        with contextlib.suppress(OSError):
            text = metadata_text(path)
            defined = dict(re.findall(r"#define __NDK_(MAJOR|MINOR|BUILD)__ (\d+)", text))
            if len(defined) == 3:
                return ".".join(defined[part] for part in ("MAJOR", "MINOR", "BUILD"))
    return ""


def looked_at(component: str, path: Path, origin: str, variable: str = "") -> ComponentTree:
    unusable = why_unusable(path) if component == ANDROID_NDK else ""
    return ComponentTree(path, origin, variable, stated_versions(component, path), unusable)


def why_unusable(ndk: Path, seconds: float = _SECONDS) -> str:
    """Why an NDK cannot build for Android on this machine; empty if it can. Its compiler is run."""
    compiler, shared = ndk / NDK_PREBUILT / "bin" / "clang++", ndk / NDK_PREBUILT / NDK_RUNTIME
    if not compiler.exists():
        prebuilt = ndk / NDK_PREBUILT
        others = sorted(path.name for path in prebuilt.parent.glob("*") if path.name != prebuilt.name)
        return f"has no {compiler.relative_to(ndk)}" + (f", but {', '.join(others)}" if others else "")
    toolchain = ndk / NDK_TOOLCHAIN
    if not toolchain.is_file() or toolchain.stat().st_size == 0:
        return f"has no {NDK_TOOLCHAIN}, or an empty one, by which CMake builds for Android"
    version, silence = _answer([str(compiler), "--version"], dict(os.environ), seconds)
    if not version:
        return f"{compiler.relative_to(ndk)} does not run here: {silence}"
    library = read(shared, "")
    if library.elf is None:
        return f"{shared.relative_to(ndk)}: {library.unreadable}"
    if library.elf.machine != AARCH64:
        return f"{shared.relative_to(ndk)}: it is for {library.elf.machine_name}"
    return ""


def stated_versions(component: str, root: Path) -> dict[str, str]:
    """The versions that a component's own files and the name of its directory state."""
    stated: dict[str, str] = {}
    with contextlib.suppress(OSError):
        identity = identity_of(component, root)
        if identity.version:
            stated[KINDS[component].metadata] = identity.version
        if identity.build_id:
            stated[f"{KINDS[component].metadata} build_id"] = identity.build_id
    if component == ANDROID_NDK and (revision := _of_ndk_header(root)):
        stated[NDK_HEADER] = revision
    if not KINDS[component].named_by_version:
        return stated
    if re.fullmatch(r"v?\d+(?:\.\d+){2,}", root.resolve().name):
        stated["directory"] = root.resolve().name.removeprefix("v")
    return stated


def loading_of(libraries: Iterable[Library], variables: Mapping[str, str]) -> dict[Path, Loading]:
    host = {library.path: library.elf for library in libraries if library.elf and library.system == "host"}
    return load_all(host, variables.get("LD_LIBRARY_PATH", ""))


def _host(variables: Mapping[str, str], packages: Collection[str], seconds: float) -> Host:
    libc, glibc = platform.libc_ver()
    if hasattr(os, "confstr") and "CS_GNU_LIBC_VERSION" in os.confstr_names:
        libc, _, glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    release = _os_release()
    return Host(
        system=platform.system(),
        machine=platform.machine(),
        distribution=f"{release.get('ID', '')} {release.get('VERSION_ID', '')}".strip(),
        python=platform.python_version(),
        glibc=glibc if libc == "glibc" else "",
        tools={name: tool for name in _TOOLS if (tool := _tool(name, variables, seconds)) is not None},
        packages=_packages(packages, variables.get("PYTHONPATH", "")),
        environment=sys.prefix if Path(sys.prefix, STAMP).is_file() else "",
    )


def _packages(names: Collection[str], python_path: str) -> dict[str, str]:
    """The versions that stages find, which have the overlay of build_x86 first."""
    search = [*filter(None, python_path.split(os.pathsep)), *sys.path]
    found = {name: importlib.metadata.Distribution.discover(name=name, path=search) for name in names}
    return {name: first.version for name, all_ in found.items() if (first := next(iter(all_), None))}


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _tool(name: str, variables: Mapping[str, str], seconds: float) -> Tool | None:
    """The program that PATH finds. The interpreter's own directory comes first, as in its environment."""
    search = os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", os.defpath)])
    path = shutil.which(name, path=search)
    return Tool(path, *_answer([path, *_TOOLS[name]], variables, seconds)) if path else None


def _answer(command: Sequence[str], variables: Mapping[str, str], seconds: float) -> tuple[str, str]:
    """(the version that a program prints, else why it printed none)"""
    try:
        done = captured(command, timeout=seconds, env=dict(variables))
    except subprocess.TimeoutExpired:
        return "", f"it gave no answer within {seconds:g} s"
    except OSError as error:
        return "", error.strerror or str(error)
    number = _NUMBER.search(done.stdout)
    if done.returncode or number is None:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return "", f"it ended with exit code {done.returncode}" + (f": {words[-1][:200]}" if words else "")
    return number[0], ""
