"""Is a library as its linker wrote it, where nobody has a hash of the file?

The hash of each name of a symbol or a version lies beside it, for the loader: a changed byte of either shows.
Code has no long run of one byte: a block that a disk or a download lost shows. Other changes do not."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.files import open_regular

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

_EXECUTED = 1
"""PF_X of a segment's flags."""

_EXECUTED_SECTION = 4
"""SHF_EXECINSTR of a section's flags."""

_TABLES = ("DT_STRTAB", "DT_SYMTAB", "DT_GNU_HASH", "DT_HASH", "DT_VERNEED")


HOLE_IN_SECTION = 256
"""In sections of code QNN's libraries for x86, Arm and Hexagon have at most 61 zeros in a row, and 8 bytes
0xff, as erased flash has (80 libraries of QNN 2.37, 2.49 and 2.51)."""
HOLE_IN_SEGMENT = 4096
"""Segments of code have headers and tables, too: at most 3888 zeros in a row."""


def hole_in_code(path: Path) -> str:
    """Say where a block of zeros or of 0xff begins in a library's code; empty if there is none."""
    from elftools.elf.elffile import ELFFile

    with open_regular(path) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for begin, size, most in _places_of_code(ELFFile(stream)):
            for byte in (b"\0", b"\xff"):
                if (at := data.find(byte * most, begin, begin + size)) >= 0:
                    return f"its code has one byte {most:,} times in a row from {at:#x}"
    return ""


def _places_of_code(file: ELFFile) -> Iterator[tuple[int, int, int]]:
    """Yield where code begins, its size, and how often one byte in a row is damage there."""
    from elftools.common.exceptions import ELFError
    from elftools.construct import ConstructError

    try:
        for section in file.iter_sections("SHT_PROGBITS"):
            if section["sh_flags"] & _EXECUTED_SECTION:
                yield section["sh_offset"], section["sh_size"], HOLE_IN_SECTION
    except (ELFError, ConstructError, struct.error, ValueError):
        # Loaders do not read sections, so what is wrong with them is no damage.
        pass
    for segment in file.iter_segments("PT_LOAD"):
        if segment["p_flags"] & _EXECUTED:
            yield segment["p_offset"], segment["p_filesz"], HOLE_IN_SEGMENT


def damaged_name(path: Path) -> str | None:
    """The name of a symbol or a version that does not fit its hash, which the linker wrote beside it: a byte
    of one of them was changed since. None if all fit."""
    from elftools.common.exceptions import ELFError
    from elftools.construct import ConstructError
    from elftools.elf.elffile import ELFFile

    with open_regular(path) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return next(_damaged_names(ELFFile(stream), data), None)
        except (ELFError, ConstructError, struct.error, IndexError, ValueError, OverflowError) as error:
            return f"({str(error) or type(error).__name__})"


def _damaged_names(file: ELFFile, data: mmap.mmap) -> Iterator[str]:
    from elftools.elf.dynamic import DynamicSegment

    dynamic = next((part for part in file.iter_segments() if isinstance(part, DynamicSegment)), None)
    if dynamic is None or not file.little_endian:
        return
    tags = {tag.entry.d_tag for tag in dynamic.iter_tags()}
    place: dict[str, int] = {}
    for tag in _TABLES:
        offset = dynamic.get_table_offset(tag)[1] if tag in tags else None
        if offset is not None:
            place[tag] = offset
    if "DT_STRTAB" not in place:
        return
    wide = file.elfclass == 64
    names = _Names(data, place["DT_STRTAB"], place.get("DT_SYMTAB", 0), 24 if wide else 16)
    if "DT_GNU_HASH" in place:
        yield from names.unfit_for_gnu_hash(place["DT_GNU_HASH"], 8 if wide else 4)
    if "DT_HASH" in place:
        yield from names.unfit_for_hash(place["DT_HASH"])
    if "DT_VERNEED" in place:
        yield from names.unfit_for_versions(place["DT_VERNEED"])


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of a library's symbols, and where its tables have their hashes."""

    data: mmap.mmap
    strings: int
    symbols: int
    symbol_size: int

    def symbol(self, index: int) -> bytes:
        (at,) = struct.unpack_from("<I", self.data, self.symbols + index * self.symbol_size)
        return self.text(at)

    def text(self, at: int) -> bytes:
        begin = self.strings + at
        end = self.data.find(b"\0", begin)
        if end < 0:
            raise ValueError("a name has no end")
        return self.data[begin:end]

    def unfit_for_gnu_hash(self, at: int, word: int) -> Iterator[str]:
        buckets, first, words, _ = struct.unpack_from("<4I", self.data, at)
        starts = struct.unpack_from(f"<{buckets}I", self.data, at + 16 + words * word)
        chains = at + 16 + words * word + 4 * buckets
        for bucket, start in enumerate(starts):
            index, is_last = start, start == 0
            while not is_last:
                (value,) = struct.unpack_from("<I", self.data, chains + 4 * (index - first))
                name = self.symbol(index)
                hashed = _gnu_hash(name)
                if hashed | 1 != value | 1 or hashed % buckets != bucket:
                    yield name.decode("utf-8", "replace")
                index, is_last = index + 1, bool(value & 1)

    def unfit_for_hash(self, at: int) -> Iterator[str]:
        buckets, count = struct.unpack_from("<2I", self.data, at)
        starts = struct.unpack_from(f"<{buckets}I", self.data, at + 8)
        chains = struct.unpack_from(f"<{count}I", self.data, at + 8 + 4 * buckets)
        seen = 0
        for bucket, start in enumerate(starts):
            index = start
            while index:
                name = self.symbol(index)
                seen += 1
                if elf_hash(name) % buckets != bucket:
                    yield name.decode("utf-8", "replace")
                if seen > count:
                    raise ValueError("its table of symbols has no end")
                index = chains[index]

    def unfit_for_versions(self, at: int) -> Iterator[str]:
        step = 1
        while step:
            _, count, _, first, step = struct.unpack_from("<HHIII", self.data, at)
            version = at + first
            for _ in range(count):
                value, _, _, name, following = struct.unpack_from("<IHHII", self.data, version)
                if elf_hash(text := self.text(name)) != value:
                    yield text.decode("utf-8", "replace")
                version += following
            at += step


def elf_hash(name: bytes) -> int:
    """The hash of ELF's tables of symbols and versions."""
    value = 0
    for letter in name:
        value = (value << 4) + letter
        high = value & 0xF000_0000
        value = (value ^ high >> 24) & ~high
    return value


def _gnu_hash(name: bytes) -> int:
    value = 5381
    for letter in name:
        value = (value * 33 + letter) & 0xFFFF_FFFF
    return value
