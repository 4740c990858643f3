"""Signed libraries read and written straight from docs/signing.md, with nothing of ci.signing.

Tests compare the product with this second opinion.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Apart:
    signed: bytes
    """What the signature is over."""
    signature: bytes
    certificates: list[bytes]
    metadata: bytes
    hashes: list[bytes]
    segments: list[tuple[int, int, int, int]]
    """(p_type, p_flags, p_offset, p_filesz) of every program header."""
    hash_segment_at: int


def take_apart(data: bytes) -> Apart:
    wide = data[4] == 2
    phoff = struct.unpack_from("<Q" if wide else "<I", data, 32 if wide else 28)[0]
    size, count = struct.unpack_from("<HH", data, 54 if wide else 42)
    segments = []
    for index in range(count):
        at = phoff + index * size
        if wide:
            kind, flags, offset, _, _, filesz = struct.unpack_from("<IIQQQQ", data, at)
        else:
            kind, offset, _, _, filesz, _, flags = struct.unpack_from("<7I", data, at)
        segments.append((kind, flags, offset, filesz))
    _, _, start, length = segments[1]
    blob = data[start : start + length]
    numbers = struct.unpack_from("<12I", blob)
    hashes_size, signature_size, certificates_size, metadata_size = (
        numbers[5],
        numbers[7],
        numbers[9],
        numbers[11],
    )
    hashes_at = 48 + metadata_size
    signed_end = hashes_at + hashes_size
    table = blob[hashes_at:signed_end]
    area = blob[signed_end + signature_size : signed_end + signature_size + certificates_size]
    certificates = []
    while area and area[0] == 0x30:
        taken = 4 + struct.unpack_from(">H", area, 2)[0]
        certificates.append(area[:taken])
        area = area[taken:]
    return Apart(
        signed=blob[:signed_end],
        signature=blob[signed_end : signed_end + signature_size],
        certificates=certificates,
        metadata=blob[48:hashes_at],
        hashes=[table[at : at + 48] for at in range(0, len(table), 48)],
        segments=segments,
        hash_segment_at=start,
    )


def expected_hashes(data: bytes) -> list[bytes]:
    """Every entry of the hash table, computed from the file by the definition."""
    hashes = []
    for index, (_, _, offset, filesz) in enumerate(take_apart(data).segments):
        covered = index != 1 and filesz
        hashes.append(hashlib.sha384(data[offset : offset + filesz]).digest() if covered else bytes(48))
    return hashes


def container(version: int, **parts: bytes) -> bytes:
    """An MBN container of any version, its parts given by name; absent ones are empty."""
    get = parts.get
    hashes, signature, certificates = get("hashes", b""), get("signature", b""), get("certificates", b"")
    qti_signature, qti_certificates = get("qti_signature", b""), get("qti_certificates", b"")
    qti_metadata, metadata = get("qti_metadata", b""), get("metadata", b"")
    own = (len(signature), len(certificates))
    tail = hashes + qti_signature + qti_certificates + signature + certificates
    body = qti_metadata + metadata + tail
    if version == 7:
        common = struct.pack("<6I", 0, 0, 0x17, 0, 3, 0)
        sizes = (
            24,
            len(qti_metadata),
            len(metadata),
            len(hashes),
            len(qti_signature),
            len(qti_certificates),
            *own,
        )
        return struct.pack("<10I", 0, 7, *sizes) + common + body
    none = 0xFFFFFFFF
    numbers = [0, version, len(qti_signature), len(qti_certificates), len(body), len(hashes)]
    numbers += [none, own[0], none, own[1], len(qti_metadata), len(metadata)]
    return struct.pack("<12I", *numbers) + body


def signed_file(library: bytes, version: int, *, digest: str, **parts: bytes) -> bytes:
    """A 32-bit library with a hash segment of any version; `hashes` is computed unless given."""
    (count,) = struct.unpack_from("<H", library, 44)
    size = hashlib.new(digest).digest_size
    shift = 0x4000
    head_size = 52 + 32 * (count + 2)
    blank = {**parts, "hashes": bytes(size * (count + 2))}
    length = len(container(version, **blank))
    headers = [struct.unpack_from("<8I", library, 52 + 32 * index) for index in range(count)]
    moved = [(kind, offset + shift, *rest) for kind, offset, *rest in headers]
    signing = [
        (0, 0, 0, 0, head_size, 0, 0x7000000, 0),
        (0, 0x1000, 0x9000, 0x9000, length, 0x3000, 0x2200000, 0x1000),
    ]
    head = bytearray(library[:52])
    struct.pack_into("<I", head, 32, 0)
    struct.pack_into("<HHHH", head, 44, count + 2, 0, 0, 0)
    head += b"".join(struct.pack("<8I", *numbers) for numbers in signing + moved)
    whole = bytes(head).ljust(0x1000, b"\0") + bytes(shift - 0x1000) + library
    table = [hashlib.new(digest, bytes(head)).digest(), bytes(size)]
    for _, offset, _, _, filesz, *_ in moved:
        table.append(hashlib.new(digest, whole[offset : offset + filesz]).digest() if filesz else bytes(size))
    blob = container(version, **{"hashes": b"".join(table), **parts})
    return whole[:0x1000] + blob + whole[0x1000 + len(blob) :]
