"""The tree as CMake is shown it: links, and copies of what its build writes into."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ci.builds import shadow

WRITTEN = ("third-party/flatcc",)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "executorch"
    for place in (
        "CMakeLists.txt",
        "backends/qualcomm/a.cpp",
        "third-party/gflags/b.cpp",
        "third-party/flatcc/src/c.c",
        "third-party/flatcc/.git/config",
        ".git/config",
    ):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(place, encoding="utf-8")
    return root


@pytest.fixture
def shown(tree: Path, tmp_path: Path) -> Path:
    into = tmp_path / "build" / "tree" / "executorch"
    shadow.sync(tree, WRITTEN, into)
    return into


def test_everything_is_there_but_repositories(shown: Path) -> None:
    found = [Path(folder, name) for folder, _, names in os.walk(shown, followlinks=True) for name in names]
    assert sorted(str(path.relative_to(shown)) for path in found) == [
        "CMakeLists.txt",
        "backends/qualcomm/a.cpp",
        "third-party/flatcc/src/c.c",
        "third-party/gflags/b.cpp",
    ]


def test_what_is_written_is_not_in_the_tree(shown: Path, tree: Path) -> None:
    (shown / "third-party/flatcc/lib").mkdir()
    (shown / "third-party/flatcc/lib/libflatccrt.a").touch()
    assert not (tree / "third-party/flatcc/lib").exists()


def test_nothing_else_is_copied(shown: Path, tree: Path) -> None:
    links = {str(path.relative_to(shown)): path.readlink() for path in shown.rglob("*") if path.is_symlink()}
    assert links == {place: tree / place for place in ("CMakeLists.txt", "backends", "third-party/gflags")}


def test_again_it_is_what_it_was(shown: Path, tree: Path) -> None:
    """Also its times, or all that is made of it would be made anew; what the build put there stays."""
    (shown / "third-party/flatcc/lib.a").touch()

    def times() -> dict[Path, int]:
        return {path: path.lstat().st_mtime_ns for path in shown.rglob("*")}

    before = times()
    shadow.sync(tree, WRITTEN, shown)
    assert times() == before


def test_a_changed_file_is_taken_over_with_its_time(shown: Path, tree: Path) -> None:
    source = tree / "third-party/flatcc/src/c.c"
    source.write_text("changed", encoding="utf-8")
    os.utime(source, ns=(0, 10**18))
    shadow.sync(tree, WRITTEN, shown)
    copy = shown / "third-party/flatcc/src/c.c"
    assert (copy.read_text(encoding="utf-8"), copy.stat().st_mtime_ns) == ("changed", 10**18)


def test_what_the_tree_gained_and_lost_is_followed(shown: Path, tree: Path) -> None:
    (tree / "CMakeLists.txt").unlink()
    (tree / "version.txt").touch()
    shadow.sync(tree, WRITTEN, shown)
    assert sorted(path.name for path in shown.iterdir()) == ["backends", "third-party", "version.txt"]


def test_another_tree_takes_its_place(shown: Path, tree: Path) -> None:
    other = tree.rename(tree.with_name("other"))
    shadow.sync(other, WRITTEN, shown)
    assert (shown / "backends").readlink() == other / "backends"


def test_a_link_where_a_folder_must_be_is_replaced(shown: Path, tree: Path, tmp_path: Path) -> None:
    """As when the recipe names a folder more than the last time."""
    shadow.sync(tree, (*WRITTEN, "backends/qualcomm"), shown)
    assert not (shown / "backends").is_symlink() and (shown / "backends/qualcomm/a.cpp").is_file()


def test_a_read_only_trees_copy_may_be_written_to(shown: Path, tree: Path) -> None:
    source = tree / "third-party/flatcc/src/c.c"
    source.write_text("of the store", encoding="utf-8")
    source.chmod(0o444)
    (tree / "third-party/flatcc/src").chmod(0o555)
    shadow.sync(tree, WRITTEN, shown)
    modes = [oct(path.stat().st_mode & 0o200) for path in (shown / "third-party/flatcc").rglob("*")]
    assert set(modes) == {"0o200"}


def test_a_tree_without_the_folder_needs_no_shadow(tree: Path) -> None:
    assert shadow.written_in(tree, ("third-party/none", *WRITTEN)) == WRITTEN
    assert shadow.written_in(tree, ("third-party/none",)) == ()


def test_what_was_written_since_is_named(tree: Path) -> None:
    now = time.time() + 10
    assert shadow.changed_since(tree, now) == []
    later = tree / "backends" / "qualcomm" / "made.h"
    later.touch()
    os.utime(later, (now + 1, now + 1))
    assert shadow.changed_since(tree, now) == ["backends/qualcomm/made.h"]
    assert shadow.changed_since(tree, now, (tree / "backends",)) == []
