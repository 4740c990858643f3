"""Modules beside a suite are that suite's own, in a process that serves several."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.suites.imports import searched_first


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[list[Path]]:
    before = set(sys.modules)
    made = [tmp_path / "one", tmp_path / "two"]
    for folder in made:
        (folder / "qnn_ci_parts").mkdir(parents=True)
        (folder / "qnn_ci_net.py").write_text("from qnn_ci_parts.layers import NAME\n")
        (folder / "qnn_ci_parts/layers.py").write_text(f"NAME = {folder.name!r}\n")
    yield made
    for name in set(sys.modules) - before:
        if name.startswith("qnn_ci_"):
            del sys.modules[name]


def _name(folder: Path) -> str:
    with searched_first(folder):
        return str(importlib.import_module("qnn_ci_net").NAME)


def test_modules_of_one_name_are_each_folders_own(folders: list[Path]) -> None:
    one, two = folders
    assert [_name(folder) for folder in (one, two, one, one)] == ["one", "two", "one", "one"]


def test_a_module_is_imported_once_for_all_that_a_folder_has(folders: list[Path]) -> None:
    _name(folders[0])
    module = sys.modules["qnn_ci_net"]
    _name(folders[0])
    assert sys.modules["qnn_ci_net"] is module


def test_modules_of_elsewhere_stay(folders: list[Path]) -> None:
    (folders[0] / "json.py").write_text("")
    before = sys.modules["json"], sys.modules["pytest"]
    _name(folders[0])
    _name(folders[1])
    assert (sys.modules["json"], sys.modules["pytest"]) == before


def test_the_search_path_is_as_it_was_afterwards(folders: list[Path]) -> None:
    before = list(sys.path)
    with pytest.raises(ModuleNotFoundError), searched_first(folders[0]):
        importlib.import_module("qnn_ci_no_such")
    assert sys.path == before
