"""Everything that the rules of `validate` look at, gathered before any of them runs: nothing else touches the
machine.

`gather` returns a `Context` for each set of trees: the trees and what their own files say, the libraries in
them, this machine, and the compiler's answer for each chip."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath

from provisioning.base.rendering import plural
from provisioning.base.settings import DEFAULT_TARGET, TARGETS, WINDOWS, Selection
from provisioning.components import (
    ANDROID_NDK,
    ELFSIGNER,
    HEXAGON_SDK,
    KINDS,
    QNN_SDK,
    identity_of,
    metadata_text,
)
from provisioning.elf import Elf, Loading, load_all
from provisioning.elf_damage import damaged_name, hole_in_code
from provisioning.environment import Environment, resolve
from provisioning.executorch import PROFILES_WHEEL, Executorch
from provisioning.manifest import Component, Profile, Soc, load_profile, soc_named
from provisioning.qnn_libraries import Library, System, libraries_in, table
from provisioning.stage_variables import HOST_LIBRARIES, Note, Root
from provisioning.store.inventory import differences_by_content, files_of_release, is_composed, walk
from provisioning.store.own_trees import changed_content
from provisioning.validation.compiler_probe import Answer, ask
from provisioning.validation.ndk import why_unusable


@dataclass(frozen=True, slots=True)
class ComponentTree:
    """A component's place, and what its own files say about it."""

    path: Path
    origin: str
    """`store`, or `directory` (the user's own)."""
    variable: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Version by what states it: `sdk.yaml`, `directory`, `source.properties`."""
    unusable: str = ""
    """Why an NDK cannot build, or a Hexagon SDK cannot sign."""
    change: str = ""
    """What became of the user's own one since its first use."""
    is_composed: bool = False
    """Whether we made this SDK of wheels, which have libraries and no headers."""
    open_to_others: tuple[str, ...] = ()
    """Files that other users can change."""
    differs_from_official: tuple[str, ...] | None = None
    """How the user's own one differs from the recorded files of its release, or of the wheels that it was
    composed of; None if none are recorded."""

    @property
    def label(self) -> str:
        """The tree as the user knows it."""
        return f"{self.path} ({self.variable})" if self.origin == "directory" else str(self.path)


@dataclass(frozen=True, slots=True)
class Host:
    system: str
    machine: str
    glibc: str
    """The version of glibc; empty on a system with another C library."""
    compiler: str
    """The C++ compiler that builds take; empty without one."""
    packages: Mapping[str, str]
    """Python packages of this interpreter."""
    modules: frozenset[str] = frozenset()
    """Names by which modules of the standard library and of installed packages are imported."""
    regular_packages: frozenset[str] = frozenset()
    """The packages among them with an `__init__.py`, of the standard library or with their distribution's
    name: Python imports no folder without that file instead of one."""


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
    damages: Mapping[str, str] = field(default_factory=dict)
    """What shows that a library was changed, by its place, where no hash of its bytes proves it."""
    loading: Mapping[Path, Loading] = field(default_factory=dict)
    """What the loader says of the host's libraries, of those that it was asked to open."""
    answers: Mapping[str, Answer] = field(default_factory=dict)
    """The compiler's answer for each SoC."""
    every_target: bool = False
    """`--target all`: a target that the profile cannot have is no mistake then."""
    notes: tuple[Note, ...] = ()
    """What stages correct or leave out of the user's variables."""
    executorch: Executorch = PROFILES_WHEEL
    """The one that stages run."""

    @property
    def pipe(self) -> str:
        """The place of a named pipe among the host's libraries; empty if there is none."""
        return _pipe_in(self.libraries)

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

    def libraries_of_system(self, system: System) -> Iterable[tuple[Library, Elf]]:
        return ((library, elf) for library, elf in self.readable if library.system == system)

    def libraries_in_directory(self, directory: str) -> dict[str, Library]:
        """Return the libraries in one directory under lib/ and what is below it, by name."""
        return {library.name: library for library in self.libraries if library.directory == directory}


Resolve = Callable[[Selection, Mapping[str, str]], Environment]


_resolve = partial(resolve, refuses_changed=False)
"""The rule store-tree reports a changed tree."""


def gather(
    selection: Selection,
    environ: Mapping[str, str],
    *,
    asks_compiler: bool = True,
    resolve: Resolve = _resolve,
) -> list[Context]:
    """Resolve the environments and read what rules need.

    Every target is judged against its own trees: there is a context for each set of trees. The compiler takes
    longer than all else.
    """
    profile = load_profile(selection.profile)
    socs = {name: soc_named(name) for name in selection.socs}
    groups: dict[frozenset[tuple[str, Path]], dict[str, Environment]] = {}
    for target in selection.targets:
        environment = resolve(replace(selection, target=target), environ)
        roots = frozenset((name, root.path) for name, root in environment.roots.items())
        groups.setdefault(roots, {})[target] = environment
    contexts = []
    for environments in groups.values():
        first, *_ = environments.values()
        trees = {name: _tree_of(name, root, profile, selection.store) for name, root in first.roots.items()}
        variables, sdk = first.merged(environ), first.roots.get(QNN_SDK)
        libraries = libraries_in(sdk.path) if sdk else []
        # An SDK that was provisioned for devices only lowers no models.
        lowers = DEFAULT_TARGET in environments or (sdk and (sdk.path / "lib" / HOST_LIBRARIES).is_dir())
        asks = asks_compiler and lowers and not _pipe_in(libraries)
        contexts.append(
            Context(
                profile=profile,
                targets=tuple(environments),
                socs=socs,
                trees=trees,
                environ=environ,
                variables=variables,
                libraries=tuple(libraries),
                damages=_damages(libraries, trees.get(QNN_SDK)),
                host=_host(variables, profile.packages),
                loading=loading_of(libraries, variables),
                answers={soc: ask(soc, variables) for soc in socs if asks},
                every_target=set(TARGETS) <= set(selection.targets),
                notes=tuple(
                    dict.fromkeys(note for environment in environments.values() for note in environment.notes)
                ),
                executorch=first.executorch,
            )
        )
    return contexts


def _tree_of(name: str, root: Root, profile: Profile, store: Path) -> ComponentTree:
    tree = read_tree(name, root.path, root.origin, root.variable, profile.pins.get(name))
    is_proved = root.origin != "directory" or tree.differs_from_official is not None
    change = root.change or ("" if is_proved else str(changed_content(store, root.path) or ""))
    return replace(tree, change=change)


def _damages(libraries: Iterable[Library], sdk: ComponentTree | None) -> dict[str, str]:
    """Say what shows that a library of QNN was changed, by its place, where no hash proves its bytes."""
    if sdk is None or sdk.origin != "directory" or sdk.differs_from_official is not None:
        return {}
    own = [library for library in libraries if library.elf and re.fullmatch(table().own, library.name)]
    damages = {library.place: _damage(library.path) for library in own}
    return {place: f"is damaged: {words}" for place, words in damages.items() if words}


def _damage(library: Path) -> str:
    name = damaged_name(library)
    if name is not None:
        return f"the name of a symbol or version does not fit its hash: {name[:100]!r}"
    return hole_in_code(library)


def read_tree(
    component: str, path: Path, origin: str, variable: str = "", pin: Component | None = None
) -> ComponentTree:
    unusable = why_unusable(path) if component == ANDROID_NDK else ""
    if component == HEXAGON_SDK and not metadata_text(path / ELFSIGNER).strip():
        unusable = f"has no {ELFSIGNER}, or an empty one: it cannot sign libraries"
    versions = stated_versions(component, path)
    is_own = origin == "directory"
    files = files_of_release(component, path, versions.values(), pin) if is_own else None
    return ComponentTree(
        path,
        origin,
        variable,
        versions,
        unusable,
        is_composed=component == QNN_SDK and is_composed(path),
        open_to_others=tuple(_open_to_others(path)),
        differs_from_official=None if files is None else tuple(map(str, differences_by_content(path, files))),
    )


def _open_to_others(root: Path) -> Iterator[str]:
    """Files of a tree, and its own folder, that every user can change, and those of users other than root and
    us."""
    writable: list[str] = []
    by_owner: dict[int, list[str]] = {}
    for path in (".", *(path for path, _ in walk(root))):
        try:
            status = (root / path).lstat()
        except OSError:
            continue
        if status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode):
            writable.append(path)
        if status.st_uid not in (0, os.getuid()):
            by_owner.setdefault(status.st_uid, []).append(path)
    if writable:
        yield f"every user of this machine can change {_first_of(writable)}"
    for owner, paths in by_owner.items():
        yield f"user {owner} can change {_first_of(paths)}"


def _first_of(paths: Sequence[str]) -> str:
    more = f" and {plural(len(paths) - 1, 'more file')}" if len(paths) > 1 else ""
    return f"{min(paths)}{more}"


def stated_versions(component: str, root: Path) -> dict[str, str]:
    """The versions that a component's own files and the name of its directory state."""
    versions: dict[str, str] = {}
    with contextlib.suppress(OSError):
        identity = identity_of(component, root)
        if identity.version:
            versions[KINDS[component].metadata] = identity.version
        if identity.build_id:
            versions[f"{KINDS[component].metadata} build_id"] = identity.build_id
    if not KINDS[component].named_by_version:
        return versions
    if re.fullmatch(r"v?\d+(?:\.\d+){2,}", root.resolve().name):
        versions["directory"] = root.resolve().name.removeprefix("v")
    return versions


def _pipe_in(libraries: Iterable[Library]) -> str:
    pipes = (library.place for library in libraries if library.is_pipe and library.system == "host")
    return next(pipes, "")


def loading_of(libraries: Sequence[Library], variables: Mapping[str, str]) -> dict[Path, Loading]:
    if _pipe_in(libraries):
        return {}
    host = {library.path: library.elf for library in libraries if library.elf and library.system == "host"}
    return load_all(host, variables.get("LD_LIBRARY_PATH", ""))


def _host(variables: Mapping[str, str], packages: Collection[str]) -> Host:
    libc, glibc = platform.libc_ver()
    compilers = [variables["CXX"]] if variables.get("CXX") else ["g++", "clang++"]
    python_path = variables.get("PYTHONPATH", "")
    return Host(
        system=platform.system(),
        machine=platform.machine(),
        glibc=glibc if libc == "glibc" else "",
        compiler=next((name for name in compilers if shutil.which(name, path=variables.get("PATH"))), ""),
        packages=_packages(packages, python_path),
        # Without a PYTHONPATH nobody asks.
        modules=_importable_modules() if python_path else frozenset(),
        regular_packages=_regular_packages(python_path) if python_path else frozenset(),
    )


def _importable_modules() -> frozenset[str]:
    return frozenset({*sys.stdlib_module_names, *importlib.metadata.packages_distributions()})


def _regular_packages(python_path: str) -> frozenset[str]:
    folders = [Path(path) for path in sys.path if path not in python_path.split(os.pathsep)]
    # Nothing of ours or of the lock's imports Python's own tests, and many projects have a folder test/.
    names = {*sys.stdlib_module_names} - {"test"}
    for name, distributions in importlib.metadata.packages_distributions().items():
        if any(name.lower() == text.lower().replace("-", "_") for text in distributions):
            names.add(name)
    return frozenset(name for name in names if _is_regular(name, folders))


def _is_regular(name: str, folders: Sequence[Path]) -> bool:
    return any((folder / name / "__init__.py").is_file() for folder in folders)


def _packages(names: Collection[str], python_path: str) -> dict[str, str]:
    """The versions that stages find, which have the overlay of build_x86 first."""
    search = [*filter(None, python_path.split(os.pathsep)), *sys.path]
    distributions = {name: importlib.metadata.Distribution.discover(name=name, path=search) for name in names}
    return {name: first.version for name, all_ in distributions.items() if (first := next(iter(all_), None))}
