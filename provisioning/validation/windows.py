"""Rules about the libraries of Windows on Snapdragon."""

from __future__ import annotations

from collections.abc import Iterator

from provisioning.pe import ARM64, Pe
from provisioning.validation import NotApplicable, Problem, rule
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
