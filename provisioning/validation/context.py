"""Everything that rules look at, gathered before any of them runs."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from provisioning.base.commands import Fix, quoted
from provisioning.base.settings import WINDOWS
from provisioning.build_id import is_piece_of
from provisioning.elf import HEXAGON, X86_64, Elf
from provisioning.loader_search import SystemLibraries
from provisioning.pe import Pe
from provisioning.validation import tables

if TYPE_CHECKING:
    from provisioning.manifest import Profile, Soc
    from provisioning.validation.probe import Answer
    from provisioning.validation.tables import Pair


class Need(enum.Enum):
    """What rules look at beside variables and names. Only what the chosen rules need is gathered."""

    LIBRARIES = "libraries"
    HOST = "host"
    """The system, this Python and its packages."""
    TOOLS = "tools"
    """Programs on PATH, and their versions."""
    COMPILER = "compiler"


@dataclass(frozen=True, slots=True)
class Library:
    """One shared library of a tree. `elf` is None when it cannot be read as ELF; `unreadable` says why."""

    path: Path
    place: str
    """Relative to the tree: `lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so`."""
    elf: Elf | None
    unreadable: str = ""
    build_ids: tuple[str, ...] = ()
    build_pieces: tuple[str, ...] = ()
    """What it says of its build where it holds no id."""
    pe: Pe | None = None
    """The facts of a Windows library, which is no ELF."""
    fix: str = ""
    """What makes it readable, where the rule's fix does not."""

    @property
    def name(self) -> str:
        return self.path.name

    def of_another_build(self, build_id: str) -> list[str]:
        """What it says of its build that contradicts this id, which may lack its end."""
        return [held for held in self.build_ids if not held.startswith(build_id)] or [
            piece for piece in self.build_pieces if not is_piece_of(piece, build_id)
        ]

    @property
    def own_name(self) -> str:
        """The SONAME, or the name in a DLL's exports; empty if it has none."""
        return self.elf.soname if self.elf else self.pe.own_name if self.pe else ""

    @property
    def directory(self) -> str:
        """The SDK's directory under lib/, `hexagon-v75`, wherever the tree begins; else empty."""
        folders = self.path.parent.parts
        below = [name for above, name in pairwise(folders) if above == "lib"]
        return next((name for name in reversed(below) if tables.libraries().directory(name)), "")

    @property
    def system(self) -> tables.System | None:
        """The operating system that loads it: by its directory, else by the file's own headers."""
        described = tables.libraries().directory(self.directory)
        if described is not None:
            return described[0].system
        if self.pe is not None:
            return "aarch64-windows"
        if self.elf is None:
            return None
        if self.elf.machine == X86_64:
            return "host"
        if self.elf.machine == HEXAGON:
            return "hexagon"
        bionic = self.elf.android_api is not None or "libc.so" in self.elf.needed
        return "aarch64-android" if bionic else "aarch64-linux"


@dataclass(frozen=True, slots=True)
class ComponentTree:
    """A component's place, and what its own files say about it."""

    path: Path
    origin: str
    """`store`, `directory` (the user's own) or `tree` (named by --tree)."""
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
    libraries: tuple[Library, ...] = ()
    host: Host | None = None
    system_libraries: SystemLibraries = field(default_factory=SystemLibraries)
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

    def of_system(self, system: tables.System) -> Iterable[tuple[Library, Elf]]:
        return ((library, elf) for library, elf in self.readable if library.system == system)

    def in_directory(self, directory: str) -> dict[str, Library]:
        """Name → library, for one directory under lib/ and what is below it."""
        return {library.name: library for library in self.libraries if library.directory == directory}


def same_path(one: str | Path, other: str | Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
