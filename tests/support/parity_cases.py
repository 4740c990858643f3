"""The miniature tree and changes of it, checked by parity."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ci.parity.check import Checked, check
from ci.parity.differences import Source
from ci.parity.mapping import MAPPING, Mapping, load_mapping
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
def clean() -> tuple[Tree, Checked]:
    """The miniature tree, checked once: others are changes of it."""
    tree = tree_of(miniature_tree.files())
    return tree, check(tree, mapping(), source())


def changed(files: Files) -> Tree:
    tree, _ = clean()
    other = {path: text for path, text in files.items() if tree.over.get(path) != text}
    return tree.changed({**other, **dict.fromkeys(tree.over.keys() - files.keys())})


def checked(files: Files, *, by: Mapping | None = None) -> Checked:
    tree = changed(files)
    return check(tree, by, source()) if by else check_tree(tree)


def check_tree(tree: Tree) -> Checked:
    """Each tree once: many tests look at one in turn, and fixes check the trees that they make."""
    content = frozenset(tree.over.items())
    if content not in CHECKED:
        CHECKED[content] = check(tree, mapping(), source())
    return CHECKED[content]


CHECKED: dict[frozenset[tuple[str, str | None]], Checked] = {}
