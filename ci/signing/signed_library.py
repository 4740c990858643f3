"""Read the parts of a signed library: its two signing program headers, its hash segment, and what no hash
covers.

`parse` returns them as `Signed`, of a file that may be hostile. Whether the parts agree is decided by
`verification`."""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ci.signing import mbn
from ci.signing.elf_headers import PT_LOAD, PT_NULL, BadLibrary, Bytes, ElfSegment, Layout, layout
from provisioning.base.errors import UsageError
from provisioning.base.files import open_regular

TYPE_MASK = 7 << 24
TYPE_HEAD = 7 << 24
TYPE_HASH = 2 << 24
HEAD_FLAGS = 0x7000000
HASH_FLAGS = 0x2200000
HASH_ALIGN = 0x1000
SIGNING_HEADERS = 2
MOST_BLOB = 1 << 24
MOST_COVERAGE = 8
"""How often segments may cover the file: dynamic, relro and notes lie inside load segments."""
MOST_BYTES = 1 << 28
"""Twenty times the largest skel."""
NAMELESS = "no header names these bytes"
_SHT_NULL, _SHT_NOBITS = 0, 8
_ZEROS = bytes(1 << 16)


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes that nothing verifies."""

    start: int
    end: int
    what: str


@dataclass(frozen=True, slots=True)
class Signed:
    """A library with a hash segment. Its parts fit the file; verification decides whether they agree."""

    elf: Layout
    head_index: int | None
    hash_index: int
    blob: bytes
    """The hash segment."""
    container: mbn.Container

    @property
    def hash_segment(self) -> ElfSegment:
        return self.elf.segments[self.hash_index]

    def part(self, name: str) -> bytes:
        part = self.container.part(name)
        return self.blob[part.start : part.end]

    @property
    def signed_part(self) -> bytes:
        return self.blob[: self.container.signed_end]

    @property
    def metadata(self) -> mbn.Metadata | None:
        """Metadata of version 6; the metadata of other versions is not public."""
        if self.container.version != 6 or not self.container.part(mbn.METADATA).size:
            return None
        return mbn.parse_metadata(self.part(mbn.METADATA))


@contextmanager
def map_file(path: Path) -> Iterator[memoryview]:
    """Map the file's bytes. Raises UsageError unless it is a regular file."""
    try:
        stream = open_regular(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", fix="name a library file") from error
    with stream:
        if os.fstat(stream.fileno()).st_size == 0:
            yield memoryview(b"")
            return
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            yield view


def is_hash_segment(segment: ElfSegment) -> bool:
    return segment.type == PT_NULL and segment.flags & TYPE_MASK == TYPE_HASH


def is_head_placeholder(segment: ElfSegment) -> bool:
    return segment.type == PT_NULL and segment.flags & TYPE_MASK == TYPE_HEAD


def layout_of(data: Bytes) -> Layout:
    """The headers. Raises BadLibrary unless it is a little-endian ELF file that holds all of its segments."""
    size = len(data)
    if size > MOST_BYTES:
        raise BadLibrary("file", f"{size} bytes is more than a library has (limit {MOST_BYTES})")
    elf = layout(data)
    form, header = elf.format, elf.header
    if header.ehsize != form.header.size:
        raise BadLibrary("ELF header", f"e_ehsize: expected {form.header.size}, found {header.ehsize}")
    if not elf.segments:
        raise BadLibrary("program headers", "there are none")
    if header.phoff < form.header.size:
        raise BadLibrary("program headers", f"at byte {header.phoff}, inside the ELF header")
    for index, segment in enumerate(elf.segments):
        where = f"program header {index}"
        if segment.filesz and segment.end > size:
            raise BadLibrary(where, f"its segment ends at byte {segment.end} of a file of {size} bytes")
        if segment.type == PT_LOAD and segment.filesz > segment.memsz:
            raise BadLibrary(where, "its segment is larger in the file than in memory")
    if sum(segment.filesz for segment in elf.segments) > MOST_COVERAGE * size:
        raise BadLibrary("program headers", f"they claim more than {MOST_COVERAGE} times the file's bytes")
    loads = sorted((s.offset, s.end) for s in elf.segments if s.type == PT_LOAD and s.filesz)
    for (_, end), (start, _) in itertools.pairwise(loads):
        if start < end:
            raise BadLibrary("program headers", f"two load segments share the bytes from {start:#x}")
    return elf


def parse(data: Bytes) -> tuple[Layout, Signed | None]:
    """The headers and, if there is a hash segment, its parts. Raises BadLibrary."""
    elf = layout_of(data)
    hashes = [i for i, s in enumerate(elf.segments) if is_hash_segment(s)]
    heads = [i for i, s in enumerate(elf.segments) if is_head_placeholder(s)]
    if not hashes:
        return elf, None
    if len(hashes) > 1 or len(heads) > 1:
        raise BadLibrary("program headers", f"{len(hashes)} hash segments, {len(heads)} placeholders")
    segment = elf.segments[hashes[0]]
    if segment.filesz > MOST_BLOB:
        raise BadLibrary("hash segment", f"{segment.filesz} bytes is more than one has")
    blob = bytes(data[segment.offset : segment.end])
    return elf, Signed(elf, heads[0] if heads else None, hashes[0], blob, mbn.parse(blob))


def segment_digests(data: Bytes, elf: Layout, algorithm: str) -> list[bytes]:
    """Return what the hash table must hold: a digest for each segment's bytes, zeros for the hash segment and
    for segments without bytes."""
    view = memoryview(data)
    size = hashlib.new(algorithm).digest_size
    return [
        bytes(size)
        if is_hash_segment(segment) or not segment.filesz
        else hashlib.new(algorithm, view[segment.offset : segment.end]).digest()
        for segment in elf.segments
    ]


def _unsigned_segments(layout: Layout) -> list[ElfSegment]:
    """Return the segments that signing leaves alone."""
    return [
        segment
        for segment in layout.segments
        if not is_hash_segment(segment) and not is_head_placeholder(segment)
    ]


def differences(before: Bytes, after: Bytes) -> list[str]:
    """Return how the program in `after` differs from that in `before`, ignoring signatures."""
    one, other = layout_of(before), layout_of(after)
    changes = [
        f"{name} was {getattr(one.header, name):#x} and is {getattr(other.header, name):#x}"
        for name in ("type", "machine", "entry", "flags")
        if getattr(one.header, name) != getattr(other.header, name)
    ]
    ours, theirs = _unsigned_segments(one), _unsigned_segments(other)
    if len(ours) != len(theirs):
        return [*changes, f"it had {len(ours)} segments and has {len(theirs)}"]
    for index, (old, new) in enumerate(zip(ours, theirs, strict=True)):
        if replace(old, offset=0) != replace(new, offset=0):
            changes.append(f"program header {index} changed")
        elif memoryview(before)[old.offset : old.end] != memoryview(after)[new.offset : new.end]:
            changes.append(f"the content of segment {index} changed")
    return changes


def unhashed_ranges(data: Bytes, signed: Signed) -> tuple[Range, ...]:
    """The ranges that no hash covers; of padding between others only what is not zero.

    Raises BadLibrary for section headers or a section outside the file."""
    view = memoryview(data)
    spans = sorted((s.offset, s.end) for s in signed.elf.segments if s.filesz)
    areas = list(_sections(view, signed.elf))
    gaps: list[Range] = []
    at = 0
    for start, end in [*spans, (len(view), len(view))]:
        if start > at:
            gaps += _gaps_in(view, at, start, areas)
        at = max(at, end)
    return tuple(gaps)


def _sections(view: memoryview, elf: Layout) -> Iterator[Range]:
    table = elf.sections
    if table:
        yield Range(table.start, table.stop, "section headers")
    for index, at in enumerate(table):
        _, kind, _, _, offset, size, *_ = elf.format.section.unpack(view[at : at + table.step])
        if kind in (_SHT_NULL, _SHT_NOBITS):
            continue
        if offset + size > len(view):
            where = f"section header {index}"
            raise BadLibrary(
                where, f"its section ends at byte {offset + size} of a file of {len(view)} bytes"
            )
        yield Range(offset, offset + size, "a section that is never loaded")


def _gaps_in(view: memoryview, start: int, end: int, areas: Sequence[Range]) -> Iterator[Range]:
    ends = {cut for range_ in areas for cut in (range_.start, range_.end) if start < cut < end}
    for low, high in itertools.pairwise(sorted({start, end, *ends})):
        name = next((range_.what for range_ in areas if range_.start <= low and high <= range_.end), NAMELESS)
        if name != NAMELESS or high == len(view) or not _is_zero(view[low:high]):
            yield Range(low, high, name)


def _is_zero(view: memoryview) -> bool:
    blocks = (view[at : at + len(_ZEROS)] for at in range(0, len(view), len(_ZEROS)))
    return all(block == _ZEROS[: len(block)] for block in blocks)
