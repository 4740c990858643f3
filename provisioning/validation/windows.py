"""Rules about Windows on Snapdragon: its libraries, and the catalogues that sign its skels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from provisioning.base.findings import Severity
from provisioning.base.settings import WINDOWS
from provisioning.manifest import load_socs
from provisioning.pe import ARM64, Pe
from provisioning.validation import NotApplicable, Problem, rule, tables
from provisioning.validation.context import Context, Library, Need


def _libraries(context: Context) -> list[tuple[Library, Pe]]:
    libraries = [(library, library.pe) for library in context.libraries if library.pe is not None]
    if not libraries:
        raise NotApplicable("there is no Windows library")
    return libraries


@rule("pe-machine", Need.LIBRARIES)
def pe_machine(context: Context) -> Iterator[Problem]:
    for library, pe in _libraries(context):
        if pe.machine != ARM64:
            yield Problem(library.place, f"expected Arm64, found {pe.machine_name}")


@rule("pe-version", Need.LIBRARIES)
def pe_version(context: Context) -> Iterator[Problem]:
    for library, pe in _libraries(context):
        for build in library.build_ids:
            stated = pe.version.split(".")[:3]
            if pe.version and stated != build.removeprefix("v").split(".")[:3]:
                yield Problem(
                    library.place, f"its version resource says {pe.version}, its build id is {build}"
                )


@rule("skel-catalogue", Need.LIBRARIES)
def skel_catalogue(context: Context) -> Iterator[Problem]:
    if WINDOWS not in context.targets:
        raise NotApplicable("catalogues are for Windows, and no Windows target is chosen")
    if not context.signatures:
        raise NotApplicable("there is no Hexagon library")
    chips = context.socs_of(WINDOWS)
    if not chips and not context.every_target:
        # Who chose Windows and no chip of it means all of them.
        chips = {name: soc for name, soc in load_socs().items() if soc.windows}
    arches = {soc.arch for soc in chips.values()}
    wanted = tables.libraries().targets["aarch64-windows"]
    skels = [(library, elf) for library, elf in context.readable if elf.arch in arches]
    if not chips:
        raise NotApplicable(f"Windows does not run on {', '.join(context.socs)}: choose a chip with --soc")
    if not any(library.place in context.signatures for library, _ in skels):
        raise NotApplicable(f"there is no Hexagon library for {', '.join(chips)}")
    for library, elf in skels:
        signature = context.signatures.get(library.place)
        if signature is None:
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
