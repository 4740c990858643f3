"""Everything that rules look at, gathered before any of them runs."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from provisioning.base.commands import Fix, quoted
from provisioning.base.settings import WINDOWS
from provisioning.elf import Elf
from provisioning.loader_search import SystemLibraries
from provisioning.qnn_libraries import Library, System

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

    def of_system(self, system: System) -> Iterable[tuple[Library, Elf]]:
        return ((library, elf) for library, elf in self.readable if library.system == system)

    def in_directory(self, directory: str) -> dict[str, Library]:
        """Name → library, for one directory under lib/ and what is below it."""
        return {library.name: library for library in self.libraries if library.directory == directory}


def same_path(one: str | Path, other: str | Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
