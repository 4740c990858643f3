"""Signing the real Hexagon skels of the wheels profile: V68 to V81, 70 MB."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ci.signing import inspection, signed_library, signed_writer, verification
from ci.signing.verification import ExpectedSignature, Purpose
from tests.support import chains, sdk
from tests.support.needs import program

pytestmark = pytest.mark.heavy

ROOT_ONLY = ExpectedSignature(root=chains.signer().root, purpose=Purpose.DEVELOPMENT)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    """Every skel and its signed copy."""
    directory = tmp_path_factory.mktemp("signed")
    pairs = []
    for skel in sdk.skels():
        place = directory / skel.name
        with signed_library.map_file(skel) as data:
            place.write_bytes(signed_writer.sign_library(data, chains.signer()))
        pairs.append((skel, place))
    return pairs


@pytest.mark.needs("readelf")
def test_each_is_verified_and_inspected_and_is_the_same_program(signed: list[tuple[Path, Path]]) -> None:
    for skel, place in signed:
        file = inspection.inspect(place)
        assert verification.verify_file(place, ROOT_ONLY).verdict() == "verified"
        assert (file.kind, file.mbn_version) == ("development rehearsal", 6)
        assert f"V{file.arch}Skel" in skel.name
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
