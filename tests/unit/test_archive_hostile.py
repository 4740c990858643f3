"""Archives made to do harm, each refused by what is wrong with it and before anything is written."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from provisioning import archive
from provisioning.archive import Limits
from provisioning.base.errors import ArchiveError
from tests.support.zips import STORED, Item, build, deflated, folder, link, tree

SMALL = Limits(members=5, total=3_000_000, ratio=20, ratio_floor=100_000)


@dataclass(frozen=True)
class Case:
    name: str
    content: Callable[[], bytes]
    reason: str
    """A part of what the error says."""
    limits: Limits = field(default_factory=Limits)


def zipped(*items: Item, **options: int) -> Callable[[], bytes]:
    return lambda: build(*items, **options)  # type: ignore[arg-type]


def bomb() -> Item:
    return Item("bomb", bytes(2_000_000))


def large(name: str, size: int) -> Item:
    return Item(name, bytes(size), method=STORED)


def overlapping() -> bytes:
    """Two entries of the directory for the same data, as quoted-file bombs multiply it."""
    return build(Item("a", b"shared"), Item("b", b"shared", offset=0))


def stretched() -> bytes:
    """An extra field in the local header pushes the data into the next member."""
    extra = struct.pack("<2H", 0xCAFE, 20) + bytes(20)
    first = Item("a", b"12345678", method=STORED)
    whole = bytearray(build(first, Item("b", b"12345678" * 9, method=STORED)))
    struct.pack_into("<H", whole, 28, len(extra))
    return bytes(whole)


def two_ends() -> bytes:
    inner = build(Item("other", b"seen by some tools only"))
    return build(Item("a"), comment=inner)


NAMES = [
    Case("absolute name", zipped(Item("/etc/passwd")), "found an absolute path"),
    Case("parent at the start", zipped(Item("../evil")), "found the part '..'"),
    Case("empty part", zipped(Item("a//b")), "found an empty part"),
    Case("empty name", zipped(Item("")), "found an empty name"),
    Case("drive letter", zipped(Item("C:/Windows/evil")), "found a drive letter"),
    Case("backslashes up", zipped(Item("..\\..\\evil")), "found a backslash"),
    Case("NUL", zipped(Item("good\0.so")), "found a control character"),
    Case("name too long for a file system", zipped(Item("a" * 256)), "found a part longer than 255 bytes"),
    Case("name that is not UTF-8", zipped(Item(b"caf\xe9")), "found b'caf\\xe9'"),
]

COLLISIONS = [
    Case("duplicate", zipped(Item("a", b"1"), Item("a", b"2")), "found a second member"),
    Case("file and directory of one name", zipped(Item("a"), folder("a/")), "'a/': expected each name once"),
    Case("case", zipped(Item("Lib/a"), Item("lib/b")), "found 'lib' beside 'Lib': they differ only"),
    Case("case beyond ASCII", zipped(Item("STRASSE"), Item("straße")), "they differ only by case"),
    Case("normalisation", zipped(Item("caf\u00e9"), Item("cafe\u0301")), "composed differently"),
    Case("file where a directory is needed", zipped(Item("a"), Item("a/b")), "found a file"),
]

LINKS = [
    Case("absolute link", zipped(link("l", "/etc/passwd")), "found the absolute '/etc/passwd'"),
    Case("link up and out", zipped(link("d/l", "../../evil")), "found target '../../evil'"),
    Case("link out by a link", zipped(link("a/up", "../b"), link("l", "a/up/../../evil")), "inside the tree"),
    Case("in other case", zipped(link("a/b/Up", "../.."), link("a/l", "b/uP/../evil")), "inside the tree"),
    Case("circle of links", zipped(link("a", "b"), link("b", "a")), "found a circle"),
    Case("member through a link", zipped(link("l", "d"), Item("l/evil")), "found a symbolic link"),
    Case("link over a directory", zipped(Item("l/f"), link("l", "d")), "found a directory"),
    Case("link named like a directory", zipped(Item("l/", b"d", mode=0o120777)), "found a symbolic link"),
]

KINDS = [
    Case("character device", zipped(Item("null", b"", mode=0o020666)), "found a special file"),
    Case("directory with content", zipped(Item("d/", b"hidden", mode=0o040755)), "found 6 bytes"),
]

BOMBS = [
    Case("ratio of one member", zipped(bomb(), large("b", 500_000)), "found 2000000 bytes from", SMALL),
    Case("ratio of many", zipped(*(Item(f"{n}", bytes(90_000)) for n in range(5))), "found 450000", SMALL),
    Case("total", zipped(large("a", 2_000_000), large("b", 2_000_000)), "found 4000000", SMALL),
    Case("count", zipped(*(Item(f"{n}") for n in range(6))), "expected at most 5 members, found 6", SMALL),
    Case("count without members", zipped(Item("a"), count=4_000_000_000, zip64=True), "found 4000000000"),
    Case("declared terabytes", zipped(Item("a", size=0xFFFFFFFE, compressed_size=9)), "its packed size"),
    Case("overlapping entries", overlapping, "found an overlap with 'a'"),
    Case("data pushed into the next member", stretched, "found an overlap with the next member"),
]

LIES = [
    Case("local name", zipped(Item("good", local={"name": b"evil"})), "found b'evil'"),
    Case("local method", zipped(Item("a", local={"method": 0})), "found method 0"),
    Case("descriptor", zipped(replace(Item("a").described(), descriptor=bytes(16))), "a data descriptor"),
    Case(
        "data in the directory", zipped(replace(large("a", 9), local={"extra": b"12"}), start=38), "that ends"
    ),
    Case("directory too short", zipped(Item("a"), count=2), "expected 2 members in its directory, found 1"),
    Case("directory elsewhere", zipped(Item("a"), start=1), "expected a directory that ends at offset"),
    Case("stored member of two sizes", zipped(Item("a", method=STORED, size=3)), "expected 3 stored bytes"),
    Case("two ends", two_ends, "expected one end of the directory, found 2"),
    Case("bytes in front", lambda: b"#!/bin/sh\n" + build(Item("a")), "a directory that ends at offset"),
    Case("bytes behind", lambda: build(Item("a")) + b"\0", "expected a zip file that ends with its"),
]

UNKNOWN = [
    Case("encrypted", zipped(Item("a", flags=1)), "expected a member that is not encrypted"),
    Case("patch data", zipped(Item("a", flags=0x20)), "found patch data"),
    Case("part of a split archive", zipped(Item("a"), disk=1), "found one part of a split zip"),
    Case("page of a web server", lambda: b"<html>Access denied</html>", "found none in the last of 26 bytes"),
]

BEFORE_WRITING = [*NAMES, *COLLISIONS, *LINKS, *KINDS, *BOMBS, *LIES, *UNKNOWN]

WHILE_WRITING = [
    Case("more than declared", zipped(Item("a", b"12345678", size=4)), "4 bytes as declared, found more"),
    Case("less than declared", zipped(Item("a", b"1234", size=9)), "expected 9 bytes as declared, found 4"),
    Case("wrong checksum", zipped(Item("a", crc=0xDEADBEEF)), "'a': expected checksum deadbeef, found"),
    Case(
        "deflate stream cut off", zipped(Item("a", raw=deflated(b"content")[:-3])), "a whole deflate stream"
    ),
    Case("garbage for data", zipped(Item("a", raw=b"\xff" * 40)), "found damage"),
    Case(
        "bytes behind the stream",
        zipped(Item("a", raw=deflated(b"content") + b"x")),
        "compressed bytes, found",
    ),
]


def refused(tmp_path: Path, case: Case) -> ArchiveError:
    path = tmp_path / "a.zip"
    path.write_bytes(case.content())
    with pytest.raises(ArchiveError) as raised:
        archive.extract(path, tmp_path / "out", lambda name: name, limits=case.limits)
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


def test_the_first_error_of_many_workers_ends_them_all(tmp_path: Path) -> None:
    items = [
        Item("bad", b"x" * 1_000_000, crc=1),
        *(Item(f"{n}", bytes(range(256)) * 2_000) for n in range(60)),
    ]
    (tmp_path / "a.zip").write_bytes(build(*items))
    with pytest.raises(ArchiveError, match="'bad'"):
        archive.extract(tmp_path / "a.zip", tmp_path / "out", lambda name: name, workers=2)
    assert len(tree(tmp_path / "out")) < 61
