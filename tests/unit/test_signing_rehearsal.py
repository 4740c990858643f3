"""A rehearsal's files, compared with a second reading of docs/signing-format.md."""

from __future__ import annotations

import struct

import pytest
from cryptography import x509

from ci.signing import elf, signatures, signed_library, verification
from ci.signing.elf import Malformed
from ci.signing.lpai import rehearsal
from provisioning.base.errors import UsageError
from tests.support import chains
from tests.support.mbn import expected_hashes, take_apart
from tests.support.skels import Skel


@pytest.mark.parametrize("bits", [32, 64])
def test_headers_and_hashes_are_those_of_the_definition_and_the_program_is_the_same(bits: int) -> None:
    library = Skel(bits=bits).encode()
    data = rehearsal.sign(library, chains.signer())
    head, table = take_apart(data).segments[:2]
    size = {32: 52 + 7 * 32, 64: 64 + 7 * 56}[bits]
    assert head == (0, 0x7000000, 0, size)
    assert (table[:2], table[2] % 0x1000) == ((0, 0x2200000), 0)
    assert take_apart(data).hashes == expected_hashes(data)
    assert signed_library.differences(library, data) == []
    loads = [s for s in elf.parse(data).segments if s.type == elf.PT_LOAD]
    assert [s.offset % s.align for s in loads] == [s.vaddr % s.align for s in loads]


@pytest.mark.parametrize("bits", [32, 64])
def test_sections_move_with_the_file(bits: int) -> None:
    library = Skel(bits=bits).encode()
    data = rehearsal.sign(library, chains.signer())
    form, before, after = elf.parse(data).format, elf.parse(library), elf.parse(data)
    shift = after.header.shoff - before.header.shoff
    for index in range(1, before.header.shnum):
        old = form.section.unpack_from(library, before.header.shoff + index * form.section.size)
        new = form.section.unpack_from(data, after.header.shoff + index * form.section.size)
        assert new == (*old[:4], old[4] + shift, *old[5:])


def test_the_metadata_says_what_it_is_and_for_which_devices() -> None:
    metadata = take_apart(rehearsal.sign(Skel().encode(), chains.signer(), (0xA1, 0xB2))).metadata
    assert metadata[120:].rstrip(b"\0").decode() == signatures.STATEMENT
    numbers = struct.unpack_from("<30I", metadata)
    assert (numbers[2], numbers[3], numbers[20:22]) == (4, 0, (0xA1, 0xB2))


def test_the_chain_is_attestation_first_root_last_padded_with_ff() -> None:
    data = rehearsal.sign(Skel(sections=False).encode(), chains.signer())
    apart = take_apart(data)
    chain = [x509.load_der_x509_certificate(der) for der in apart.certificates]
    assert chain == list(chains.signer().chain)
    _, _, start, size = apart.segments[1]
    assert data[start : start + size].rpartition(apart.certificates[-1])[2].strip(b"\xff") == b""


def test_signing_twice_is_refused() -> None:
    data = rehearsal.sign(Skel().encode(), chains.signer())
    with pytest.raises(UsageError, match="signed already"):
        rehearsal.sign(data, chains.signer())


def test_what_cannot_be_moved_without_changing_it_is_refused() -> None:
    with pytest.raises(Malformed, match="inside a segment"):
        rehearsal.sign(Skel(section_table_inside=True).encode(), chains.signer())
    for alignment in (3, 1 << 31):
        library = bytearray(Skel().encode())
        struct.pack_into("<I", library, 52 + 28, alignment)
        with pytest.raises(Malformed, match="alignment"):
            rehearsal.sign(bytes(library), chains.signer())


def test_a_test_signature_is_carried_by_the_smallest_library() -> None:
    data = rehearsal.sign(rehearsal.carrier_library(81, (0x1A2B,)), chains.signer(), (0x1A2B,))
    expected = verification.Expected(root=chains.signer().root, serial=0x1A2B)
    assert verification.verify(data, expected).verdict() == "verified"
    assert elf.parse(data).arch == 81
