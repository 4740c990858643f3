"""Write a rehearsal's signed library: new headers and a hash segment (MBN v6), then the whole original.

docs/signing.md defines the file.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ci.signing import certificates, mbn, rehearsal, signed_library
from ci.signing.elf_headers import PT_LOAD, PT_NULL, BadLibrary, Bytes, ElfSegment, Format, Header, Layout
from provisioning.base.errors import UsageError

SOFTWARE_ID = 0x04
"""The software id of the audio DSP, which LPAI runs on."""

SHT_NULL = 0
SECTION_TYPE_FIELD, SECTION_OFFSET_FIELD = 1, 4
LARGEST_ALIGNMENT = 1 << 20
DIGEST_SIZE = hashlib.new(rehearsal.DIGEST).digest_size


@dataclass(frozen=True, slots=True)
class NewHead:
    """The new ELF header and program headers, and where they say that everything is."""

    content: bytes
    hash_segment_at: int
    original_at: int


def sign_library(data: Bytes, signer: rehearsal.KeyAndChain, serials: Sequence[int] = ()) -> bytes:
    """The signed library, bound to the devices with these serials (up to 8; none: any device).

    Raises BadLibrary, or UsageError for a library that is signed already.
    """
    elf, signed = signed_library.parse(data)
    if signed is not None:
        raise UsageError("it is signed already", fix="name the unsigned original")
    _require_movable_sections(elf)
    chain = certificates.join(signer.chain)
    metadata = mbn.Metadata(software_id=SOFTWARE_ID, serials=tuple(serials), note=rehearsal.STATEMENT).pack()
    hashes_size = (len(elf.segments) + signed_library.SIGNING_HEADERS) * DIGEST_SIZE
    hash_segment_size = (
        mbn.V6_HEADER_SIZE + len(metadata) + hashes_size + rehearsal.SIGNATURE_SIZE + len(chain)
    )
    original = bytearray(data)
    try:
        head = _new_head(elf, hash_segment_size)
        _move_sections(original, elf, head.original_at)
    except struct.error as error:
        message = f"a number does not fit {elf.format.bits} bits once the library is moved"
        raise BadLibrary("headers", message) from error
    table = _hash_table(data, elf, head.content)
    signed_part = mbn.v6_signed_part(metadata, table, rehearsal.SIGNATURE_SIZE, len(chain))
    signature = rehearsal.sign(signer.key, signed_part)
    before_hash_segment = head.content.ljust(head.hash_segment_at, b"\0")
    before_original = (before_hash_segment + signed_part + signature + chain).ljust(head.original_at, b"\0")
    return before_original + bytes(original)


def _require_movable_sections(elf: Layout) -> None:
    sections = elf.sections
    for segment in elf.segments:
        if segment.filesz and segment.offset < sections.stop and sections.start < segment.end:
            raise BadLibrary(
                "section headers", "they lie inside a segment, so they cannot move without changing it"
            )


def _hash_table(data: Bytes, elf: Layout, head: bytes) -> bytes:
    """One entry for each program header; the hash segment's own is zeros."""
    head_digest = hashlib.new(rehearsal.DIGEST, head).digest()
    hash_segment_entry = bytes(DIGEST_SIZE)
    digests = signed_library.segment_digests(data, elf, rehearsal.DIGEST)
    return b"".join((head_digest, hash_segment_entry, *digests))


def _new_head(elf: Layout, hash_segment_size: int) -> NewHead:
    form = elf.format
    count = len(elf.segments) + signed_library.SIGNING_HEADERS
    head_size = form.header.size + count * form.segment.size
    hash_segment_at = _align_up(head_size, signed_library.HASH_ALIGN)
    original_at = _align_up(hash_segment_at + hash_segment_size, _alignment(elf.segments))
    header = replace(elf.header, phoff=form.header.size, phnum=count)
    if elf.header.shoff:
        header = replace(header, shoff=elf.header.shoff + original_at)
    segments = (
        _head_placeholder(head_size),
        _hash_segment(elf, hash_segment_at, hash_segment_size),
        *(segment.shift(original_at) for segment in elf.segments),
    )
    return NewHead(_pack(form, header, segments), hash_segment_at, original_at)


def _head_placeholder(size: int) -> ElfSegment:
    return ElfSegment(
        type=PT_NULL,
        offset=0,
        vaddr=0,
        paddr=0,
        filesz=size,
        memsz=0,
        flags=signed_library.HEAD_FLAGS,
        align=0,
    )


def _hash_segment(elf: Layout, offset: int, size: int) -> ElfSegment:
    """The segment's address follows the last load segment."""
    ends = [segment.paddr + segment.memsz for segment in elf.segments if segment.type == PT_LOAD]
    address = _align_up(max(ends, default=0), signed_library.HASH_ALIGN)
    return ElfSegment(
        type=PT_NULL,
        offset=offset,
        vaddr=address,
        paddr=address,
        filesz=size,
        memsz=_align_up(size, signed_library.HASH_ALIGN),
        flags=signed_library.HASH_FLAGS,
        align=signed_library.HASH_ALIGN,
    )


def _pack(form: Format, header: Header, segments: Sequence[ElfSegment]) -> bytes:
    """The ELF header and the program headers, as at the start of a file."""
    parts = [form.header.pack(*(getattr(header, name) for name in Header.__slots__))]
    for segment in segments:
        parts.append(form.segment.pack(*(getattr(segment, name) for name in form.segment_fields)))
    return b"".join(parts)


def _move_sections(data: bytearray, elf: Layout, by: int) -> None:
    """Add `by` to every section header's sh_offset."""
    form = elf.format
    for at in elf.sections:
        fields = list(form.section.unpack_from(data, at))
        if fields[SECTION_TYPE_FIELD] == SHT_NULL:
            continue
        fields[SECTION_OFFSET_FIELD] += by
        form.section.pack_into(data, at, *fields)


def _align_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _alignment(segments: Sequence[ElfSegment]) -> int:
    """The original moves by a multiple of this, so that every p_offset stays congruent to p_vaddr."""
    alignments = [segment.align for segment in segments if segment.type == PT_LOAD]
    for alignment in alignments:
        if alignment > LARGEST_ALIGNMENT or alignment & (alignment - 1):
            raise BadLibrary("program headers", f"a load segment's alignment is {alignment:#x}")
    return max([signed_library.HASH_ALIGN, *alignments])
