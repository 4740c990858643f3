"""ELF structure and MBN containers that may hold anything, and the files of a rehearsal."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.signing import lpai_signers, mbn, signed_library
from ci.signing.headers import PT_LOAD, BadLibrary
from tests.support import chains
from tests.support.mbn import container, expected_hashes, take_apart
from tests.support.skels import Skel

SMALL = Skel(content=b"x").encode()


def patched(offset: int, form: str, value: int) -> bytes:
    changed = bytearray(SMALL)
    struct.pack_into(form, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("data", "part", "words"),
    [
        (b"", "file", "empty"),
        (SMALL[:19], "ELF header", "byte 19"),
        (patched(44, "<H", 0xFFFF), "program headers", "limit"),
        (patched(52 + 16, "<I", 0xFFFFFFFF), "program header 0", "ends at byte"),
        (patched(52 + 20, "<I", 1), "program header 0", "larger in the file"),
        (patched(52 + 32 + 4, "<I", 0), "program headers", "share the bytes"),
    ],
)
def test_numbers_that_contradict_the_file_are_named(data: bytes, part: str, words: str) -> None:
    with pytest.raises(BadLibrary) as caught:
        signed_library.layout_of(data)
    assert (caught.value.part, words in caught.value.reason) == (part, True)


def test_many_headers_over_the_whole_file_are_refused_before_any_hashing() -> None:
    count = 400
    header = bytearray(SMALL[:52])
    struct.pack_into("<I", header, 32, 0)
    struct.pack_into("<H", header, 44, count)
    size = 52 + 32 * count
    with pytest.raises(BadLibrary):
        signed_library.layout_of(bytes(header) + struct.pack("<8I", 6, 0, 0, 0, size, size, 4, 4) * count)


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


@given(st.binary(max_size=600), st.sampled_from([6, 7]))
def test_random_bytes_are_read_or_refused_and_never_crash(tail: bytes, version: int) -> None:
    for data in (tail, SMALL[:16] + tail, SMALL[:52] + tail):
        try:
            parsed, _ = signed_library.parse(data)
        except BadLibrary:
            continue
        assert all(segment.end <= len(data) for segment in parsed.segments if segment.filesz)
    blob = struct.pack("<2I", 0, version) + tail
    try:
        parts = mbn.parse(blob).parts
    except BadLibrary:
        return
    assert all(0 <= part.start <= part.end <= len(blob) for part in parts)


@pytest.mark.parametrize("bits", [32, 64])
def test_headers_and_hashes_are_those_of_the_definition_and_the_program_is_the_same(bits: int) -> None:
    library = Skel(bits=bits).encode()
    data = lpai_signers.rehearse(library, chains.signer())
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
        lpai_signers.rehearse(Skel(section_table_inside=True).encode(), chains.signer())
    for alignment in (3, 1 << 31):
        library = bytearray(Skel().encode())
        struct.pack_into("<I", library, 52 + 28, alignment)
        with pytest.raises(BadLibrary, match="alignment"):
            lpai_signers.rehearse(bytes(library), chains.signer())
