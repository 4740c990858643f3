"""Rules about libraries: which an SDK must hold, that they are of one build, that each is what its place says
and can be loaded there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from provisioning import qnn_libraries
from provisioning.base.commands import Fix, session
from provisioning.base.findings import Severity
from provisioning.base.rendering import plural
from provisioning.base.settings import WINDOWS, profile_names
from provisioning.components import QNN_SDK
from provisioning.elf import HEXAGON, LOADER, Demands, Elf, Loading, Wrong, complaints, version_key
from provisioning.manifest import Profile, Soc, load_profile, load_socs
from provisioning.qnn_libraries import ARM64, Library, System, TargetLibraries
from provisioning.validation import Check, CouldNotRun, NotApplicable, Problem, rule, validation_table
from provisioning.validation.context import ComponentTree, Context
from provisioning.validation.versions import build_of, find_other_builds, holders_of_build_ids, tree_of


def _directory(context: Context, table: TargetLibraries) -> str | None:
    """The first of the target's directories that the SDK has."""
    return next((name for name in table.directories if context.libraries_in_directory(name)), None)


def _target_tables(context: Context) -> Mapping[str, TargetLibraries]:
    table: Mapping[str, TargetLibraries] = {str(k): v for k, v in qnn_libraries.table().targets.items()}
    return {target: table[target] for target in context.targets if target in table}


def _provision(context: Context, tree: ComponentTree, *flags: str) -> str:
    """The command that brings a library; it does not touch the user's own SDK, which therefore makes way."""
    command = session("provision", *flags)
    return Fix("unset {}; {}", tree.variable, command) if tree.origin == "directory" else command


@rule("required-libraries")
def required_libraries(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, QNN_SDK)
    if not any(tree.path.glob("include/QNN/*.h")) and not tree.is_composed:
        yield Problem(
            tree.label,
            "has no include/QNN, the headers that every build needs",
            _provision(context, tree),
        )
    for target, table in _target_tables(context).items():
        directory = _directory(context, table)
        fix = _provision(context, tree, "--target", target)
        if directory is None:
            if any(context.unreadable(f"lib/{name}") for name in table.directories):
                continue
            why = context.profile.why_lacking(target)
            if why:
                choices = " or ".join(n for n in profile_names() if _official(load_profile(n)))
                fix = f"use an official SDK, which has all targets: --profile {choices}"
            message = f"has no lib/{' or lib/'.join(table.directories)}, which {target} needs"
            # Of all targets it is the profile's choice to lack one, of a named one the user's mistake.
            severity = Severity.NOTE if why and context.every_target else None
            yield Problem(tree.label, f"{message}: {why}" if why else message, fix, severity)
            continue
        files = context.libraries_in_directory(directory)
        for names in table.libraries:
            if not any(name in files or context.unreadable(f"lib/{directory}/{name}") for name in names):
                message = f"lacks {' or '.join(names)}, which {target} needs"
                places = tuple(f"lib/{directory}/{name}" for name in names)
                yield Problem(f"lib/{directory}", message, fix, also=places)


@rule("soc-libraries")
def soc_libraries(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, QNN_SDK)
    devices = {target: table for target, table in _target_tables(context).items() if table.skels}
    if not devices:
        raise NotApplicable("only device targets need stubs and skels")
    places = {library.place for library in context.libraries}
    for target, table in devices.items():
        directory, chips = _directory(context, table), context.socs_of(target)
        if not chips and not context.every_target:
            windows = sorted(name for name, soc in load_socs().items() if soc.windows)
            yield Problem(
                ", ".join(context.socs),
                f"Windows does not run on it: {target} needs a chip of Windows on Snapdragon",
                f"--soc with one of {', '.join(windows)}",
            )
        for name, soc in chips.items():
            # required-libraries reports a missing directory.
            templates = [f"lib/{directory}/{library}" for library in table.soc_libraries if directory]
            templates += [f"lib/{skel}" for skel in table.skels]
            for template in templates:
                place = template.format(arch=soc.arch)
                if place not in places and not context.unreadable(place):
                    yield Problem(
                        place,
                        f"is not there, {name} (v{soc.arch}) needs it on {target}",
                        _provision(context, tree, "--target", target, "--soc", name),
                    )


@rule("lpai-libraries")
def lpai_libraries(context: Context) -> Iterator[Problem]:
    tree_of(context, QNN_SDK)
    devices = {
        # LPAI's libraries were seen for Android and Linux only.
        target: table
        for target, table in _target_tables(context).items()
        if table.skels and target != WINDOWS
    }
    socs = {name: soc for name, soc in context.socs.items() if soc.lpai is not None}
    if not devices or not socs:
        raise NotApplicable("no chosen chip has an LPAI, or no device target is chosen")
    if not any(_carries_lpai(context, soc) for soc in socs.values()):
        raise NotApplicable(f"the QNN of profile {context.profile.name} carries no LPAI")
    places = {library.place for library in context.libraries}
    for target, table in devices.items():
        directory = _directory(context, table) or table.directories[0]
        for name, soc in socs.items():
            if not _carries_lpai(context, soc):
                continue
            lpai = qnn_libraries.table().lpai[str(soc.lpai)]
            for place in (
                *(f"lib/{directory}/{library}" for library in lpai.libraries),
                *(f"lib/{skel}" for skel in lpai.skels),
            ):
                if place not in places and not context.unreadable(place):
                    yield Problem(place, f"is not there, the LPAI v{soc.lpai} of {name} needs it on {target}")


def _carries_lpai(context: Context, soc: Soc) -> bool:
    if str(soc.lpai) not in qnn_libraries.table().lpai:
        return False
    if any(library.directory.startswith("lpai-v") for library in context.libraries):
        return True
    return _brings_lpai(context.profile, soc.lpai)


def _brings_lpai(profile: Profile, version: int | None) -> bool:
    """Whether the profile's SDK is an official one that has the libraries of this LPAI version."""
    lpai, pin = qnn_libraries.table().lpai.get(str(version)), profile.components.get(QNN_SDK)
    if lpai is None or pin is None:
        return False
    return _official(profile) and version_key(pin.version) >= version_key(lpai.since)


def profiles_with_lpai(version: int | None) -> list[str]:
    return [name for name in profile_names() if _brings_lpai(load_profile(name), version)]


def _official(profile: Profile) -> bool:
    return all(part.source.type == "archive" for part in profile.components[QNN_SDK].parts)


@rule("one-build-id")
def one_build_id(context: Context) -> Iterator[Problem]:
    holders = holders_of_build_ids(context)
    common = build_of(holders)
    number = sum(common in library.build_ids for library in holders)
    for place, builds in find_other_builds(context, common).items():
        message = f"is of build {', '.join(builds)}, {number} other libraries are of {common}"
        yield Problem(place, message, also=builds)


@rule("pe-machine")
def pe_machine(context: Context) -> Iterator[Problem]:
    windows = [(library, library.pe) for library in context.libraries if library.pe is not None]
    if not windows:
        raise NotApplicable("there is no Windows library")
    for library, pe in windows:
        if pe.machine != ARM64:
            yield Problem(library.place, f"expected Arm64, found {pe.machine_name}")


# Single libraries: that each is what its place says, and that it can be loaded there


def _readable(context: Context) -> tuple[tuple[Library, Elf], ...]:
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
    wrong: Wrong, library: Library, elf: Elf, demands: Demands | None = None
) -> Iterator[Problem]:
    for kind, message in complaints(elf, demands or Demands()):
        if kind is wrong:
            yield Problem(library.place, message)


@rule("elf-readable")
def elf_readable(context: Context) -> Iterator[Problem]:
    if not context.libraries:
        raise NotApplicable("there is no library")
    for library in context.libraries:
        if library.elf is None and library.pe is None:
            yield Problem(library.place, library.unreadable, library.fix)
        elif library.place in context.damages:
            yield Problem(library.place, context.damages[library.place])
        elif library.elf is not None and library.elf.beyond_end:
            yield Problem(
                library.place,
                f"is cut short: its sections are outside the file, {library.elf.beyond_end}",
            )


@rule("elf-machine")
def elf_machine(context: Context) -> Iterator[Problem]:
    for library, elf in _readable(context):
        if elf.fixed:
            yield Problem(library.place, "is a program (ET_EXEC), which no loader takes for a library")
        row = qnn_libraries.table().directory(library.directory)
        if row is not None:
            demands = Demands(row[0].machine, row[0].bits)
            yield from _complaints(Wrong.MACHINE, library, elf, demands)
    yield from _find_foreign_libraries(context)


_FOREIGN_LIBC = {
    "aarch64-android": ("libc.so.6", "Linux"),
    "aarch64-linux": ("libc.so", "Android"),
    "host": ("libc.so", "Android"),
}
"""The C library of another system, by which its libraries are known, and that system."""


def _find_foreign_libraries(context: Context) -> Iterator[Problem]:
    """One problem for each folder with libraries of another system."""
    places: dict[tuple[str, str], list[str]] = {}
    for library, elf in context.readable:
        system = str(library.system)
        if system in _FOREIGN_LIBC and _FOREIGN_LIBC[system][0] in elf.needed:
            places.setdefault((library.directory, system), []).append(library.place)
    for (directory, system), (first, *rest) in places.items():
        libc, foreign = _FOREIGN_LIBC[system]
        more = f", as {'is' if len(rest) == 1 else 'are'} {plural(len(rest), 'other')} in {directory}"
        message = f"is for {foreign}{more if rest else ''}: it needs {libc}"
        yield Problem(first, message, also=tuple(rest))


_OF_SYSTEM = re.compile(
    r"(?:ld-linux[\w-]*|libc|libm|libdl|libpthread|librt|libresolv|libutil|libgcc_s|libstdc\+\+)\.so(?:\.\d+)*"
)


@rule("system-library")
def system_library(context: Context) -> Iterator[Problem]:
    host = [library for library, _ in _readable(context) if library.system == "host"]
    if not host:
        raise NotApplicable("there is no library of the host")
    for library in host:
        if _OF_SYSTEM.fullmatch(library.name):
            yield Problem(
                library.place, "is a library of a system, and would be loaded instead of this machine's"
            )


@rule("hexagon-arch")
def hexagon_arch(context: Context) -> Iterator[Problem]:
    hexagon = [(library, elf) for library, elf in _readable(context) if elf.machine == HEXAGON]
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
    row = qnn_libraries.table().directory(library.directory)
    by_name = re.search(r"V(\d{2})(?!\d)", library.name)
    arches: dict[str, tuple[int, str]] = {}
    if row and row[1] is not None:
        arches["directory"] = row[1], f"is in {library.directory}"
    if by_name:
        arches["name"] = int(by_name[1]), f"its name says {by_name[0]}"
    if elf.arch is not None:
        arches["header"] = elf.arch, f"its header says v{elf.arch}"
    return arches


@rule("library-name")
def library_name(context: Context) -> Iterator[Problem]:
    libraries = [library for library in context.libraries if library.own_name]
    if not libraries:
        raise NotApplicable("no library names itself")
    for library, elf in _readable(context):
        if not elf.soname and re.fullmatch(qnn_libraries.table().own, library.name):
            yield Problem(library.place, "has no name of its own (SONAME), as each of QNN's libraries has")
    # Of a library for another arch hexagon-arch tells the same.
    elsewhere = set()
    for library, elf in _readable(context):
        arches = {arch for arch, _ in _arches(library, elf).values()}
        if elf.machine == HEXAGON and len(arches) > 1:
            elsewhere.add(library.place)
    for library in libraries:
        if library.place in elsewhere:
            continue
        true_name = qnn_libraries.table().other_name(
            library.name, library.own_name, of_qnn=bool(library.build_ids)
        )
        if true_name:
            yield Problem(
                library.place,
                f"calls itself {true_name}: it is another library, or was renamed",
                severity=_severity(library.name),
            )


def _loading(context: Context) -> Mapping[Path, Loading]:
    if not any(library.system == "host" for library, _ in _readable(context)):
        raise NotApplicable("there is no library of the host")
    if context.pipe:
        raise NotApplicable(f"the loader would wait without end for {context.pipe}")
    if not context.loading:
        raise CouldNotRun(f"{LOADER}, which loads them, is not there")
    return context.loading


@rule("needed-resolved")
def needed_resolved(context: Context) -> Iterator[Problem]:
    for system in ("aarch64-android", "aarch64-linux", "hexagon"):
        yield from _find_device_gaps(context, system)
    host = {library.path: (library, elf) for library, elf in _readable(context) if library.system == "host"}
    library_path = context.variables.get("LD_LIBRARY_PATH", "") or "(not set)"
    users: dict[str, dict[str, Library]] = {}
    for root, loading in (_loading(context) if host else {}).items():
        pairs = [host[path] for path in host if path == root or path in loading.files]
        for name in loading.gaps:
            # Of a library outside the tree, the one that loads it is told. Several libraries may load it.
            of_name = [library for library, elf in pairs if name in elf.needed] or [host[root][0]]
            users.setdefault(name, {}).update({library.place: library for library in of_name})
        if loading.failure:
            library = host[root][0]
            message = f"the loader does not take it: {loading.failure}"
            yield Problem(library.place, message, severity=_severity(library.name))
    searched = f"; LD_LIBRARY_PATH: {library_path}"
    for name, libraries in users.items():
        yield _lack_of(name, libraries.values(), "the loader finds nowhere", searched)


def _lack_of(name: str, users: Iterable[Library], where: str, more: str = "", fix: str = "") -> Problem:
    """One problem for all libraries that need the missing one; a required library comes first."""
    first, *rest = sorted(users, key=lambda library: _severity(library.name) is not Severity.ERROR)
    verb = "needs" if len(rest) == 1 else "need"
    number = f"; {plural(len(rest), 'other')} {verb} it too" if rest else ""
    return Problem(
        first.place,
        f"needs {name}, which {where}{number}{more}",
        fix,
        _severity(first.name),
        tuple(library.place for library in rest),
    )


def _severity(name: str) -> Severity:
    """A warning for a library that no target requires: an SDK has many that nothing here loads."""
    return Severity.ERROR if qnn_libraries.table().requires(name) else Severity.WARNING


def _find_device_gaps(context: Context, system: System) -> Iterator[Problem]:
    system_names = set(qnn_libraries.device_table().provides(system))
    names_by_folder: dict[Path, set[str]] = {}
    for library, elf in context.readable:
        names_by_folder.setdefault(library.path.parent, set()).update({library.name, elf.soname})
    users: dict[str, list[Library]] = {}
    for library, elf in context.libraries_of_system(system):
        for name in elf.needed:
            if name not in system_names and name not in names_by_folder[library.path.parent]:
                users.setdefault(name, []).append(library)
    fix = "put the library beside it, or name it in manifests/device_libraries.toml if the device has it"
    where = f"is neither beside it nor among what {system} itself provides"
    for name, libraries in users.items():
        yield _lack_of(name, libraries, where, fix=fix)


@rule("symbol-versions")
def symbol_versions(context: Context) -> Iterator[Problem]:
    gaps: dict[tuple[Path, Path], set[str]] = {}
    for loading in _loading(context).values():
        for row in loading.versions:
            gaps.setdefault((row.library, row.provider), set()).add(row.version)
    places = {library.path: library.place for library in context.libraries}
    for (path, provider), versions in gaps.items():
        yield Problem(
            places.get(path, str(path)),
            f"needs {', '.join(sorted(versions))} of {provider}, which does not define it",
            severity=_severity(path.name),
        )


@rule("android-page-size")
def android_page_size(context: Context) -> Iterator[Problem]:
    android = list(context.libraries_of_system("aarch64-android"))
    if not android:
        raise NotApplicable("there is no Android library")
    demands = Demands(page_size=validation_table().android.page_size)
    for library, elf in android:
        yield from _complaints(Wrong.PAGE_SIZE, library, elf, demands)


@rule("android-api")
def android_api(context: Context) -> Iterator[Problem]:
    pairs = [
        pair for pair in context.libraries_of_system("aarch64-android") if pair[1].android_api is not None
    ]
    if not pairs:
        raise NotApplicable("no library holds an Android note")
    demands = Demands(android_api=validation_table().android.api)
    for library, elf in pairs:
        yield from _complaints(Wrong.ANDROID_API, library, elf, demands)


def _needs_no_demand(wrong: Wrong) -> Check:
    def check(context: Context) -> Iterator[Problem]:
        for library, elf in _readable(context):
            yield from _complaints(wrong, library, elf)

    return check


for wrong in (Wrong.RELOCATIONS, Wrong.STACK, Wrong.SEARCH_PATH):
    rule(RULES[wrong])(_needs_no_demand(wrong))
