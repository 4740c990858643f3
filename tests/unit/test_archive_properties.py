"""What must hold of every archive: what goes in comes out, nothing leaves the tree, damage is noticed."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioning import archive
from provisioning.base.errors import ArchiveError
from tests.support.zips import PROGRAM, STORED, Item, build, folder, link, tree


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def pack(path: Path, content: dict[str, tuple[str, int, bytes]], *, deflated: bool) -> None:
    types = {"file": stat.S_IFREG, "link": stat.S_IFLNK, "directory": stat.S_IFDIR}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED) as packed:
        for name, (kind, mode, data) in content.items():
            info = zipfile.ZipInfo(name + ("/" if kind == "directory" else ""))
            info.external_attr = (types[kind] | mode) << 16
            info.compress_type = packed.compression
            info.create_system = 3
            packed.writestr(info, data)


def others(source: Path, into: Path) -> Iterator[dict[str, tuple[str, int, bytes]]]:
    """The same archive as other tools unpack it."""
    zipfile.ZipFile(source).extractall(into / "zipfile")
    yield tree(into / "zipfile")
    if unzip := shutil.which("unzip"):
        environ = {**os.environ, "LC_ALL": "C.UTF-8"}
        subprocess.run([unzip, "-q", source, "-d", into / "unzip"], check=True, env=environ)
        yield tree(into / "unzip")


def test_other_tools_unpack_the_same_files(tmp_path: Path) -> None:
    content = {
        "lib/libQnn.so": ("file", 0o755, b"\x7fELF" + bytes(90_000)),
        "lib/libQnn.so.1": ("link", 0o777, b"libQnn.so"),
        "größe/leer": ("file", 0o644, b""),
        "docs/a b/c&d.html": ("file", 0o644, b"<p>" * 5_000),
    }
    pack(tmp_path / "a.zip", content, deflated=True)
    archive.extract(tmp_path / "a.zip", tmp_path / "out", lambda name: name)
    ours = {path: data for path, (kind, _, data) in tree(tmp_path / "out").items() if kind != "directory"}
    for theirs in others(tmp_path / "a.zip", tmp_path):
        assert {path: data for path, (kind, _, data) in theirs.items() if kind != "directory"} == ours


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "a/b", "a/c", "b/d", "a/b/e", "L", "l", "d/l"]),
            st.lists(
                st.sampled_from(["..", ".", "a", "b", "c", "e", "l", "L", "d", ""]), min_size=1, max_size=5
            ),
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_no_link_that_is_made_leads_out_of_the_tree(
    links: list[tuple[str, list[str]]], case_sensitive: bool
) -> None:
    items = [link(name, "/".join(target) or ".") for name, target in links]
    with scratch() as here:
        (here / "a.zip").write_bytes(build(Item("a/b/f"), *items))
        limits = archive.Limits(case_sensitive=case_sensitive)
        try:
            archive.extract(here / "a.zip", here / "root/out", lambda name: name, limits=limits)
        except ArchiveError:
            return
        root = (here / "root/out").resolve()
        for path in (here / "root/out").rglob("*"):
            assert path.resolve().is_relative_to(root)


@pytest.fixture(scope="module")
def sample() -> bytes:
    text = b"".join(b"line %d of the sample\n" % number for number in range(30))
    return build(
        folder("lib/"),
        Item("lib/program", text, mode=PROGRAM),
        Item("stored", b"0123456789", method=STORED),
        Item("streamed", text[::-1]).described(),
        Item("empty", b""),
        link("lib/link", "program"),
    )


def outcome(data: bytes) -> dict[str, tuple[str, int, bytes]] | None:
    """The tree that these bytes unpack to, or None when they are refused."""
    with scratch() as here:
        (here / "a.zip").write_bytes(data)
        try:
            archive.extract(here / "a.zip", here / "out", lambda name: name, workers=1)
        except ArchiveError:
            return None
        return tree(here / "out")


EVERY = [pytest.param(1, marks=pytest.mark.whole), 11]
"""Each byte of the sample, or one of eleven."""


@pytest.mark.parametrize("step", EVERY)
def test_an_archive_that_is_cut_off_anywhere_is_refused(sample: bytes, step: int) -> None:
    lengths = range(len(sample) - 1, -1, -step)
    assert [length for length in lengths if outcome(sample[:length]) is not None] == []


def attributes(data: bytes) -> set[int]:
    """Where the directory holds what nothing else repeats: the made-by system and the external attributes."""
    places = set()
    at = data.find(b"PK\1\2")
    while at >= 0:
        places |= {at + 5, *range(at + 38, at + 42)}
        at = data.find(b"PK\1\2", at + 1)
    return places


@pytest.mark.parametrize("step", EVERY)
@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_a_changed_byte_never_changes_content(sample: bytes, flip: int, step: int) -> None:
    whole = outcome(sample)
    wrong = []
    for at in sorted(set(range(flip % step, len(sample), step)) - attributes(sample)):
        unpacked = outcome(sample[:at] + bytes([sample[at] ^ flip]) + sample[at + 1 :])
        if unpacked is not None and unpacked != whole:
            wrong.append(at)
    assert wrong == []


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_changed_attributes_never_change_the_content_of_a_file(sample: bytes, flip: int) -> None:
    whole = outcome(sample) or {}
    for at in sorted(attributes(sample)):
        unpacked = outcome(sample[:at] + bytes([sample[at] ^ flip]) + sample[at + 1 :]) or {}
        files = {path: data for path, (kind, _, data) in unpacked.items() if kind == "file"}
        assert {path: whole[path][2] for path in files} == files
