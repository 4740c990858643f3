"""A tree shown by links: to CMake with copies of the folders that it writes into, to Python as an overlay."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

from ci.builds.tree import SourceTree, link_with_copies, make_overlay

COPIED = ("third-party/flatcc",)
FILES = (
    "CMakeLists.txt",
    "exir/core.py",
    "exir/__init__.py",
    "backends/qualcomm/a.cpp",
    "third-party/gflags/b.cpp",
    "third-party/flatcc/src/c.c",
    "third-party/flatcc/.git/config",
    ".git/config",
)
ADAPTOR = "backends/qualcomm/python/PyA.cpython-312.so"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "executorch"
    for place in FILES:
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(place, encoding="utf-8")
    return root


@pytest.fixture
def shown(tree: Path, tmp_path: Path) -> Path:
    into = tmp_path / "build" / "tree" / "executorch"
    link_with_copies(tree, COPIED, into)
    return into


def test_changes_of_the_tree_are_followed(shown: Path, tree: Path) -> None:
    source = tree / "third-party/flatcc/src/c.c"
    source.write_text("changed", encoding="utf-8")
    os.utime(source, ns=(0, 10**18))
    (tree / "CMakeLists.txt").unlink()
    (tree / "version.txt").touch()
    link_with_copies(tree, COPIED, shown)
    copy = shown / "third-party/flatcc/src/c.c"
    assert (copy.read_text(encoding="utf-8"), copy.stat().st_mtime_ns) == ("changed", 10**18)
    assert sorted(path.name for path in shown.iterdir()) == ["backends", "exir", "third-party", "version.txt"]


def overlay_of(root: Path, files: dict[str, Path], into: Path) -> Path:
    make_overlay(SourceTree(root, "1.5.0", "cff6f4dd32", changed=False, time=0), files, into, "wheels")
    return into / "executorch"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "new.so").write_bytes(b"new")
    return {ADAPTOR: tmp_path / "new.so"}


def test_an_overlay_has_the_tree_and_our_files_instead_of_earlier_ones(
    tree: Path, tmp_path: Path, files: dict[str, Path]
) -> None:
    old = (tree / ADAPTOR).with_name("PyB.cpython-38.so")
    old.parent.mkdir()
    old.touch()
    root = overlay_of(tree, files, tmp_path / "overlay")
    assert (root / "exir" / "core.py").is_file() and (root / "backends/qualcomm/a.cpp").is_file()
    assert [path.name for path in (root / ADAPTOR).parent.iterdir()] == ["__init__.py", Path(ADAPTOR).name]
    assert (root / ADAPTOR).read_bytes() == b"new"
    assert old.exists()
    packages = (".", "backends", "backends/qualcomm", "backends/qualcomm/python")
    assert [(root / package / "__init__.py").exists() for package in packages] == [False, True, True, True]


def test_an_overlays_own_file_replaces_that_of_the_tree_and_leaves_the_tree_as_it_is(
    tree: Path, tmp_path: Path, files: dict[str, Path]
) -> None:
    files["exir/core.py"] = tmp_path / "new.so"
    root = overlay_of(tree, files, tmp_path / "overlay")
    assert (root / "exir/core.py").read_bytes() == b"new"
    assert (tree / "exir/core.py").read_text(encoding="utf-8") == "exir/core.py"


def test_python_finds_the_version_of_the_overlays_tree(tree: Path, tmp_path: Path) -> None:
    (tree / "version.py").write_text("__version__ = 'of another day'", encoding="utf-8")
    root = overlay_of(tree, {}, tmp_path / "overlay")
    found = importlib.metadata.Distribution.discover(name="executorch", path=[str(root.parent)])
    assert [distribution.version for distribution in found] == ["1.5.0+cff6f4d"]
    assert "'1.5.0+cff6f4d'" in (root / "version.py").read_text(encoding="utf-8")
