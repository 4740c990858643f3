"""Whether the loader of a target takes an ELF file, judged by its headers alone."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from provisioning.elf import Elf
from provisioning.symbol_versions import highest_version, version_key

_GLIBC_OF = {"GLIBC_ABI_DT_RELR": "2.36"}
"""The first glibc that has a symbol version without a number."""


class Wrong(str, enum.Enum):
    """What can be wrong with a file: `validate` has a rule for each, builds have a fix."""

    MACHINE = "machine"
    PAGE_SIZE = "page-size"
    RELOCATIONS = "relocations"
    STACK = "stack"
    SEARCH_PATH = "search-path"
    GLIBC = "glibc"
    ANDROID_API = "android-api"


@dataclass(frozen=True, slots=True)
class Demands:
    """A target's demands on every file. Fields that are left out are not checked."""

    machine: str = ""
    bits: int = 64
    glibc: str = ""
    """The newest glibc that a file may need."""
    android_api: int | None = None
    page_size: int = 0


def complaints(elf: Elf, demands: Demands) -> Iterator[tuple[Wrong, str]]:
    """Everything that is wrong, each with a message."""
    if demands.machine and (elf.bits, elf.machine) != (demands.bits, demands.machine):
        expected = Elf(bits=demands.bits, machine=demands.machine, flags=0)
        yield (
            Wrong.MACHINE,
            f"expected {expected.bits}-bit {expected.machine_name}, found {elf.bits}-bit {elf.machine_name}",
        )
    least = min(elf.alignments, default=demands.page_size)
    if least < demands.page_size:
        yield Wrong.PAGE_SIZE, f"expected segments aligned to {demands.page_size:#x}, found {least:#x}"
    if elf.textrel:
        yield Wrong.RELOCATIONS, "has text relocations: its code is changed when it is loaded"
    if elf.execstack:
        asks = "asks for an executable stack"
        yield (
            Wrong.STACK,
            asks if elf.states_stack else "has no PT_GNU_STACK, so its stack becomes executable",
        )
    for entry in (*elf.rpath, *elf.runpath):
        if not entry.startswith("$ORIGIN"):
            yield (
                Wrong.SEARCH_PATH,
                f"expected to search its own folder ($ORIGIN), found {entry!r}",
            )
    if demands.glibc:
        yield from _newer_glibc(elf, demands.glibc)
    if demands.android_api is not None and (elf.android_api is None or elf.android_api > demands.android_api):
        level = "none named" if elf.android_api is None else elf.android_api
        yield Wrong.ANDROID_API, f"expected Android API {demands.android_api} at most, found {level}"


def _newer_glibc(elf: Elf, newest: str) -> Iterator[tuple[Wrong, str]]:
    needed = highest_version((version for _, version in elf.versions), "GLIBC") or "0"
    if version_key(needed) > version_key(newest):
        yield Wrong.GLIBC, f"expected to need glibc {newest} at most, found {needed}"
    for name in sorted({version for _, version in elf.versions if version.startswith("GLIBC_")}):
        if name[len("GLIBC_") :].replace(".", "").isdecimal():
            continue
        first = _GLIBC_OF.get(name)
        if first is None or version_key(first) > version_key(newest):
            yield (
                Wrong.GLIBC,
                f"expected to need glibc {newest} at most, found {name}",
            )
