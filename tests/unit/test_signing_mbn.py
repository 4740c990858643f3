"""MBN containers: each version's parts, and sizes that contradict each other."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.signing import mbn
from ci.signing.elf import Malformed
from tests.support.mbn import container

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
    ("version", "parts"),
    [(3, PARTS), (5, PARTS | QTI), (6, PARTS | QTI | METADATA), (7, PARTS | QTI | METADATA)],
)
def test_every_part_is_found_where_its_version_puts_it(version: int, parts: dict[str, bytes]) -> None:
    blob = container(version, **parts)
    parsed = mbn.parse(blob)
    found = {name: blob[(p := parsed.part(NAMES[name])).start : p.end] for name in parts}
    assert (found, parsed.problems, parsed.version) == (parts, (), version)


@pytest.mark.parametrize(("version", "digest"), [(3, "sha256"), (5, "sha256"), (6, "sha384"), (7, "sha384")])
def test_the_version_names_the_hash_algorithm(version: int, digest: str) -> None:
    assert mbn.parse(container(version, **PARTS)).digest == digest


def test_an_algorithm_that_is_not_public_is_not_guessed() -> None:
    blob = bytearray(container(7, **PARTS))
    struct.pack_into("<I", blob, 40 + 16, 9)
    assert mbn.parse(bytes(blob)).digest is None


def test_a_total_that_does_not_add_up_is_a_problem() -> None:
    blob = bytearray(container(6, **PARTS))
    struct.pack_into("<I", blob, 16, 7)
    assert "says 7 bytes" in mbn.parse(bytes(blob)).problems[0]


def test_bytes_after_the_last_part_are_a_problem() -> None:
    assert "4 bytes after the last part" in mbn.parse(container(5, **PARTS) + b"abcd").problems[0]


@pytest.mark.parametrize("version", [0, 4, 8, 0xFFFFFFFF])
def test_an_unknown_version_is_refused(version: int) -> None:
    with pytest.raises(Malformed, match="version: expected 3, 5, 6 or 7"):
        mbn.parse(struct.pack("<2I", 0, version) + bytes(100))


@pytest.mark.parametrize("version", [3, 5, 6, 7])
def test_a_part_beyond_the_segment_is_named(version: int) -> None:
    with pytest.raises(Malformed) as caught:
        mbn.parse(container(version, **PARTS)[:-1])
    assert caught.value.part == mbn.CERTIFICATES


def test_a_header_that_is_cut_off_is_refused() -> None:
    with pytest.raises(Malformed, match="needs 48 bytes"):
        mbn.parse(container(6)[:47])


def test_metadata_survives_writing_and_reading() -> None:
    metadata = mbn.Metadata(
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        soc_versions=(9, 10),
        serials=(11, 12),
        root_index=13,
        anti_rollback=14,
        note="n",
    )
    packed = metadata.pack()
    assert (mbn.parse_metadata(packed), len(packed)) == (metadata, mbn.METADATA_SIZE + 4)


def test_metadata_has_the_public_layout() -> None:
    packed = mbn.Metadata(software_id=4, serials=(0xAB,), anti_rollback=3).pack()
    numbers = struct.unpack("<30I", packed)
    assert (numbers[2], numbers[20], numbers[29]) == (4, 0xAB, 3)


def test_short_metadata_is_refused() -> None:
    with pytest.raises(Malformed, match="at least 120"):
        mbn.parse_metadata(bytes(119))


@given(st.binary(max_size=200), st.sampled_from([3, 5, 6, 7]))
@settings(max_examples=200, deadline=None)
def test_random_headers_give_parts_within_the_segment_or_are_refused(tail: bytes, version: int) -> None:
    blob = struct.pack("<2I", 0, version) + tail
    try:
        parsed = mbn.parse(blob)
    except Malformed:
        return
    assert all(0 <= part.start <= part.end <= len(blob) for part in parsed.parts)
