"""The development signer: a standard hash segment (MBN v6) under a root that only you provision.

Retail devices never accept it. What is signed and how is defined in docs/signing.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ci.signing import chain, elf, image, mbn, scheme
from ci.signing.elf import Bytes, Elf, Header, Malformed, Segment
from ci.signing.keys import Identity
from provisioning.base.errors import CheckFailed, UsageError

SOFTWARE_IDS = {"adsp": 0x04, "cdsp": 0x17, "slpi": 0x18}


@dataclass(frozen=True, slots=True)
class Binding:
    """What the signature is for."""

    software_id: int = SOFTWARE_IDS["adsp"]
    hardware_id: int = 0
    serials: tuple[int, ...] = ()
    """Up to 8 devices; none: any device with the root."""
    anti_rollback: int = 0


class AlreadySigned(UsageError):
    """Signing a signed library would wrap one signature in another."""

    def __init__(self) -> None:
        super().__init__("it is signed already", remedy="add --replace to put a new signature in its place")


def sign(data: Bytes, identity: Identity, binding: Binding, *, replace_old: bool = False) -> bytes:
    """The signed library. Raises Malformed, AlreadySigned or what the identity's signer raises."""
    data = original(data, replace_old=replace_old)
    parsed = elf.parse(data)
    if parsed.header.phnum + image.SIGNING_HEADERS > elf.MOST_SEGMENTS:
        raise Malformed("program headers", f"no room for two more beside {parsed.header.phnum}")
    certificates = chain.join(identity.chain)
    metadata = mbn.Metadata(
        software_id=binding.software_id,
        hardware_id=binding.hardware_id,
        serials=binding.serials,
        anti_rollback=binding.anti_rollback,
        note=scheme.STATEMENT,
    ).pack()
    entries = len(parsed.segments) + image.SIGNING_HEADERS
    hashes_size = entries * hashlib.new(scheme.DIGEST).digest_size
    blob_size = 4 * 12 + len(metadata) + hashes_size + identity.scheme.size + len(certificates)
    head, shift, start = _new_head(parsed, blob_size)
    digests = [
        hashlib.new(scheme.DIGEST, head).digest(),
        bytes(hashlib.new(scheme.DIGEST).digest_size),
        *image.segment_digests(data, parsed, scheme.DIGEST),
    ]
    signed = mbn.v6_signed_part(metadata, b"".join(digests), identity.scheme.size, len(certificates))
    signature = identity.sign(hashlib.new(scheme.DIGEST, signed).digest())
    if len(signature) != identity.scheme.size:
        raise CheckFailed(
            f"the signer gave {len(signature)} bytes, {identity.scheme.name} has {identity.scheme.size}",
            remedy="see the signing command's protocol in docs/signing.md",
        )
    body = bytearray(data)
    elf.shift_sections(body, parsed.format, parsed.header, shift)
    blob = signed + signature + certificates
    return b"".join((head, bytes(start - len(head)), blob, bytes(shift - start - len(blob)), bytes(body)))


def original(data: Bytes, *, replace_old: bool = True) -> Bytes:
    """The library as it was before signing; itself when it is unsigned.

    Our layout keeps the whole file behind the hash segment, so that the original comes back bit for bit.
    """
    parsed, signed = image.parse(data)
    if signed is None:
        _check_section_table(data, parsed)
        return data
    if not replace_old:
        raise AlreadySigned
    kept = tuple(
        s for s in parsed.segments if not image.is_hash_segment(s) and not image.is_head_placeholder(s)
    )
    shift = elf.align_up(signed.hash_segment.end, _alignment(kept))
    body = bytearray(data[shift:])
    try:
        inner = elf.parse(body)
        if inner.segments != tuple(s.moved(-shift) for s in kept):
            raise Malformed("program headers", "they differ from the original's")
        elf.shift_sections(body, inner.format, inner.header, -shift)
    except Malformed as error:
        raise UsageError(
            "its signature cannot be replaced cleanly: the original is not kept whole behind it",
            remedy="sign the unsigned original instead",
        ) from error
    return bytes(body)


def test_library(arch: int, serials: Sequence[int]) -> bytes:
    """The smallest Hexagon library, to carry a signature that is bound to a device and nothing else."""
    head = elf.ELF32.header.size + elf.ELF32.segment.size
    content = "".join(f"testsig 0x{serial:08x}\n" for serial in serials).encode()
    header = Header(
        ident=b"\x7fELF\x01\x01\x01".ljust(16, b"\0"),
        type=3,
        machine=elf.EM_HEXAGON,
        version=1,
        entry=0,
        phoff=elf.ELF32.header.size,
        shoff=0,
        flags=int(str(arch), 16),
        ehsize=elf.ELF32.header.size,
        phentsize=elf.ELF32.segment.size,
        phnum=1,
        shentsize=0,
        shnum=0,
        shstrndx=0,
    )
    size = head + len(content)
    load = Segment(elf.PT_LOAD, 0, 0, 0, size, size, 4, image.HASH_ALIGN)
    return elf.pack_head(elf.ELF32, header, (load,)) + content


def _new_head(parsed: Elf, blob_size: int) -> tuple[bytes, int, int]:
    """(ELF header and program headers, how far the original moves, where the hash segment begins)."""
    form = parsed.format
    count = len(parsed.segments) + image.SIGNING_HEADERS
    head_size = form.header.size + count * form.segment.size
    start = elf.align_up(head_size, image.HASH_ALIGN)
    shift = elf.align_up(start + blob_size, _alignment(parsed.segments))
    loaded = [s.paddr + s.memsz for s in parsed.segments if s.type == elf.PT_LOAD]
    address = elf.align_up(max(loaded, default=0), image.HASH_ALIGN)
    signing = (
        Segment(elf.PT_NULL, 0, 0, 0, head_size, 0, image.HEAD_FLAGS, 0),
        Segment(
            elf.PT_NULL,
            start,
            address,
            address,
            blob_size,
            elf.align_up(blob_size, image.HASH_ALIGN),
            image.HASH_FLAGS,
            image.HASH_ALIGN,
        ),
    )
    header = replace(
        parsed.header,
        phoff=form.header.size,
        phnum=count,
        shoff=parsed.header.shoff + shift if parsed.header.shoff else 0,
    )
    if header.shoff > form.most:
        raise Malformed("ELF header", "e_shoff becomes too large for its class")
    return elf.pack_head(form, header, (*signing, *(s.moved(shift) for s in parsed.segments))), shift, start


def _alignment(segments: Sequence[Segment]) -> int:
    """What the original must move by a multiple of, so that every p_offset stays congruent to p_vaddr."""
    alignments = [s.align for s in segments if s.type == elf.PT_LOAD]
    for alignment in alignments:
        if alignment > 1 << 20 or alignment & (alignment - 1):
            raise Malformed("program headers", f"a load segment's alignment is {alignment:#x}")
    return max(image.HASH_ALIGN, *alignments)


def _check_section_table(data: Bytes, parsed: Elf) -> None:
    start, end = elf.section_table(data, parsed)
    if any(s.filesz and s.offset < end and start < s.end for s in parsed.segments):
        raise Malformed(
            "section headers", "they lie inside a segment, so they cannot move without changing it"
        )
