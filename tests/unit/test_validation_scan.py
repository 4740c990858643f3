"""Which files of a tree are its libraries, and what is read of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.validation.scan import libraries
from tests.support.elves import Library, skel

BUILD = "v2.49.40.260810104044"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    skel(75, BUILD).write(tmp_path / "tree/lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so")
    Library(soname="libQnnHtp.so").write(tmp_path / "tree/lib/x86_64-linux-clang/libQnnHtp.so")
    return tmp_path / "tree"


def places(tree: Path) -> list[str]:
    return [library.place for library in libraries(tree)]


def test_places_records_and_build_ids_are_found(tree: Path) -> None:
    assert [(f.place, f.elf and f.elf.soname, f.build_ids) for f in libraries(tree)] == [
        ("lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so", "libQnnHtpV75Skel.so", (BUILD,)),
        ("lib/x86_64-linux-clang/libQnnHtp.so", "libQnnHtp.so", ()),
    ]


def test_a_file_that_cannot_be_read_is_a_library_and_says_why(tree: Path) -> None:
    (tree / "lib/libWeb.so").write_bytes(b"<html>")
    (tree / "lib/libGone.so").symlink_to("nowhere.so")
    (tree / "lib/libScript.so").write_bytes(b"INPUT(-lc)")
    assert {f.name: f.unreadable for f in libraries(tree) if f.elf is None} == {
        "libWeb.so": "it is a web page",
        "libGone.so": "a link to nowhere.so, which is not there",
    }


def test_links_within_the_tree_are_counted_once_and_links_out_of_it_are_followed(tree: Path) -> None:
    before = places(tree)
    (tree / "lib/libLink.so").symlink_to("x86_64-linux-clang/libQnnHtp.so")
    assert places(tree) == before
    (tree / "lib/libOut.so").symlink_to(Library().write(tree.parent / "outside.so"))
    assert places(tree) == sorted([*before, "lib/libOut.so"])


def test_a_link_to_a_folder_that_holds_the_tree_is_not_followed(tree: Path) -> None:
    before = places(tree)
    (tree.parent / "neighbour").mkdir()
    (tree.parent / "neighbour" / "libNotOurs.so").touch()
    (tree / "lib" / "everything").symlink_to(tree.parent)
    assert places(tree) == before


def test_a_linked_directory_is_followed_and_a_circle_ends(tree: Path, tmp_path: Path) -> None:
    before = places(tree)
    (tree / "lib").rename(tmp_path / "elsewhere")
    (tree / "lib").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "round").symlink_to(tree)
    assert places(tree) == before


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
def test_libraries_are_recognised_by_their_names(name: str, counts: bool, tmp_path: Path) -> None:
    Library().write(tmp_path / name)
    assert bool(libraries(tmp_path)) is counts
