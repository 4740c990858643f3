"""The miniature tree and changes of it, checked by parity."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ci.parity.check import Checked, check, cmake_sides
from ci.parity.differences import Source
from ci.parity.mapping import MAPPING, Mapping, load_mapping
from ci.parity.model import Side, is_buck, is_python
from ci.parity.tree import Tree
from tests.support import miniature_tree

Files = dict[str, str]


@cache
def mapping() -> Mapping:
    return load_mapping()


@cache
def source() -> Source:
    return Source("manifests/parity.toml", MAPPING.read_text(encoding="utf-8"))


def tree_of(files: Files) -> Tree:
    """A tree in memory alone."""
    return Tree(Path("miniature"), dict(files), listing=frozenset())


@cache
def clean() -> Tree:
    return tree_of(miniature_tree.files())


def changed(files: Files) -> Tree:
    tree = clean()
    other = {path: text for path, text in files.items() if tree.over.get(path) != text}
    return tree.changed({**other, **dict.fromkeys(tree.over.keys() - files.keys())})


def checked(files: Files, *, by: Mapping | None = None) -> Checked:
    tree = changed(files)
    return check(tree, by, source(), cmake_of(tree)) if by else check_tree(tree)


def check_tree(tree: Tree) -> Checked:
    """Each tree once: many tests look at one in turn, and fixes check the trees that they make."""
    content = frozenset(tree.over.items())
    if content not in CHECKED:
        CHECKED[content] = check(tree, mapping(), source(), cmake_of(tree))
    return CHECKED[content]


def cmake_of(tree: Tree) -> dict[str, Side]:
    """CMake's sides, once for all trees that differ in Buck's files and Python's alone."""
    bzl = mapping().cmake.lists
    content = frozenset(
        (path, text)
        for path, text in tree.over.items()
        if path == bzl or not (is_buck(path) or is_python(path))
    )
    if content not in CONFIGURED:
        CONFIGURED[content] = cmake_sides(tree, mapping())
    return CONFIGURED[content]


CHECKED: dict[frozenset[tuple[str, str | None]], Checked] = {}
CONFIGURED: dict[frozenset[tuple[str, str | None]], dict[str, Side]] = {}
