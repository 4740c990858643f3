"""Archives made to do harm, each refused by what is wrong with it and before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioning import archive
from provisioning.base.errors import ArchiveError
from tests.support.zips import Item, build, deflated, folder, link, tree


@dataclass(frozen=True)
class Case:
    name: str
    content: Callable[[], bytes]
    reason: str
    """A part of what the error says."""


def zipped(*items: Item, **options: int) -> Callable[[], bytes]:
    return lambda: build(*items, **options)  # type: ignore[arg-type]


NAMES = [
    Case("absolute name", zipped(Item("/etc/passwd")), "found an absolute path"),
    Case("parent at the start", zipped(Item("../evil")), "a part of dots"),
    Case("empty part", zipped(Item("a//b")), "found an empty part"),
    Case("empty name", zipped(Item("")), "found an empty part"),
    Case("drive letter", zipped(Item("C:/Windows/evil")), "found an absolute path"),
    Case("backslashes up", zipped(Item("..\\..\\evil")), "found a backslash"),
    Case("NUL", zipped(Item("good\0.so")), "found a control character"),
    Case("name too long for a file system", zipped(Item("a" * 256)), "found a part longer than 255 bytes"),
    Case("name that is not UTF-8", zipped(Item(b"caf\xe9")), "a zip archive"),
]

SPECIAL = [
    Case("character device", zipped(Item("null", b"", mode=0o020666)), "found a special file"),
    Case("encrypted", zipped(Item("a", flags=1)), "flags 0x0001"),
    Case("bzip2", zipped(Item("a", method=12)), "method 12"),
    Case("data before the file", zipped(Item("a"), start=1_000), "found offset -"),
    Case("page of a web server", lambda: b"<html>Access denied</html>", "not a zip file"),
]

BEFORE_WRITING = [*NAMES, *SPECIAL]

LINKS = [
    Case("absolute link", zipped(link("l", "/etc/passwd")), "found b'/etc/passwd'"),
    Case("link up and out", zipped(link("d/l", "../../evil")), "found target '../../evil'"),
    Case("link out by a link", zipped(link("a/up", "../b"), link("l", "a/up/../../evil")), "inside the tree"),
    Case("member through a link", zipped(link("l", "d"), Item("l/evil")), "member 'l'"),
    Case("link over a directory", zipped(Item("l/f"), link("l", "d")), "member 'l'"),
]

COLLISIONS = [
    Case("duplicate", zipped(Item("a", b"1"), Item("a", b"2")), "member 'a'"),
    Case("file and directory of one name", zipped(Item("a"), folder("a/")), "member 'a'"),
    Case("file where a directory is needed", zipped(Item("a"), Item("a/b")), "member 'a'"),
]

LIES = [
    Case("local name", zipped(Item("good", local={"name": b"evil"})), "b'evil'"),
    Case("more than declared", zipped(Item("a", b"12345678", size=4)), "member 'a'"),
    Case("less than declared", zipped(Item("a", b"1234", size=9)), "expected 9 bytes as declared, found 4"),
    Case("wrong checksum", zipped(Item("a", crc=0xDEADBEEF)), "CRC-32"),
    Case("deflate stream cut off", zipped(Item("a", raw=deflated(b"content")[:-3])), "member 'a'"),
    Case("garbage for data", zipped(Item("a", raw=b"\xff" * 40)), "member 'a'"),
]

WHILE_WRITING = [*LINKS, *COLLISIONS, *LIES]


def refused(tmp_path: Path, case: Case) -> ArchiveError:
    path = tmp_path / "a.zip"
    path.write_bytes(case.content())
    with pytest.raises(ArchiveError) as raised:
        archive.extract(path, tmp_path / "out", lambda name: name)
    return raised.value


@pytest.mark.parametrize("case", BEFORE_WRITING, ids=lambda case: case.name)
def test_is_refused_before_anything_is_written(tmp_path: Path, case: Case) -> None:
    error = refused(tmp_path, case)
    assert error.message.startswith("a.zip: ")
    assert case.reason in error.message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("case", WHILE_WRITING, ids=lambda case: case.name)
def test_is_noticed_at_the_member_that_lies(tmp_path: Path, case: Case) -> None:
    assert case.reason in refused(tmp_path, case).message


def test_a_member_that_holds_more_than_it_says_is_stopped_at_what_it_says(tmp_path: Path) -> None:
    refused(tmp_path, Case("", zipped(Item("a", bytes(50_000_000), size=1_000_000)), ""))
    assert (tmp_path / "out/a").stat().st_size <= 1_000_000


def test_a_destination_that_escapes_is_refused_like_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(build(Item("a")))
    with pytest.raises(ArchiveError, match=re.escape("'../a'")):
        archive.extract(tmp_path / "a.zip", tmp_path / "out", lambda name: f"../{name}")


@pytest.mark.parametrize(("most_bytes", "most_members"), [(9, 9), (99, 1)])
def test_what_is_larger_than_allowed_is_refused(tmp_path: Path, most_bytes: int, most_members: int) -> None:
    file, out = tmp_path / "a.zip", tmp_path / "out"
    file.write_bytes(build(Item("a", b"12345"), Item("b", b"12345")))
    with pytest.raises(ArchiveError):
        archive.extract(file, out, lambda name: name, most_bytes=most_bytes, most_members=most_members)
    assert not out.exists()


def test_the_first_error_of_many_workers_ends_them_all(tmp_path: Path) -> None:
    items = [
        Item("bad", b"x" * 1_000_000, crc=1),
        *(Item(f"{n}", bytes(range(256)) * 2_000) for n in range(60)),
    ]
    (tmp_path / "a.zip").write_bytes(build(*items))
    with pytest.raises(ArchiveError, match="'bad'"):
        archive.extract(tmp_path / "a.zip", tmp_path / "out", lambda name: name, workers=2)
    assert len(tree(tmp_path / "out")) < 61
