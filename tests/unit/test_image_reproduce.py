"""What two builds do not have in common."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci.image.reproduce import differences


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Two that are the same, with the same times."""
    for name in ("one", "other"):
        folder = tmp_path / name / "etc"
        folder.mkdir(parents=True)
        (folder / "file").write_text("content")
        (folder / "link").symlink_to("file")
        for path in (folder / "file", folder / "link", folder):
            os.utime(path, (1, 1), follow_symlinks=False)
    return tmp_path / "one", tmp_path / "other"


def test_equal_trees_do_not_differ(trees: tuple[Path, Path]) -> None:
    assert list(differences(*trees)) == []


def test_content_of_the_same_size_and_time_is_told_apart(trees: tuple[Path, Path]) -> None:
    path = trees[1] / "etc" / "file"
    path.write_text("CONTENT")
    os.utime(path, (1, 1))
    assert list(differences(*trees)) == ["/etc/file: content"]


def test_times_are_told_apart(trees: tuple[Path, Path]) -> None:
    os.utime(trees[1] / "etc" / "file", (2, 2))
    assert list(differences(*trees)) == ["/etc/file: time"]


def test_modes_are_told_apart(trees: tuple[Path, Path]) -> None:
    (trees[1] / "etc" / "file").chmod(0o600)
    assert list(differences(*trees)) == ["/etc/file: mode"]


def test_links_elsewhere_are_told_apart(trees: tuple[Path, Path]) -> None:
    link = trees[1] / "etc" / "link"
    link.unlink()
    link.symlink_to("elsewhere")
    os.utime(link, (1, 1), follow_symlinks=False)
    os.utime(link.parent, (1, 1))
    assert list(differences(*trees)) == ["/etc/link: content"]


@pytest.mark.parametrize(("which", "word"), [(0, "first"), (1, "second")])
def test_a_file_of_one_tree_alone_is_named(trees: tuple[Path, Path], which: int, word: str) -> None:
    (trees[which] / "etc" / "more").write_text("")
    os.utime(trees[which] / "etc", (1, 1))
    assert list(differences(*trees)) == [f"/etc/more: only in the {word}"]
