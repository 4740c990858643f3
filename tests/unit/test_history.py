"""Figures of earlier runs by commit, as the page draws them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci.suites.history import MOST, add_history
from provisioning.base.findings import Metric


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def _row(read: int) -> dict[str, Metric]:
    return {"costs": {"ddr_read": read, "cpu_seconds": 3.0}, "figures": {"sqnr_db": 40.0}}


def _run(folder: Path, read: int, store: Path) -> list[float]:
    row = _row(read)
    add_history({"programs": {"net/8a8w/SM8650": row}}, "test_lowering", store, folder)
    history = row["history"]
    assert isinstance(history, list)
    return [each["ddr_read"] for each in history if isinstance(each, dict)]  # type: ignore[misc]


def test_a_commit_has_one_entry_and_the_last_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.suites.history.MOST", 2)
    repository, store = tmp_path / "repository", tmp_path / "store"
    repository.mkdir()
    _git(repository, "init", "-q")
    found = []
    for number in range(3):
        _git(repository, "commit", "-q", "--allow-empty", "-m", f"{number}")
        found = [_run(repository, 100 + number, store), _run(repository, 200 + number, store)]
    assert found == [[201, 102], [201, 202]] and MOST > 2


def test_a_broken_history_is_begun_anew(tmp_path: Path) -> None:
    assert _run(tmp_path, 1, tmp_path / "store") == [1]
    (file,) = (tmp_path / "store/cache/figures").glob("*.json")
    file.write_text(file.read_text()[:20])
    assert _run(tmp_path, 2, tmp_path / "store") == [2]


def test_a_store_that_takes_no_file_fails_no_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store").write_text("")
    row = _row(1)
    add_history({"programs": {"net": row}}, "test_lowering", tmp_path / "store", tmp_path)
    assert "history" not in row and "warning" in capsys.readouterr().err
