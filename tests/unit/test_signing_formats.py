"""ELF structure and MBN containers that may hold anything, and the files of a rehearsal."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from ci.signing import mbn, signed_library, signed_writer
from ci.signing.elf_headers import PT_LOAD, BadLibrary
from tests.support import chains
from tests.support.mbn import container, expected_hashes, take_apart
from tests.support.skels import Skel

PARTS = {"hashes": b"H" * 96, "signature": b"S" * 96, "certificates": b"C" * 32}
QTI = {"qti_signature": b"s" * 10, "qti_certificates": b"c" * 20}
METADATA = {"qti_metadata": b"q" * 120, "metadata": b"m" * 124}
NAMES = {
    "hashes": mbn.HASHES,
    "signature": mbn.SIGNATURE,
    "certificates": mbn.CERTIFICATES,
    "qti_signature": mbn.QTI_SIGNATURE,
    "qti_certificates": mbn.QTI_CERTIFICATES,
    "qti_metadata": mbn.QTI_METADATA,
    "metadata": mbn.METADATA,
}


@pytest.mark.parametrize(
    ("version", "digest", "parts"),
    [
        (6, "sha384", PARTS | QTI | METADATA),
        (7, "sha384", PARTS | QTI | METADATA),
    ],
)
def test_each_container_version_has_its_parts_and_digest(
    version: int, digest: str, parts: dict[str, bytes]
) -> None:
    blob = container(version, **parts)
    parsed = mbn.parse(blob)
    content = {name: blob[(p := parsed.part(NAMES[name])).start : p.end] for name in parts}
    assert (content, parsed.problems, parsed.version, parsed.digest) == (parts, (), version, digest)


def test_sizes_that_contradict_each_other_are_problems() -> None:
    blob = bytearray(container(6, **PARTS))
    struct.pack_into("<I", blob, 16, 7)
    assert "says 7 bytes" in mbn.parse(bytes(blob)).problems[0]
    assert "4 bytes after the last part" in mbn.parse(container(7, **PARTS) + b"abcd").problems[0]


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        *((struct.pack("<2I", 0, n) + bytes(100), "version") for n in (0, 3, 5, 8, 0xFFFFFFFF)),
        *((container(n, **PARTS)[:-1], "certificates") for n in (6, 7)),
        (container(6)[:47], "48"),
    ],
)
def test_a_container_that_is_none_or_cut_short_is_refused(blob: bytes, words: str) -> None:
    with pytest.raises(BadLibrary, match=words):
        mbn.parse(blob)


def test_metadata_has_the_public_layout() -> None:
    packed = mbn.Metadata(
        software_id=4, soc_versions=(9, 10), serials=(0xAB,), anti_rollback=3, note="n"
    ).pack()
    numbers = struct.unpack_from("<30I", packed)
    assert (numbers[2], numbers[8:10], numbers[20], numbers[29]) == (4, (9, 10), 0xAB, 3)
    read = mbn.parse_metadata(packed)
    assert (read.serials, read.soc_versions, read.anti_rollback, read.note) == ((0xAB,), (9, 10), 3, "n")
    with pytest.raises(BadLibrary, match="120"):
        mbn.parse_metadata(packed[:119])
    full = mbn.Metadata(soc_versions=(*range(1, 13),), serials=(*range(20, 28),))
    assert struct.unpack_from("<30I", full.pack())[8:28] == (*range(1, 13), *range(20, 28))
    for more in (replace(full, soc_versions=(1,) * 13), replace(full, serials=(1,) * 9)):
        with pytest.raises(ValueError, match="at most"):
            more.pack()


@pytest.mark.parametrize("bits", [32, 64])
def test_headers_and_hashes_are_those_of_the_definition_and_the_program_is_the_same(bits: int) -> None:
    library = Skel(bits=bits).encode()
    data = signed_writer.sign_library(library, chains.signer())
    head, table = take_apart(data).segments[:2]
    size = {32: 52 + 7 * 32, 64: 64 + 7 * 56}[bits]
    assert head == (0, 0x7000000, 0, size)
    assert (table[:2], table[2] % 0x1000) == ((0, 0x2200000), 0)
    assert take_apart(data).hashes == expected_hashes(data)
    assert signed_library.differences(library, data) == []
    loads = [s for s in signed_library.layout_of(data).segments if s.type == PT_LOAD]
    assert [s.offset % s.align for s in loads] == [s.vaddr % s.align for s in loads]


def test_what_cannot_be_moved_without_changing_it_is_refused() -> None:
    with pytest.raises(BadLibrary, match="segment"):
        signed_writer.sign_library(Skel(section_table_inside=True).encode(), chains.signer())
    for alignment in (3, 1 << 31):
        library = bytearray(Skel().encode())
        struct.pack_into("<I", library, 52 + 28, alignment)
        with pytest.raises(BadLibrary, match="alignment"):
            signed_writer.sign_library(bytes(library), chains.signer())


def test_a_library_that_ends_at_the_end_of_its_addresses_is_refused() -> None:
    """The hash segment would lie behind it."""
    library = bytearray(Skel().encode())
    struct.pack_into("<I", library, 52 + 12, 0xFFFFF000)
    with pytest.raises(BadLibrary, match="32 bits"):
        signed_writer.sign_library(bytes(library), chains.signer())
