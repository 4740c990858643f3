"""Rules about Windows on Snapdragon: its libraries, and the catalogues that sign its skels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from provisioning.base.findings import Severity
from provisioning.base.settings import WINDOWS
from provisioning.pe import ARM64, Pe
from provisioning.validation import NotApplicable, Problem, rule, tables
from provisioning.validation.context import Context, Library, Need


def _libraries(context: Context) -> list[tuple[Library, Pe]]:
    libraries = [(library, library.pe) for library in context.libraries if library.pe is not None]
    if not libraries:
        raise NotApplicable("there is no Windows library")
    return libraries


@rule(
    "pe-machine",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="Windows libraries are for Arm64",
    why="""
        Windows on Arm also runs x86-64 programs, and some packages bring QNN's libraries for those. A process
        for Arm64 cannot load them.
    """,
    example="lib/aarch64-windows-msvc/QnnHtp.dll: expected Arm64, found x86-64",
    fix="take the libraries of the win_arm64 wheel: nox -s provision -- --target aarch64-windows",
)
def pe_machine(context: Context) -> Iterator[Problem]:
    for library, pe in _libraries(context):
        if pe.machine != ARM64:
            yield Problem(library.place, f"expected Arm64, found {pe.machine_name}")


@rule(
    "pe-version",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="The version resource of a Windows library is that of its build id",
    why="""
        Explorer and installers show the version resource, QNN compares the build id inside. Where the two
        differ, the file was edited or repacked.
    """,
    example="lib/aarch64-windows-msvc/QnnHtp.dll: its version resource says 2.51.0.0, its build id is"
    " v2.49.40.260810104044",
    fix="restore the file: python -m provisioning store repair, or unpack the package again",
)
def pe_version(context: Context) -> Iterator[Problem]:
    for library, pe in _libraries(context):
        for build in library.build_ids:
            stated = pe.version.split(".")[:3]
            if pe.version and stated != build.removeprefix("v").split(".")[:3]:
                yield Problem(
                    library.place, f"its version resource says {pe.version}, its build id is {build}"
                )


@rule(
    "skel-catalogue",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="The catalogue beside a skel signs exactly that skel",
    why="""
        On Windows a catalogue (.cat) beside the skel is its signature. It lists the SHA-256 of the skel and
        is signed by Microsoft's hardware publisher. A catalogue of one build beside the skel of another
        signs nothing. No build that was seen has a catalogue for V68. What a device does with a skel without
        one was not tried.
    """,
    example="lib/hexagon-v73/unsigned/libQnnHtpV73Skel.so: libqnnhtpv73.cat beside it does not sign it: it"
    " signs other bytes: the catalogue is of 2025-08-07",
    fix="take the skel and its catalogue from one build; `python -m ci signing verify FILE.cat` shows each"
    " part",
)
def skel_catalogue(context: Context) -> Iterator[Problem]:
    if WINDOWS not in context.targets:
        raise NotApplicable("catalogues are for Windows, and no Windows target is chosen")
    if not context.signatures:
        raise NotApplicable("there is no Hexagon library")
    arches = {soc.arch for soc in context.socs.values()}
    wanted = tables.libraries().targets["aarch64-windows"]
    for library, elf in context.readable:
        signature = context.signatures.get(library.place)
        if signature is None or elf.arch not in arches:
            continue
        if signature.catalogue:
            name = PurePosixPath(signature.catalogue).name
            for problem in signature.problems:
                yield Problem(library.place, f"{name} beside it does not sign it: {problem}")
        elif elf.arch in wanted.catalogue_arches:
            yield Problem(library.place, "no catalogue beside it signs it", severity=Severity.WARNING)
        else:
            message = f"no build that was seen has a catalogue for V{elf.arch}"
            yield Problem(library.place, message, severity=Severity.NOTE)
