"""What .buckconfig says: in which folders the cells begin, and the flags of every C++ library."""

from __future__ import annotations

import configparser
import posixpath
import re
from collections.abc import Callable, Mapping
from functools import cached_property

from ci.parity.tree import NamedItem, NotEvaluated, Tree, TreePlace, normal

BUCKCONFIG = ".buckconfig"


class BuckConfig:
    """The tree's .buckconfig, read when first needed. A cell is a part of the tree with a name in labels,
    `CELL//FOLDER:NAME`."""

    def __init__(
        self, tree: Tree, mapped_cells: Mapping[str, str], report: Callable[[NotEvaluated], None]
    ) -> None:
        """`mapped_cells` are the mapping's prefixes of labels, and the folder where each begins; `report`
        takes the error if the file cannot be parsed."""
        self._tree = tree
        self._mapped_cells = mapped_cells
        self._report = report

    def get(self, section: str, key: str, default: object) -> object:
        return self._parsed.get(section, key, raw=True, fallback=default)

    def file_in_cell(self, folder: str, name: str) -> str | None:
        """Find a file in Buck's own way, by the cells of .buckconfig; None if it is not there."""
        cell, slashes, path_in_cell = folder.removeprefix("@").partition("//")
        if not slashes or (begins := self._cells.get(cell)) is None:
            return None
        path = normal(posixpath.join(begins, path_in_cell, name))
        return path if path in self._tree.files else None

    def folder_of(self, prefix: str) -> str | None:
        """Find the folder of a label's part before `:` by the mapping's cells; the longest prefix counts."""
        for cell, begins in sorted(self._mapped_cells.items(), key=lambda item: -len(item[0])):
            if prefix == cell or prefix.startswith(cell.rstrip("/") + "/"):
                return normal(posixpath.join(begins, prefix[len(cell) :].lstrip("/")))
        return None

    @cached_property
    def default_standard(self) -> NamedItem | None:
        """The C++ standard that it sets for every C++ library."""
        flags = self._parsed.get("cxx", "cxxflags", raw=True, fallback="") or ""
        match = re.search(r"-std=\S*?(\d+)\b", flags)
        if match is None:
            return None
        before = self._tree.read(BUCKCONFIG).partition(match[0])[0]
        return NamedItem(match[1], TreePlace(BUCKCONFIG, before.count("\n") + 1))

    @cached_property
    def _cells(self) -> dict[str, str]:
        """The folder of the tree in which each cell begins, by its name and its aliases."""
        cells: dict[str, str] = {}
        for section in ("repositories", "cells"):
            if self._parsed.has_section(section):
                cells |= {name: normal(path or "") for name, path in self._parsed.items(section, raw=True)}
        for section in ("repository_aliases", "cell_aliases"):
            if self._parsed.has_section(section):
                aliases = self._parsed.items(section, raw=True)
                cells |= {name: cells[cell] for name, cell in aliases if cell in cells}
        return cells

    @cached_property
    def _parsed(self) -> configparser.ConfigParser:
        config = configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True)
        if BUCKCONFIG in self._tree.files:
            try:
                config.read_string(self._tree.read(BUCKCONFIG))
            except configparser.Error as error:
                line = getattr(error, "lineno", None) or 1
                self._report(NotEvaluated(TreePlace(BUCKCONFIG, line), BUCKCONFIG, str(error)))
        return config
