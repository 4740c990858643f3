"""Signing the real Hexagon skels of the wheels profile: V68 to V81, 70 MB."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from ci.signing import elf, inspection, signed_library, verification
from ci.signing.checks import Expected
from ci.signing.lpai import rehearsal
from tests.support import chains, sdk
from tests.support.needs import program

pytestmark = pytest.mark.heavy

ROOT_ONLY = Expected(root=chains.signer().root)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    """Every skel and its signed copy."""
    directory = tmp_path_factory.mktemp("signed")
    pairs = []
    for skel in sdk.skels():
        place = directory / skel.name
        with signed_library.mapped(skel) as data:
            place.write_bytes(rehearsal.sign(data, chains.signer()))
        pairs.append((skel, place))
    return pairs


def test_the_profile_has_the_six_skels(signed: list[tuple[Path, Path]]) -> None:
    arches = [int(re.sub(r"\D", "", skel.name)) for skel, _ in signed]
    assert arches == [68, 69, 73, 75, 79, 81]


def test_each_is_verified_and_inspected(signed: list[tuple[Path, Path]]) -> None:
    for skel, place in signed:
        one = inspection.inspect(place)
        assert verification.verify_file(place, ROOT_ONLY).verdict() == "verified"
        assert (one.kind, one.mbn_version, f"V{one.arch}Skel" in skel.name) == (
            "development rehearsal",
            6,
            True,
        )


@pytest.mark.whole
def test_pyelftools_sees_the_same_program(signed: list[tuple[Path, Path]]) -> None:
    for skel, place in signed:
        with skel.open("rb") as before, place.open("rb") as after:
            assert what_pyelftools_sees(ELFFile(before), 0) == what_pyelftools_sees(ELFFile(after), 2)


def what_pyelftools_sees(file: ELFFile, skip: int) -> dict[str, object]:
    segments = list(file.iter_segments())[skip:]
    symbols = file.get_section_by_name(".dynsym")
    dynamic = file.get_section_by_name(".dynamic")
    return {
        "segments": [
            {k: v for k, v in segment.header.items() if k != "p_offset"} | {"data": hash(segment.data())}
            for segment in segments
            if segment["p_filesz"]
        ],
        "symbols": [(s.name, dict(s.entry)) for s in symbols.iter_symbols()],
        "dynamic": [dict(tag.entry) for tag in dynamic.iter_tags()],
        "sections": [(s.name, s["sh_addr"], s["sh_size"]) for s in file.iter_sections()],
        "entry": file.header["e_entry"],
    }


@pytest.mark.needs("readelf")
def test_readelf_sees_the_same_program(signed: list[tuple[Path, Path]]) -> None:
    for skel, place in signed:
        for flags in ("--dynamic", "--dyn-syms"):
            assert readelf(flags, skel) == readelf(flags, place)


def readelf(flags: str, path: Path) -> str:
    done = subprocess.run(
        [program("readelf"), "--wide", flags, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    # Where in the file something is is all that may differ.
    return re.sub(r"(?i)\boffset 0x[0-9a-f]+", "offset", done.stdout)


def regions(data: bytes) -> list[tuple[int, int]]:
    """Every stretch of the file that is one thing: headers, parts of the container, segments, gaps."""
    _, parsed = signed_library.parse(data)
    assert parsed is not None
    start = parsed.hash_segment.offset
    cuts = {0, len(data), 0x34, parsed.elf.head_size}
    cuts |= {start + edge for part in parsed.container.parts for edge in (part.start, part.end)}
    cuts |= {edge for s in parsed.elf.segments if s.filesz for edge in (s.offset, s.end)}
    return list(itertools.pairwise(sorted(cuts)))


class Remembering:
    """`signed_library.segment_digests` for copies of one file with one bit flipped, at `position`.

    A segment without that bit holds the bytes it always held, and its digest is not computed again.
    """

    def __init__(self) -> None:
        self.position = -1
        self._known: dict[tuple[elf.Segment, str], bytes] = {}
        self._really = signed_library.segment_digests

    def __call__(self, data: elf.Bytes, parsed: elf.Elf, algorithm: str) -> list[bytes]:
        return [self._digest(data, replace(parsed, segments=(one,)), algorithm) for one in parsed.segments]

    def _digest(self, data: elf.Bytes, alone: elf.Elf, algorithm: str) -> bytes:
        (segment,) = alone.segments
        if segment.offset <= self.position < segment.end:
            return self._really(data, alone, algorithm)[0]
        if (segment, algorithm) not in self._known:
            self._known[segment, algorithm] = self._really(data, alone, algorithm)[0]
        return self._known[segment, algorithm]


@pytest.mark.whole
def test_two_thousand_flipped_bits_are_caught_or_listed_as_outside_every_hash(
    signed: list[tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = signed[0][1].read_bytes()
    gaps = verification.verify(data, ROOT_ONLY).unhashed
    places = regions(data)
    pick = random.Random(68)
    positions = [pick.randrange(low, high) for low, high in places for _ in range(-(-2000 // len(places)))]
    digests = Remembering()
    monkeypatch.setattr(signed_library, "segment_digests", digests)
    copy, wrong = bytearray(data), []
    for position in positions:
        digests.position = position
        copy[position] ^= 1 << position % 8
        caught = bool(verification.verify(copy, ROOT_ONLY).failed)
        copy[position] ^= 1 << position % 8
        if caught == any(gap.start <= position < gap.end for gap in gaps):
            wrong.append(position)
    assert (wrong, len(positions) >= 2000) == ([], True)
