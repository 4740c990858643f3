"""A rehearsal's files, compared with a second reading of docs/signing-format.md."""

from __future__ import annotations

import struct

import pytest

from ci.signing import elf, signed_library
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
