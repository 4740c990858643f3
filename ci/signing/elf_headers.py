"""The ELF and program headers of a library, read and written: what a signature covers, and adds.

The file may be hostile, so every number is checked against the file before it is followed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from provisioning.base.errors import CheckFailed
from provisioning.elf import MAGIC, hexagon_arch

Bytes: TypeAlias = "bytes | bytearray | memoryview"

PT_NULL, PT_LOAD = 0, 1
EM_HEXAGON = 164


class BadLibrary(CheckFailed):
    """Numbers that contradict the file or each other. `part` names where."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"{part}: {reason}")
        self.part = part
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Format:
    """The structures of one ELF class, little-endian as Hexagon's libraries are."""

    bits: int
    header: struct.Struct
    segment: struct.Struct
    section: struct.Struct
    segment_fields: tuple[str, ...]
    """The fields of ElfSegment, in the file's order."""


def _format(bits: int) -> Format:
    word, segment, section, fields = {
        32: ("I", "8I", "10I", "type offset vaddr paddr filesz memsz flags align"),
        64: ("Q", "IIQQQQQQ", "IIQQQQIIQQ", "type flags offset vaddr paddr filesz memsz align"),
    }[bits]
    header, of_segment, of_section = map(struct.Struct, (f"<16sHHI3{word}I6H", f"<{segment}", f"<{section}"))
    return Format(bits, header, of_segment, of_section, tuple(fields.split()))


_FORMATS = {bytes((bits // 32, 1)): _format(bits) for bits in (32, 64)}
"""The layout of an ELF file's structures, by its class and byte order as e_ident states them."""


@dataclass(frozen=True, slots=True)
class Header:
    ident: bytes
    type: int
    machine: int
    version: int
    entry: int
    phoff: int
    shoff: int
    flags: int
    ehsize: int
    phentsize: int
    phnum: int
    shentsize: int
    shnum: int
    shstrndx: int


@dataclass(frozen=True, slots=True)
class ElfSegment:
    type: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    flags: int
    align: int

    @property
    def end(self) -> int:
        return self.offset + self.filesz

    def shift(self, by: int) -> ElfSegment:
        return replace(self, offset=self.offset + by)


@dataclass(frozen=True, slots=True)
class Layout:
    """The ELF header and the program headers, which are inside the file; their segments may not be."""

    format: Format
    header: Header
    segments: tuple[ElfSegment, ...]
    size: int

    @property
    def head_size(self) -> int:
        """Bytes of ELF header and program headers, if the latter follow the former."""
        return self.format.header.size + len(self.segments) * self.format.segment.size

    @property
    def arch(self) -> int | None:
        return hexagon_arch(self.header.flags) if self.header.machine == EM_HEXAGON else None

    @property
    def sections(self) -> range:
        """The places at which section headers begin; empty if there are none. Raises BadLibrary."""
        header, size = self.header, self.format.section.size
        if header.shoff == 0:
            return range(0)
        if header.shnum == 0:
            raise BadLibrary("section headers", "their number is not in the ELF header (extended numbering)")
        if header.shentsize != size:
            raise BadLibrary("ELF header", f"e_shentsize: expected {size}, found {header.shentsize}")
        end = header.shoff + header.shnum * size
        if end > self.size:
            raise BadLibrary(
                "section headers", f"at bytes {header.shoff}..{end} of a file of {self.size} bytes"
            )
        return range(header.shoff, end, size)


def layout(data: Bytes) -> Layout:
    """Read the headers. Raises BadLibrary for what is no ELF file or has not all of its headers."""
    if data[:4] != MAGIC:
        raise BadLibrary("file", "not an ELF file" if len(data) else "it is empty")
    kind = bytes(data[4:6])
    form = _FORMATS.get(kind)
    if form is None:
        raise BadLibrary("ELF header", f"expected class 1 or 2 and little-endian, found {kind.hex(' ')}")
    header = Header(*_unpack(data, 0, form.header, "ELF header"))
    return Layout(form, header, tuple(_segments(data, form, header)), len(data))


def _unpack(data: Bytes, at: int, form: struct.Struct, part: str) -> tuple[Any, ...]:
    if at + form.size > len(data):
        raise BadLibrary(part, f"truncated at byte {len(data)}, expected {at + form.size}")
    return form.unpack_from(data, at)


def _segments(data: Bytes, form: Format, header: Header) -> Iterator[ElfSegment]:
    if header.phnum and header.phentsize != form.segment.size:
        message = f"expected {form.segment.size}, found {header.phentsize}"
        raise BadLibrary("ELF header", f"e_phentsize: {message}")
    all_headers = struct.Struct(f"{header.phnum * form.segment.size}s")
    (table,) = _unpack(data, header.phoff, all_headers, "program headers")
    for fields in form.segment.iter_unpack(table):
        yield ElfSegment(**dict(zip(form.segment_fields, fields, strict=True)))
