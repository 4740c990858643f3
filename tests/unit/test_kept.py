"""What is kept of our files is taken only if it is whole, of the same files, and nobody else's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning.base.kept import kept
from provisioning.base.settings import derived_folder


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "table.toml"
    path.write_text("a = 1", encoding="utf-8")
    return path


def value_of(source: Path, value: str) -> object:
    return kept("table", [source], lambda: {"value": value})


def only_file(source: Path) -> Path:
    (file,) = derived_folder().iterdir()
    return file


def test_what_was_made_is_taken_until_a_source_changes(source: Path) -> None:
    assert value_of(source, "first") == value_of(source, "second") == {"value": "first"}
    source.write_text("a = 2", encoding="utf-8")
    assert value_of(source, "third") == value_of(source, "fourth") == {"value": "third"}
    assert only_file(source)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def changed(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"first", b"fault"))


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def writable_for_others(file: Path) -> None:
    file.chmod(0o666)


def a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("spoil", [cut_short, changed, emptied, writable_for_others, a_pipe])
def test_what_is_not_whole_or_may_be_anothers_is_made_anew(
    source: Path, spoil: Callable[[Path], None]
) -> None:
    value_of(source, "first")
    spoil(only_file(source))
    assert value_of(source, "second") == value_of(source, "third") == {"value": "second"}


def test_a_link_in_its_place_is_replaced_and_not_followed(source: Path, tmp_path: Path) -> None:
    value_of(source, "first")
    other, file = tmp_path / "other", only_file(source)
    other.write_text("mine", encoding="utf-8")
    file.unlink()
    file.symlink_to(other)
    assert value_of(source, "second") == {"value": "second"}
    assert other.read_text(encoding="utf-8") == "mine" and not file.is_symlink()


def test_without_a_folder_that_can_be_written_nothing_is_kept(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder", encoding="utf-8")
    assert value_of(source, "first") == {"value": "first"}
    assert value_of(source, "second") == {"value": "second"}
