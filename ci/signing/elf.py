"""The ELF structure that a signature covers: headers and segments, little-endian, 32 and 64 bits.

provisioning.elf reads facts for people. Here every byte range matters, and the file may be hostile, so each
number is checked against the file before it is used.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, replace
from typing import TypeAlias

from provisioning.base.errors import CheckFailed

Bytes: TypeAlias = "bytes | bytearray | memoryview"

PT_NULL, PT_LOAD = 0, 1
SHT_NULL = 0
EM_HEXAGON = 164

MOST_SEGMENTS = 512
"""Linkers write about ten. The limit bounds the work for a hostile file."""
MOST_COVERAGE = 8
"""How often segments may cover the file: dynamic, relro and notes lie inside load segments."""
MOST_BYTES = 1 << 28
"""Twenty times the largest skel."""


class Malformed(CheckFailed):
    """A file whose numbers contradict each other. `part` names where."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"{part}: {reason}")
        self.part = part
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Format:
    """The layout of one ELF class."""

    bits: int
    header: struct.Struct
    segment: struct.Struct
    section: struct.Struct

    @property
    def most(self) -> int:
        """The largest address or offset."""
        return int((1 << self.bits) - 1)


ELF32 = Format(32, struct.Struct("<16sHHIIIIIHHHHHH"), struct.Struct("<8I"), struct.Struct("<10I"))
ELF64 = Format(
    64, struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ"), struct.Struct("<IIQQQQIIQQ")
)


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
class Segment:
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

    def moved(self, by: int) -> Segment:
        return replace(self, offset=self.offset + by)


@dataclass(frozen=True, slots=True)
class Elf:
    format: Format
    header: Header
    segments: tuple[Segment, ...]
    size: int

    @property
    def head_size(self) -> int:
        """Bytes of ELF header and program headers, if the latter follow the former."""
        return self.format.header.size + len(self.segments) * self.format.segment.size

    @property
    def arch(self) -> int | None:
        """The Hexagon arch, 75 for V75."""
        digits = f"{self.header.flags & 0x3FF:x}"
        return int(digits) if self.header.machine == EM_HEXAGON and digits.isdecimal() else None


def parse(data: Bytes) -> Elf:
    """Raises Malformed unless it is a little-endian ELF whose program headers fit the file."""
    size = len(data)
    if size > MOST_BYTES:
        raise Malformed("file", f"{size} bytes is more than a library has (limit {MOST_BYTES})")
    if bytes(data[:4]) != b"\x7fELF":
        raise Malformed("file", "not an ELF file" if size else "it is empty")
    if size < 20:
        raise Malformed("ELF header", f"the file ends after {size} bytes")
    form = {1: ELF32, 2: ELF64}.get(data[4])
    if form is None:
        raise Malformed("ELF header", f"class: expected 1 (32 bits) or 2 (64 bits), found {data[4]}")
    if data[5] != 1:
        raise Malformed("ELF header", f"byte order: expected 1 (little-endian), found {data[5]}")
    if size < form.header.size:
        raise Malformed("ELF header", f"needs {form.header.size} bytes, the file has {size}")
    header = Header(*form.header.unpack_from(data))
    if header.ehsize != form.header.size:
        raise Malformed("ELF header", f"e_ehsize: expected {form.header.size}, found {header.ehsize}")
    if header.phnum == 0:
        raise Malformed("program headers", "there are none")
    if header.phnum > MOST_SEGMENTS:
        raise Malformed("program headers", f"{header.phnum} of them (limit {MOST_SEGMENTS})")
    if header.phentsize != form.segment.size:
        raise Malformed("ELF header", f"e_phentsize: expected {form.segment.size}, found {header.phentsize}")
    end = header.phoff + header.phnum * form.segment.size
    if header.phoff < form.header.size or end > size:
        raise Malformed("program headers", f"at bytes {header.phoff}..{end} of a file of {size} bytes")
    segments = tuple(
        _segment(form, data, header.phoff + index * form.segment.size) for index in range(header.phnum)
    )
    _check_ranges(segments, size)
    return Elf(form, header, segments, size)


def pack_head(form: Format, header: Header, segments: tuple[Segment, ...]) -> bytes:
    """ELF header and program headers, as at the start of a file."""
    fields = (getattr(header, name) for name in Header.__slots__)
    return form.header.pack(*fields) + b"".join(_pack_segment(form, s) for s in segments)


def shift_sections(data: bytearray, form: Format, header: Header, by: int) -> None:
    """Add `by` to every section header's sh_offset; `header.shoff` is the table's offset in `data`."""
    for at in _section_positions(data, form, header):
        fields = list(form.section.unpack_from(data, at))
        if fields[1] == SHT_NULL:
            continue
        fields[4] += by
        if not 0 <= fields[4] <= form.most:
            raise Malformed("section headers", f"an offset becomes {fields[4]:#x}")
        form.section.pack_into(data, at, *fields)


def section_table(data: Bytes, elf: Elf) -> tuple[int, int]:
    """The byte range of the section header table; (0, 0) if there is none."""
    positions = _section_positions(data, elf.format, elf.header)
    return (positions.start, positions.stop) if len(positions) else (0, 0)


def printable(text: str) -> str:
    """The text with control characters escaped, so that it cannot steer a terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def align_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _section_positions(data: Bytes, form: Format, header: Header) -> range:
    if header.shoff == 0:
        return range(0)
    if header.shnum == 0:
        raise Malformed("section headers", "their number is not in the ELF header (extended numbering)")
    if header.shentsize != form.section.size:
        raise Malformed("ELF header", f"e_shentsize: expected {form.section.size}, found {header.shentsize}")
    end = header.shoff + header.shnum * form.section.size
    if end > len(data):
        raise Malformed("section headers", f"at bytes {header.shoff}..{end} of a file of {len(data)} bytes")
    return range(header.shoff, end, form.section.size)


def _segment(form: Format, data: Bytes, at: int) -> Segment:
    fields = form.segment.unpack_from(data, at)
    if form is ELF32:
        return Segment(*fields)
    kind, flags, offset, vaddr, paddr, filesz, memsz, align = fields
    return Segment(kind, offset, vaddr, paddr, filesz, memsz, flags, align)


def _pack_segment(form: Format, s: Segment) -> bytes:
    try:
        if form is ELF32:
            return form.segment.pack(s.type, s.offset, s.vaddr, s.paddr, s.filesz, s.memsz, s.flags, s.align)
        return form.segment.pack(s.type, s.flags, s.offset, s.vaddr, s.paddr, s.filesz, s.memsz, s.align)
    except struct.error as error:
        raise Malformed("program headers", f"a number does not fit {form.bits} bits: {s}") from error


def _check_ranges(segments: tuple[Segment, ...], size: int) -> None:
    for index, segment in enumerate(segments):
        if segment.filesz and segment.end > size:
            raise Malformed(
                f"program header {index}",
                f"its segment ends at byte {segment.end} of a file of {size} bytes",
            )
        if segment.type == PT_LOAD and segment.filesz > segment.memsz:
            raise Malformed(f"program header {index}", "its segment is larger in the file than in memory")
    if sum(s.filesz for s in segments) > MOST_COVERAGE * size:
        raise Malformed("program headers", f"they claim more than {MOST_COVERAGE} times the file's bytes")
    loads = sorted((s.offset, s.end) for s in segments if s.type == PT_LOAD and s.filesz)
    for (_, end), (start, _) in itertools.pairwise(loads):
        if start < end:
            raise Malformed("program headers", f"two load segments share the bytes from {start:#x}")
