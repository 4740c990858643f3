"""Rules about single libraries: that each is what its place says, and that it can be loaded there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from provisioning import qnn_libraries
from provisioning.base.findings import Severity
from provisioning.base.rendering import plural
from provisioning.components import ANDROID_NDK, ndk_name
from provisioning.elf import HEXAGON, LOADER, Demands, Elf, Loading, Wrong, complaints
from provisioning.qnn_libraries import Library, System
from provisioning.validation import Check, CouldNotRun, NotApplicable, Problem, rule, validation_table
from provisioning.validation.context import Context


def _libraries(context: Context) -> tuple[tuple[Library, Elf], ...]:
    if not context.readable:
        raise NotApplicable("there is no readable library")
    return context.readable


RULES = {
    Wrong.MACHINE: "elf-machine",
    Wrong.PAGE_SIZE: "android-page-size",
    Wrong.RELOCATIONS: "text-relocations",
    Wrong.STACK: "executable-stack",
    Wrong.SEARCH_PATH: "absolute-rpath",
    # That rule compares with the host's own glibc, symbol by symbol.
    Wrong.GLIBC: "symbol-versions",
    Wrong.ANDROID_API: "android-api",
}
"""The rule for each kind of error."""


def _complaints(
    wrong: Wrong, library: Library, elf: Elf, demands: Demands | None = None, severity: Severity | None = None
) -> Iterator[Problem]:
    for what, message in complaints(elf, demands or Demands()):
        if what is wrong:
            yield Problem(library.place, message, severity=severity)


@rule("elf-readable")
def elf_readable(context: Context) -> Iterator[Problem]:
    if not context.libraries:
        raise NotApplicable("there is no library")
    for library in context.libraries:
        if library.elf is None and library.pe is None:
            yield Problem(library.place, library.unreadable, library.fix)
        elif library.elf is not None and library.elf.beyond_end:
            yield Problem(
                library.place,
                f"its section headers are outside the file: {library.elf.beyond_end}. Loaders do not need"
                " them, but a whole library has them",
                severity=Severity.WARNING,
            )


@rule("elf-machine")
def elf_machine(context: Context) -> Iterator[Problem]:
    for library, elf in _libraries(context):
        if elf.fixed:
            yield Problem(library.place, "is a program (ET_EXEC), which no loader takes for a library")
        described = qnn_libraries.table().directory(library.directory)
        if described is not None:
            demands = Demands(described[0].machine, described[0].bits)
            yield from _complaints(Wrong.MACHINE, library, elf, demands)
    yield from _of_another_system(context)


_FOREIGN_LIBC = {
    "aarch64-android": ("libc.so.6", "Linux"),
    "aarch64-linux": ("libc.so", "Android"),
    "host": ("libc.so", "Android"),
}
"""The C library of another system, by which its libraries are known, and that system."""


def _of_another_system(context: Context) -> Iterator[Problem]:
    """One problem for each folder with libraries of another system."""
    places: dict[tuple[str, str], list[str]] = {}
    for library, elf in context.readable:
        system = str(library.system)
        if system in _FOREIGN_LIBC and _FOREIGN_LIBC[system][0] in elf.needed:
            places.setdefault((library.directory, system), []).append(library.place)
    for (directory, system), (first, *others) in places.items():
        libc, other = _FOREIGN_LIBC[system]
        more = f", as {'is' if len(others) == 1 else 'are'} {plural(len(others), 'other')} in {directory}"
        message = f"is for {other}{more if others else ''}: it needs {libc}"
        yield Problem(first, message, also=tuple(others))


@rule("hexagon-arch")
def hexagon_arch(context: Context) -> Iterator[Problem]:
    hexagon = [(library, elf) for library, elf in _libraries(context) if elf.machine == HEXAGON]
    if not hexagon:
        raise NotApplicable("there is no Hexagon library")
    for library, elf in hexagon:
        if elf.arch is None:
            yield Problem(library.place, f"names no Hexagon arch in its header (e_flags {elf.flags:#x})")
            continue
        arches = _arches(library, elf)
        if len({arch for arch, _ in arches.values()}) > 1:
            by_name, by_directory = arches.get("name"), arches.get("directory")
            # A library without an arch in its name may be built for an older one: DSPs take those.
            older = by_name is None and by_directory is not None and elf.arch < by_directory[0]
            severity = Severity.NOTE if older else None
            yield Problem(library.place, ", ".join(text for _, text in arches.values()), severity=severity)


def _arches(library: Library, elf: Elf) -> dict[str, tuple[int, str]]:
    """The Hexagon archs that a library is said to be for, by who says it, each with words."""
    described = qnn_libraries.table().directory(library.directory)
    by_name = re.search(r"V(\d{2})(?!\d)", library.name)
    arches: dict[str, tuple[int, str]] = {}
    if described and described[1] is not None:
        arches["directory"] = described[1], f"is in {library.directory}"
    if by_name:
        arches["name"] = int(by_name[1]), f"its name says {by_name[0]}"
    if elf.arch is not None:
        arches["header"] = elf.arch, f"its header says v{elf.arch}"
    return arches


@rule("library-name")
def library_name(context: Context) -> Iterator[Problem]:
    named = [library for library in context.libraries if library.own_name]
    if not named:
        raise NotApplicable("no library names itself")
    # Of a library for another arch hexagon-arch tells the same.
    elsewhere = {
        library.place
        for library, elf in _libraries(context)
        if elf.machine == HEXAGON and len({arch for arch, _ in _arches(library, elf).values()}) > 1
    }
    for library in named:
        if library.place in elsewhere:
            continue
        other = qnn_libraries.table().other_name(
            library.name, library.own_name, of_qnn=bool(library.build_ids)
        )
        if other:
            yield Problem(
                library.place,
                f"calls itself {other}: it is another library, or was renamed",
                severity=_severity(library.name),
            )


def _loading(context: Context) -> Mapping[Path, Loading]:
    if not any(library.system == "host" for library, _ in _libraries(context)):
        raise NotApplicable("there is no library of the host")
    if not context.loading:
        raise CouldNotRun(f"{LOADER}, which loads them, is not there")
    return context.loading


@rule("needed-resolved")
def needed_resolved(context: Context) -> Iterator[Problem]:
    for system in ("aarch64-android", "aarch64-linux", "hexagon"):
        yield from _on_device(context, system)
    host = {library.path: (library, elf) for library, elf in _libraries(context) if library.system == "host"}
    library_path = context.variables.get("LD_LIBRARY_PATH", "") or "(not set)"
    told: set[tuple[str, str]] = set()
    for root, loading in (_loading(context) if host else {}).items():
        opened = [host[path] for path in host if path == root or path in loading.found]
        for name in loading.missing:
            # Of a library outside the tree, the one that loads it is told.
            needing = [library for library, elf in opened if name in elf.needed] or [host[root][0]]
            for library in needing:
                # Several libraries may load it.
                if (library.place, name) not in told:
                    told.add((library.place, name))
                    message = f"needs {name}, which the loader finds nowhere; LD_LIBRARY_PATH: {library_path}"
                    yield Problem(library.place, message, severity=_severity(library.name))
        if loading.failure:
            library = host[root][0]
            message = f"the loader does not take it: {loading.failure}"
            yield Problem(library.place, message, severity=_severity(library.name))


def _severity(name: str) -> Severity:
    """A warning for a library that no target requires: an SDK has many that nothing here loads."""
    return Severity.ERROR if qnn_libraries.table().requires(name) else Severity.WARNING


def _on_device(context: Context, system: System) -> Iterator[Problem]:
    provided = set(qnn_libraries.device_table().provides(system))
    beside: dict[Path, set[str]] = {}
    for library, elf in context.readable:
        beside.setdefault(library.path.parent, set()).update({library.name, elf.soname})
    for library, elf in context.of_system(system):
        for name in elf.needed:
            if name not in provided and name not in beside[library.path.parent]:
                yield Problem(
                    library.place,
                    f"needs {name}, which is neither beside it nor among what {system} itself provides",
                    "put the library beside it, or name it in manifests/device_libraries.toml if the device"
                    " has it",
                    _severity(library.name),
                )


@rule("symbol-versions")
def symbol_versions(context: Context) -> Iterator[Problem]:
    lacking: dict[tuple[Path, Path], set[str]] = {}
    for loading in _loading(context).values():
        for row in loading.versions:
            lacking.setdefault((row.library, row.provider), set()).add(row.version)
    places = {library.path: library.place for library in context.libraries}
    for (path, provider), versions in lacking.items():
        yield Problem(
            places.get(path, str(path)),
            f"needs {', '.join(sorted(versions))} of {provider}, which does not define it",
            severity=_severity(path.name),
        )


@rule("android-page-size")
def android_page_size(context: Context) -> Iterator[Problem]:
    android = list(context.of_system("aarch64-android"))
    if not android:
        raise NotApplicable("there is no Android library")
    table = validation_table().android
    severity = Severity(table.page_size_severity)
    for library, elf in android:
        yield from _complaints(Wrong.PAGE_SIZE, library, elf, Demands(page_size=table.page_size), severity)


@rule("android-api")
def android_api(context: Context) -> Iterator[Problem]:
    noted = [pair for pair in context.of_system("aarch64-android") if pair[1].android_api is not None]
    if not noted:
        raise NotApplicable("no library holds an Android note")
    demands = Demands(android_api=validation_table().android.api)
    for library, elf in noted:
        yield from _complaints(Wrong.ANDROID_API, library, elf, demands)


@rule("android-ndk")
def android_ndk(context: Context) -> Iterator[Problem]:
    pin = context.profile.components.get(ANDROID_NDK)
    noted: dict[tuple[str, str], list[str]] = {}
    for library, elf in context.of_system("aarch64-android"):
        if elf.ndk is not None:
            noted.setdefault(elf.ndk, []).append(library.place)
    if pin is None:
        raise NotApplicable(f"profile {context.profile.name} pins no NDK")
    if not noted:
        raise NotApplicable("no library names its NDK")
    # Both numberings end in the build number: 26.2.11394342 is r26c (11394342).
    pinned = pin.version.rpartition(".")[2]
    for (release, build), places in noted.items():
        if build != pinned:
            others = {1: "", 2: f", as is {places[-1]}"}.get(
                len(places), f", as are {len(places) - 1} others"
            )
            yield Problem(
                places[0],
                f"is built by NDK {release} ({build}){others}; profile {context.profile.name} pins"
                f" {ndk_name(pin.version)}",
            )


def _needs_no_demand(wrong: Wrong) -> Check:
    def check(context: Context) -> Iterator[Problem]:
        for library, elf in _libraries(context):
            yield from _complaints(wrong, library, elf)

    return check


for wrong in (Wrong.RELOCATIONS, Wrong.STACK, Wrong.SEARCH_PATH):
    rule(RULES[wrong])(_needs_no_demand(wrong))
