"""Reading the structure of ELF files that may be anything."""

from __future__ import annotations

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci.signing import elf, image
from ci.signing.elf import Malformed
from tests.support.skels import Skel

SMALL = Skel(content=b"x").encode()


def patched(offset: int, form: str, value: int, data: bytes = SMALL) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize("bits", [32, 64])
def test_both_classes_are_read(bits: int) -> None:
    parsed = elf.parse(Skel(bits=bits, arch=81).encode())
    assert (parsed.format.bits, parsed.arch, len(parsed.segments)) == (bits, 81, 5)


@pytest.mark.parametrize("bits", [32, 64])
def test_what_is_read_is_what_is_written(bits: int) -> None:
    data = Skel(bits=bits).encode()
    parsed = elf.parse(data)
    packed = elf.pack_head(parsed.format, parsed.header, parsed.segments)
    assert packed == data[: parsed.head_size]


@pytest.mark.parametrize(
    ("data", "part", "words"),
    [
        (b"", "file", "empty"),
        (b"MZ" + bytes(100), "file", "not an ELF"),
        (SMALL[:19], "ELF header", "ends after 19"),
        (SMALL[:40], "ELF header", "needs 52"),
        (patched(4, "<B", 3), "ELF header", "class"),
        (patched(5, "<B", 2), "ELF header", "byte order"),
        (patched(40, "<H", 64), "ELF header", "e_ehsize"),
        (patched(42, "<H", 56), "ELF header", "e_phentsize"),
        (patched(44, "<H", 0), "program headers", "none"),
        (patched(44, "<H", 0xFFFF), "program headers", "limit"),
        (patched(28, "<I", 0xFFFFFFF0), "program headers", "of a file of"),
        (patched(28, "<I", 4), "program headers", "of a file of"),
        (patched(52 + 16, "<I", 0xFFFFFFFF), "program header 0", "ends at byte"),
        (patched(52 + 4, "<I", 0xFFFFFFFF), "program header 0", "ends at byte"),
        (patched(52 + 20, "<I", 1), "program header 0", "larger in the file"),
        (patched(52 + 32 + 4, "<I", 0), "program headers", "share the bytes"),
    ],
)
def test_numbers_that_lie_are_named(data: bytes, part: str, words: str) -> None:
    with pytest.raises(Malformed) as caught:
        elf.parse(data)
    assert (caught.value.part, words in caught.value.reason) == (part, True)


def test_many_headers_over_the_whole_file_are_refused_before_any_hashing() -> None:
    count = 400
    header = bytearray(SMALL[:52])
    struct.pack_into("<I", header, 32, 0)
    struct.pack_into("<H", header, 44, count)
    size = 52 + 32 * count
    with pytest.raises(Malformed, match="times the file"):
        elf.parse(bytes(header) + struct.pack("<8I", 6, 0, 0, 0, size, size, 4, 4) * count)


@given(st.binary(max_size=600))
@settings(max_examples=150, deadline=None)
def test_random_bytes_are_refused_and_never_crash(tail: bytes) -> None:
    for data in (tail, SMALL[:16] + tail, SMALL[:52] + tail):
        try:
            image.parse(data)
        except Malformed:
            continue


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_changed_head_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL)
    for at, value in changes:
        data[at] = value
    try:
        parsed = elf.parse(data)
    except Malformed:
        return
    assert all(segment.end <= len(data) for segment in parsed.segments if segment.filesz)
