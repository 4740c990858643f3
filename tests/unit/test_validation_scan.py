"""The cache of libraries: fast for files that are the same, and never an answer for one that is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from provisioning.validation import scan
from provisioning.validation.context import Library as Found
from provisioning.validation.scan import Cache, libraries
from tests.support.elves import Library, skel

BUILD = "v2.49.40.260810104044"


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a test are always young; the wait is tested by itself."""
    monkeypatch.setattr(scan, "_SETTLED_NS", -(10**18))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    skel(75, BUILD).write(tmp_path / "tree/lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so")
    Library(soname="libQnnHtp.so", needed=("libc.so.6",), versions={"libc.so.6": ["GLIBC_2.34"]}).write(
        tmp_path / "tree/lib/x86_64-linux-clang/libQnnHtp.so"
    )
    return tmp_path / "tree"


def scanned(tree: Path, cache: Path) -> list[Found]:
    opened = Cache(cache)
    found = libraries(tree, opened)
    opened.save()
    return found


def test_places_records_and_build_ids_are_found(tree: Path) -> None:
    found = libraries(tree, Cache(None))
    assert [(f.place, f.elf and f.elf.soname, f.build_ids) for f in found] == [
        ("lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so", "libQnnHtpV75Skel.so", (BUILD,)),
        ("lib/x86_64-linux-clang/libQnnHtp.so", "libQnnHtp.so", ()),
    ]


def test_a_second_scan_reads_no_file_and_says_the_same(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = scanned(tree, tmp_path / "cache.json")
    monkeypatch.delattr(scan, "read")
    assert scanned(tree, tmp_path / "cache.json") == first


def test_a_file_changed_in_place_with_its_times_set_back_is_read_again(tree: Path, tmp_path: Path) -> None:
    path = tree / "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"
    scanned(tree, tmp_path / "cache.json")
    before = path.stat()
    with path.open("r+b") as stream:
        stream.write(skel(73, BUILD).encode()[:60])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = scanned(tree, tmp_path / "cache.json")
    assert [f.elf.arch for f in found if f.elf and f.name == path.name] == [73]


def test_a_file_replaced_by_another_of_the_same_size_and_time_is_read_again(
    tree: Path, tmp_path: Path
) -> None:
    path = tree / "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"
    scanned(tree, tmp_path / "cache.json")
    before = path.stat()
    other = skel(79, BUILD).write(path.with_name("new"))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    found = scanned(tree, tmp_path / "cache.json")
    assert [f.elf.arch for f in found if f.elf and f.name == path.name] == [79]


def test_a_file_that_changed_a_moment_ago_is_not_remembered(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_SETTLED_NS", 10**18)
    scanned(tree, tmp_path / "cache.json")
    assert not (tmp_path / "cache.json").exists()


def test_what_is_no_elf_is_remembered_with_its_fault(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "lib/x86_64-linux-clang/libQnnHtp.so").write_bytes(b"<html>")
    scanned(tree, tmp_path / "cache.json")
    monkeypatch.delattr(scan, "read")
    found = scanned(tree, tmp_path / "cache.json")
    assert [f.fault for f in found if f.elf is None] == ["it is a web page"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"schema": 0, "files": {}}',
        f'{{"schema": {scan.SCHEMA}}}'.encode(),
        b"\xff\xfe",
        f'{{"schema": {scan.SCHEMA}, "files": 3}}'.encode(),
    ],
)
def test_a_damaged_or_older_cache_is_started_anew(content: bytes, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "cache.json").write_bytes(content)
    assert scanned(tree, tmp_path / "cache.json") == libraries(tree, Cache(None))


def test_a_damaged_entry_is_read_again(tree: Path, tmp_path: Path) -> None:
    first = scanned(tree, tmp_path / "cache.json")
    content = json.loads((tmp_path / "cache.json").read_text())
    for entry in content["files"].values():
        entry[1] = {"elf": {"bits": 64}}
    (tmp_path / "cache.json").write_text(json.dumps(content))
    assert scanned(tree, tmp_path / "cache.json") == first


def test_entries_of_files_that_are_gone_are_dropped(tree: Path, tmp_path: Path) -> None:
    scanned(tree, tmp_path / "cache.json")
    gone = tree / "lib/x86_64-linux-clang/libQnnHtp.so"
    gone.unlink()
    Library().write(tree / "lib/x86_64-linux-clang/libNew.so")
    scanned(tree, tmp_path / "cache.json")
    assert str(gone) not in json.loads((tmp_path / "cache.json").read_text())["files"]


def test_where_no_cache_can_be_written_the_scan_works_all_the_same(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert scanned(tree, tmp_path / "file" / "cache.json") == libraries(tree, Cache(None))


def test_links_within_the_tree_are_their_targets_and_counted_once(tree: Path) -> None:
    (tree / "lib/libLink.so").symlink_to("x86_64-linux-clang/libQnnHtp.so")
    assert [f.name for f in libraries(tree, Cache(None))] == ["libQnnHtpV75Skel.so", "libQnnHtp.so"]


def test_a_link_out_of_the_tree_is_followed(tree: Path, tmp_path: Path) -> None:
    outside = Library(soname="libOut.so").write(tmp_path / "outside.so")
    (tree / "lib/libOut.so").symlink_to(outside)
    assert [f.elf.soname for f in libraries(tree, Cache(None)) if f.elf and f.name == "libOut.so"] == [
        "libOut.so"
    ]


def test_a_link_to_a_folder_that_holds_the_tree_is_not_followed(tree: Path) -> None:
    before = libraries(tree, Cache(None))
    (tree.parent / "neighbour").mkdir()
    (tree.parent / "neighbour" / "libNotOurs.so").touch()
    (tree / "lib" / "everything").symlink_to(tree.parent)
    assert libraries(tree, Cache(None)) == before


def test_a_linked_directory_is_followed_and_a_circle_ends(tree: Path, tmp_path: Path) -> None:
    (tree / "lib").rename(tmp_path / "elsewhere")
    (tree / "lib").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "round").symlink_to(tree)
    assert [f.place for f in libraries(tree, Cache(None))] == [
        "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so",
        "lib/x86_64-linux-clang/libQnnHtp.so",
    ]


def test_what_cannot_be_opened_is_told_and_not_remembered(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(scan, "read", refuse)
        assert {f.fault for f in scanned(tree, tmp_path / "cache.json")} == {
            "cannot be read: Permission denied"
        }
    assert {f.fault for f in scanned(tree, tmp_path / "cache.json")} == {""}


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = scan.read

    def read_and_change(path: Path) -> scan.Record:
        record = read(path)
        path.write_bytes(b"changed")
        return record

    monkeypatch.setattr(scan, "read", read_and_change)
    scanned(tree, tmp_path / "cache.json")
    assert not (tmp_path / "cache.json").exists()


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("liba.so", True),
        ("liba.so.1.2", True),
        ("a.sources", False),
        ("liba.so.txt", False),
        ("liba.a", False),
    ],
)
def test_libraries_are_told_by_their_names(name: str, counts: bool, tmp_path: Path) -> None:
    Library().write(tmp_path / name)
    assert bool(libraries(tmp_path, Cache(None))) is counts
