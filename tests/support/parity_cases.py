"""The miniature tree and changes of it, checked by parity."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ci.parity.check import Checked, check, cmake_sides
from ci.parity.mapping import MAPPING, Accepted, Mapping, load_accepted, load_mapping
from ci.parity.tree import Side, Tree, is_python

Files = dict[str, str]


class TreeOfTexts(Tree):
    """A tree in memory alone."""

    def __init__(self, files: Files) -> None:
        super().__init__(Path("miniature"))
        self._texts = files

    @property
    def files(self) -> frozenset[str]:
        return frozenset(self._texts)


@cache
def mapping() -> Mapping:
    return load_mapping()


@cache
def accepted() -> Accepted | None:
    return load_accepted(mapping(), MAPPING)


def checked(files: Files, *, by: Mapping | None = None) -> Checked:
    """Each tree once, because many tests look at one in turn."""
    if by is not None:
        return check(TreeOfTexts(files), by, MAPPING, cmake_of(files), accepted())
    content = frozenset(files.items())
    if content not in CHECKED:
        CHECKED[content] = check(TreeOfTexts(files), mapping(), MAPPING, cmake_of(files), accepted())
    return CHECKED[content]


def cmake_of(files: Files) -> dict[str, Side]:
    """CMake's sides, once for all trees that differ in Buck's files and Python's alone."""
    bzl = mapping().cmake.lists
    content = frozenset(
        (path, text)
        for path, text in files.items()
        if path == bzl or not (path.endswith((".bzl", "/BUCK", "/TARGETS")) or is_python(path))
    )
    if content not in CONFIGURED:
        CONFIGURED[content] = cmake_sides(TreeOfTexts(files), mapping())
    return CONFIGURED[content]


CHECKED: dict[frozenset[tuple[str, str]], Checked] = {}
CONFIGURED: dict[frozenset[tuple[str, str]], dict[str, Side]] = {}
