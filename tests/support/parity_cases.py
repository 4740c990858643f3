"""One random case a seed: harmless edits, and in every other case a drift on top of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ci.parity.check import Checked, check
from ci.parity.compare import Source
from ci.parity.mapping import MAPPING, Mapping, load_mapping
from ci.parity.tree import Tree
from ci.upkeep import miniature_tree
from tests.support.parity_mutations import DRIFTS, EDITS, Expected, Files, Inapplicable


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


@dataclass(frozen=True)
class Case:
    name: str
    files: Files
    expected: Expected | None

    def verdict(self) -> str:
        """What is wrong with what parity says of it; empty when nothing is."""
        found = checked(self.files).differences
        said = [f"{one.rule} {one.what} at {one.place}: {one.message}" for one in found]
        if self.expected is None:
            return "; ".join(said[:3])
        rules = self.expected.rules
        if any((not rules or one.rule in rules) and self.expected.what in one.what for one in found):
            return ""
        return f"expected {self.expected}, found {said[:3] or 'nothing'}"


def case(seed: int) -> Case:
    """The same for the same seed. Even seeds drift, going through the drifts in turn; odd ones do not."""
    rng = random.Random(seed)
    files = miniature_tree.files()
    names: list[str] = []
    for _ in range(rng.randrange(3) if seed % 2 == 0 else rng.randrange(1, 5)):
        name = rng.choice(sorted(EDITS))
        tried = dict(files)
        try:
            EDITS[name](rng, tried)
        except Inapplicable:
            continue
        files = tried
        names.append(name)
    if seed % 2:
        return Case(" + ".join(names), files, None)
    name = sorted(DRIFTS)[seed // 2 % len(DRIFTS)]
    drift = rng.choice(DRIFTS[name])
    tried = dict(files)
    try:
        expected = drift.made(rng, tried)
    except Inapplicable:
        # The edits took away what it changes, so it is made to the clean tree.
        names, tried = [], miniature_tree.files()
        expected = drift.made(rng, tried)
    return Case(" + ".join([*names, name]), tried, expected)
