"""Figures of earlier runs by commit, as the page draws them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ci.suites.history import add_history
from provisioning.base.findings import Metric


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def _repository(folder: Path, origin: str) -> Path:
    folder.mkdir(parents=True)
    _git(folder, "init", "-q")
    _git(folder, "remote", "add", "origin", origin)
    _commit(folder, "first")
    return folder


def _commit(folder: Path, message: str) -> None:
    _git(folder, "commit", "-q", "--allow-empty", "-m", message)


def _run(
    folder: Path, read: int, store: Path, program: str = "net/8a8w/SM8650", suite: str = "models.toml"
) -> list[float]:
    row: dict[str, Metric] = {
        "suite": str(folder / suite),
        "costs": {"ddr_read": read, "cpu_seconds": 3.0},
        "figures": {"sqnr_db": 40.0},
    }
    add_history({"programs": {program: row}}, "test_lowering", "wheels", store)
    history = row.get("history", [])
    assert isinstance(history, list)
    return [each["ddr_read"] for each in history if isinstance(each, dict)]  # type: ignore[misc]


def test_clones_share_a_history_and_other_repositories_and_suites_do_not(tmp_path: Path) -> None:
    one = _repository(tmp_path / "one", "https://token@example.org/a/net.git")
    clone = _repository(tmp_path / "clone", "git@example.org:a/net")
    _commit(clone, "second")
    other = _repository(tmp_path / "other", "https://example.org/b/net.git")
    assert [_run(one, 1, tmp_path), _run(clone, 2, tmp_path)] == [[1], [1, 2]]
    assert [_run(other, 3, tmp_path), _run(one, 4, tmp_path, suite="large.toml")] == [[3], [4]]
