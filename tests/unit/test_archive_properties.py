"""What must hold of every archive: nothing leaves the tree, and damage is noticed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioning import archive
from provisioning.base.errors import ArchiveError, EnvironmentLacking
from tests.support.zips import PROGRAM, STORED, Item, build, folder, link, tree


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "a/b", "a/c", "b/d", "a/b/e", "L", "l", "d/l"]),
            st.lists(
                st.sampled_from(["..", ".", "a", "b", "c", "e", "l", "L", "d", ""]), min_size=1, max_size=5
            ),
        ),
        max_size=6,
    )
)
def test_no_link_that_is_made_leads_out_of_the_tree(
    links: list[tuple[str, list[str]]],
) -> None:
    items = [link(name, "/".join(target) or ".") for name, target in links]
    with scratch() as here:
        (here / "a.zip").write_bytes(build(Item("a/b/f"), *items))
        try:
            archive.extract(here / "a.zip", here / "root/out", lambda name: name)
        except ArchiveError:
            return
        root = (here / "root/out").resolve()
        for path in (here / "root/out").rglob("*"):
            assert Path(os.path.realpath(path)).is_relative_to(root)


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
            archive.extract(here / "a.zip", here / "out", lambda name: name)
        except (ArchiveError, EnvironmentLacking):
            return None
        return tree(here / "out")


EVERY = [pytest.param(1, marks=pytest.mark.whole), 11]
"""Each byte of the sample, or one of eleven."""


@pytest.mark.parametrize("step", EVERY)
def test_an_archive_that_is_cut_off_anywhere_is_refused(sample: bytes, step: int) -> None:
    lengths = range(len(sample) - 1, -1, -step)
    assert [length for length in lengths if outcome(sample[:length]) is not None] == []


@pytest.mark.parametrize("step", EVERY)
@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_a_changed_byte_never_changes_the_content_of_a_file(sample: bytes, flip: int, step: int) -> None:
    whole = outcome(sample) or {}
    wrong = []
    for at in range(flip % step, len(sample), step):
        unpacked = outcome(sample[:at] + bytes([sample[at] ^ flip]) + sample[at + 1 :]) or {}
        files = {path: data for path, (kind, _, data) in unpacked.items() if kind == "file"}
        if any(path not in whole or whole[path][2] != data for path, data in files.items()):
            wrong.append(at)
    assert wrong == []
