"""Rules about single libraries: that each is what its place says, and that it can be loaded there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from provisioning import elf as elves
from provisioning import loader_search as loader
from provisioning.base.findings import Severity
from provisioning.components import ANDROID_NDK
from provisioning.elf import HEXAGON, Elf, highest_version
from provisioning.loadable import Demands, Wrong, complaints
from provisioning.validation import NotApplicable, Problem, rule, tables
from provisioning.validation.context import Context, Library, Need
from provisioning.validation.tables import System

_FIX = "restore the file: python -m provisioning store repair, or unpack the SDK again"


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


@rule(
    "elf-readable",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="Every library is a whole ELF file, or a whole PE file for Windows",
    why="""
        An interrupted copy, a full disk, a web page saved as a library or a Git LFS pointer leave a file of
        the right name that no loader accepts. The loader's message, `file too short`, does not name the
        cause, and not always the file.
    """,
    example="lib/aarch64-android/libQnnHtp.so: truncated: the section headers end at byte 4489792 of 1048576",
    fix=_FIX,
)
def elf_readable(context: Context) -> Iterator[Problem]:
    if not context.libraries:
        raise NotApplicable("there is no library")
    for library in context.libraries:
        if library.elf is None and library.pe is None:
            yield Problem(library.place, library.unreadable)
        elif library.elf is not None and library.elf.beyond_end:
            yield Problem(
                library.place,
                f"its section headers are outside the file: {library.elf.beyond_end}. Loaders do not need"
                " them, but a whole library has them",
                severity=Severity.WARNING,
            )


@rule(
    "elf-machine",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="Class and machine of a library are those of its directory",
    why="""
        The loader skips a library of another machine. It then reports that the library was not found, or
        loads one of the same name from elsewhere.
    """,
    example="lib/aarch64-android/libQnnSystem.so: expected 64-bit AArch64, found 64-bit x86-64",
    fix=_FIX,
)
def elf_machine(context: Context) -> Iterator[Problem]:
    for library, elf in _libraries(context):
        described = tables.libraries().directory(library.directory)
        if described is not None:
            demands = Demands(described[0].machine, described[0].bits)
            yield from _complaints(Wrong.MACHINE, library, elf, demands)


@rule(
    "hexagon-arch",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="The arch of a Hexagon library is that of its directory and of its name",
    why="""
        A DSP refuses libraries of a newer arch, and each of QNN's skels is for one arch. Commands in
        published guides push `hexagon-v75/unsigned/libQnnHtpV79Skel.so`. The name, the directory and the ELF
        header must say the same arch. A library without an arch in its name may be built for an older one.
    """,
    example="lib/hexagon-v75/unsigned/libQnnHtpV79Skel.so: is in hexagon-v75, its name says V79,"
    " its header says v79",
    fix="put the file of the right arch there, from the SDK's hexagon-vNN/unsigned",
)
def hexagon_arch(context: Context) -> Iterator[Problem]:
    hexagon = [(library, elf) for library, elf in _libraries(context) if elf.machine == HEXAGON]
    if not hexagon:
        raise NotApplicable("there is no Hexagon library")
    for library, elf in hexagon:
        described = tables.libraries().directory(library.directory)
        by_name = re.search(r"V(\d{2})(?!\d)", library.name)
        by_directory = described[1] if described else None
        says = {
            f"is in {library.directory}": by_directory,
            f"its name says {by_name[0] if by_name else ''}": int(by_name[1]) if by_name else None,
            f"its header says v{elf.arch}": elf.arch,
        }
        known = {text: arch for text, arch in says.items() if arch is not None}
        if elf.arch is None:
            yield Problem(library.place, f"names no Hexagon arch in its header (e_flags {elf.flags:#x})")
        elif len(set(known.values())) > 1:
            # A library without an arch in its name may be built for an older one: DSPs take those.
            older = by_name is None and by_directory is not None and elf.arch < by_directory
            severity = Severity.NOTE if older else None
            yield Problem(library.place, ", ".join(known), severity=severity)


@rule(
    "needed-resolved",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="Every library that a library needs will be found where it is loaded",
    why="""
        On the host, this rule searches as ld.so does: RPATH, LD_LIBRARY_PATH, RUNPATH, the loader's cache,
        the default directories. It skips files of another machine. On a device, a library must lie beside the
        one that needs it, or belong to the device's own system as listed in manifests/device_libraries.toml.
        For a library of an SDK that no target requires, it is a warning.
    """,
    example="lib/x86_64-linux-clang/libQnnHtp.so: needs libc++.so.1, which is nowhere in LD_LIBRARY_PATH"
    " /opt/qairt/lib/x86_64-linux-clang, the loader's cache, /usr/lib",
    fix="install what is named, or restore the SDK's own copy; for libc++ on Debian and Ubuntu:"
    " apt-get install libc++1 libc++abi1 libunwind8",
)
def needed_resolved(context: Context) -> Iterator[Problem]:
    libraries = _libraries(context)
    host = {library.path: elf for library, elf in libraries if library.system == "host"}
    places = {library.path: library.place for library, _ in libraries}
    for gap in loader.unresolved(
        host,
        library_path=context.variables.get("LD_LIBRARY_PATH", ""),
        system=context.system_libraries,
        read=_read_elsewhere,
    ):
        other = f"; passed over for another class or machine: {', '.join(gap.passed_over)}"
        yield Problem(
            places.get(gap.library, str(gap.library)),
            f"needs {gap.needed}, which is nowhere in {', '.join(gap.searched)}"
            + (other if gap.passed_over else ""),
            severity=_severity(context, gap.library.name),
        )
    for system in ("aarch64-android", "aarch64-linux", "hexagon"):
        yield from _on_device(context, system)


def _severity(context: Context, name: str) -> Severity:
    """A warning for a library that no target requires: an SDK has many that nothing here loads."""
    table = tables.libraries()
    is_sdk = any(table.directory(library.directory) for library in context.libraries)
    return Severity.WARNING if is_sdk and not table.requires(name) else Severity.ERROR


def _read_elsewhere(path: Path) -> Elf | None:
    try:
        return elves.read(path)
    except (elves.NotElf, elves.BrokenElf, OSError):
        return None


def _on_device(context: Context, system: System) -> Iterator[Problem]:
    provided = set(tables.device_libraries().systems[system].provides)
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
                    _severity(context, library.name),
                )


@rule(
    "symbol-versions",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="The host's system libraries have every symbol version that the SDK needs",
    why="""
        Symbol versions tell the oldest system that a library runs on. The host's own library must define
        every version that is named, with a number (GLIBC_2.34) or without (GLIBC_ABI_DT_RELR). For a library
        of an SDK that no target requires, it is a warning.
    """,
    example="lib/x86_64-linux-clang/libQnnHtp.so: needs GLIBC_2.34 of libc.so.6, which ends"
    " at GLIBC_2.31 here",
    fix="use a newer distribution or base image: Debian 12, Ubuntu 22.04 and later have them",
)
def symbol_versions(context: Context) -> Iterator[Problem]:
    provided = context.system_libraries.provides
    host = [(library, elf) for library, elf in _libraries(context) if library.system == "host"]
    if not host or not provided:
        raise NotApplicable("there is no library of the host, or no system library to compare with")
    for library, elf in host:
        lacking: dict[str, list[str]] = {}
        for name, version in elf.versions:
            if name in provided and version not in provided[name]:
                lacking.setdefault(name, []).append(version)
        for name, versions in lacking.items():
            family = versions[0].rpartition("_")[0]
            newest = highest_version(provided[name], family)
            yield Problem(
                library.place,
                f"needs {', '.join(sorted(versions))} of {name}, which"
                + (f" ends at {family}_{newest} here" if newest else " does not define it here"),
                severity=_severity(context, library.name),
            )


@rule(
    "android-page-size",
    Severity.WARNING,
    Need.LIBRARIES,
    summary="Android libraries are aligned for pages of 16 KB",
    why="""
        Devices with pages of 16 KB do not load libraries whose segments are aligned to less, and Google Play
        requires the alignment of apps for Android 15 and later. The severity is set in
        manifests/validation.toml. Hexagon skels are exempt: Android's linker does not load them.
    """,
    example="lib/aarch64-android/libQnnHtp.so: expected segments aligned to 0x4000, found 0x1000",
    fix="build with -Wl,-z,max-page-size=16384 (NDK 28 and later do); of an SDK, take a newer one",
)
def android_page_size(context: Context) -> Iterator[Problem]:
    android = list(context.of_system("aarch64-android"))
    if not android:
        raise NotApplicable("there is no Android library")
    table = tables.validation().android
    severity = Severity(table.page_size_severity)
    for library, elf in android:
        yield from _complaints(Wrong.PAGE_SIZE, library, elf, Demands(page_size=table.page_size), severity)


@rule(
    "android-api",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="Android libraries are built for an API level that our builds support",
    why="""
        A library built for a newer API level may use functions that older devices lack. The level is in the
        note that the NDK writes into each library; ours is in manifests/validation.toml.
    """,
    example="lib/aarch64-android/libQnnHtp.so: expected Android API 30 at most, found 34",
    fix="build it for the project's API level, or raise the level in manifests/validation.toml",
)
def android_api(context: Context) -> Iterator[Problem]:
    noted = [pair for pair in context.of_system("aarch64-android") if pair[1].android_api is not None]
    if not noted:
        raise NotApplicable("no library holds an Android note")
    demands = Demands(android_api=tables.validation().android.api)
    for library, elf in noted:
        yield from _complaints(Wrong.ANDROID_API, library, elf, demands)


@rule(
    "android-ndk",
    Severity.WARNING,
    Need.LIBRARIES,
    summary="Android libraries are built by the NDK that the profile pins",
    why="""
        Libraries of two NDKs in one process hold two builds of the C++ library. They work together as long as
        no C++ object passes between them. Release and build number are in the note that the NDK writes into
        each library. For each other NDK there is one warning, which names the first of its libraries.
    """,
    example="lib/aarch64-android/libCustomOp.so: is built by NDK r27d (13750724), as are 3 others; profile"
    " qnn-2.37 pins r26c (26.2.11394342)",
    fix="build it with the pinned NDK, or pin the other one in the profile",
)
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
            others = f", as are {len(places) - 1} others" if len(places) > 1 else ""
            yield Problem(
                places[0],
                f"is built by NDK {release} ({build}){others}; profile {context.profile.name} pins"
                f" {tables.validation().ndk.named(pin.version)}",
            )


@rule(
    "text-relocations",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="No library has text relocations",
    why="""
        Android since API 23 and hardened Linux refuse code that is rewritten while it is loaded. Such code
        cannot be shared between processes either.
    """,
    example="lib/aarch64-android/libCustomOp.so: has text relocations: its code is changed when it is loaded",
    fix="build it as position-independent code (-fPIC), and assembler parts too",
)
def text_relocations(context: Context) -> Iterator[Problem]:
    for library, elf in _libraries(context):
        yield from _complaints(Wrong.RELOCATIONS, library, elf)


@rule(
    "executable-stack",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="No library asks for an executable stack",
    why="""
        One such library makes the stack of its whole process executable. On x86-64 that is also a library
        without PT_GNU_STACK. glibc from 2.41 and SELinux refuse to load it.
    """,
    example="lib/x86_64-linux-clang/libCustomOp.so: asks for an executable stack",
    fix="link it with -Wl,-z,noexecstack; mostly an assembler file lacks its .note.GNU-stack",
)
def executable_stack(context: Context) -> Iterator[Problem]:
    for library, elf in _libraries(context):
        yield from _complaints(Wrong.STACK, library, elf)


@rule(
    "absolute-rpath",
    Severity.WARNING,
    Need.LIBRARIES,
    summary="No library searches absolute directories",
    why="""
        An absolute RPATH or RUNPATH is a directory of the machine that built the library. On another machine
        it is missing, or it holds other libraries, which are then loaded first.
    """,
    example="lib/x86_64-linux-clang/libCustomOp.so: expected to search beside itself ($ORIGIN),"
    " found '/build/out/lib'",
    fix="link with -Wl,-rpath,'$ORIGIN', or remove the entry: patchelf --set-rpath '$ORIGIN' FILE",
)
def absolute_rpath(context: Context) -> Iterator[Problem]:
    for library, elf in _libraries(context):
        yield from _complaints(Wrong.SEARCH_PATH, library, elf)
