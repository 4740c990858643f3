"""The development signer's files, compared with a second reading of docs/signing.md."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from cryptography import x509

from ci.signing import development, elf, image, scheme, verification
from ci.signing.development import AlreadySigned, Binding
from ci.signing.elf import Malformed
from provisioning.base.errors import CheckFailed, UsageError
from tests.support import chains
from tests.support.mbn import expected_hashes, signed_file, take_apart
from tests.support.skels import Skel

LIBRARY = Skel().encode()


def signed(library: bytes = LIBRARY, binding: Binding | None = None, algorithm: str = "ec") -> bytes:
    return development.sign(library, chains.identity(algorithm), binding or Binding())


@pytest.mark.parametrize("bits", [32, 64])
def test_the_two_signing_headers_are_the_public_ones(bits: int) -> None:
    data = signed(Skel(bits=bits).encode())
    head, table = take_apart(data).segments[:2]
    size = {32: 52 + 7 * 32, 64: 64 + 7 * 56}[bits]
    assert head == (0, 0x7000000, 0, size)
    assert table[:2] == (0, 0x2200000)
    assert table[2] % 0x1000 == 0


@pytest.mark.parametrize("bits", [32, 64])
def test_the_hash_table_is_the_one_the_definition_gives(bits: int) -> None:
    data = signed(Skel(bits=bits).encode())
    assert take_apart(data).hashes == expected_hashes(data)


@pytest.mark.parametrize("bits", [32, 64])
def test_the_program_is_the_same(bits: int) -> None:
    library = Skel(bits=bits).encode()
    assert image.differences(library, signed(library)) == []


def test_offsets_stay_congruent_to_addresses() -> None:
    loads = [s for s in elf.parse(signed()).segments if s.type == elf.PT_LOAD]
    assert [s.offset % s.align for s in loads] == [s.vaddr % s.align for s in loads]


@pytest.mark.parametrize("bits", [32, 64])
def test_sections_move_with_the_file(bits: int) -> None:
    library = Skel(bits=bits).encode()
    data = signed(library)
    form, before, after = elf.parse(data).format, elf.parse(library), elf.parse(data)
    shift = after.header.shoff - before.header.shoff
    for index in range(1, before.header.shnum):
        old = form.section.unpack_from(library, before.header.shoff + index * form.section.size)
        new = form.section.unpack_from(data, after.header.shoff + index * form.section.size)
        assert new == (*old[:4], old[4] + shift, *old[5:])


def test_a_library_without_sections_can_be_signed() -> None:
    library = Skel(sections=False).encode()
    assert development.original(signed(library)) == library


def test_sections_inside_a_segment_are_refused_because_moving_them_would_change_it() -> None:
    with pytest.raises(Malformed, match="inside a segment"):
        signed(Skel(section_table_inside=True).encode())


def test_the_metadata_says_what_the_signature_is_worth() -> None:
    assert take_apart(signed()).metadata[120:].rstrip(b"\0").decode() == scheme.STATEMENT
    assert "retail devices never accept it" in scheme.STATEMENT


def test_the_metadata_binds_what_was_asked() -> None:
    binding = Binding(software_id=0x17, hardware_id=0x99, serials=(0xA1, 0xB2), anti_rollback=7)
    numbers = struct.unpack_from("<30I", take_apart(signed(binding=binding)).metadata)
    assert (numbers[2], numbers[3], numbers[20:22], numbers[29]) == (0x17, 0x99, (0xA1, 0xB2), 7)


def test_the_chain_is_attestation_first_root_last_padded_with_ff() -> None:
    data = signed()
    subjects = [x509.load_der_x509_certificate(c).subject for c in take_apart(data).certificates]
    assert subjects == [c.subject for c in chains.identity().chain]
    _, _, start, size = take_apart(data).segments[1]
    last = take_apart(data).certificates[-1]
    assert data[start : start + size].rpartition(last)[2].strip(b"\xff") == b""


@pytest.mark.parametrize("algorithm", ["ec", "rsa"])
def test_signing_is_deterministic_with_a_key_of_our_own(algorithm: str) -> None:
    assert signed(algorithm=algorithm) == signed(algorithm=algorithm)


def test_signing_twice_is_refused() -> None:
    with pytest.raises(AlreadySigned, match="signed already") as caught:
        signed(signed())
    assert "--replace" in caught.value.remedy


def test_replacing_gives_what_signing_the_original_gives() -> None:
    other = development.sign(LIBRARY, chains.identity("rsa"), Binding(software_id=0x18))
    again = development.sign(other, chains.identity(), Binding(), replace_old=True)
    assert again == signed()


def test_the_original_comes_back_bit_for_bit() -> None:
    assert development.original(signed()) == LIBRARY


def test_a_foreign_layout_is_not_replaced() -> None:
    library = Skel(sections=False).encode()
    foreign = signed_file(library, 6, digest="sha384", certificates=b"x" * 100)
    with pytest.raises(UsageError, match="cannot be replaced cleanly"):
        development.original(foreign)


def test_a_signer_that_gives_another_size_is_refused() -> None:
    identity = replace(chains.identity(), sign=lambda digest: b"short")
    with pytest.raises(CheckFailed, match="the signer gave 5 bytes"):
        development.sign(LIBRARY, identity, Binding())


def test_a_test_library_is_the_smallest_one_that_names_its_device() -> None:
    library = development.test_library(81, (0x1A2B3C4D,))
    data = signed(library, Binding(serials=(0x1A2B3C4D,)))
    expected = verification.Expected(root=chains.identity().root, serial=0x1A2B3C4D)
    assert verification.verify(data, expected).verdict() == "verified"
    assert elf.parse(data).arch == 81


@pytest.mark.parametrize("alignment", [3, 1 << 31])
def test_an_alignment_that_is_none_is_refused(alignment: int) -> None:
    library = bytearray(LIBRARY)
    struct.pack_into("<I", library, 52 + 28, alignment)
    with pytest.raises(Malformed, match="alignment"):
        signed(bytes(library))
