"""The CI matrix: balanced, and never empty by accident."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.github import matrix
from ci.github.matrix import matrix_of
from ci.github.plan import changed_files
from ci.jobs import Job
from tests.support.repositories import IDENTITY, repository, write
from tests.support.typed import run_here


def _jobs(*seconds: float) -> list[Job]:
    return [Job(f"job{index}", second) for index, second in enumerate(seconds)]


class TestShards:
    @given(st.lists(st.floats(0.1, 100), max_size=30), st.integers(1, 9))
    def test_every_program_is_in_one_of_them(self, seconds: list[float], shards: int) -> None:
        entries = matrix_of(_jobs(*seconds), shards, [])["include"]
        assert sum(int(str(entry["programs"])) for entry in entries) == len(seconds)
        assert all(entry["programs"] for entry in entries) and len(entries) <= shards

    def test_work_that_does_not_pay_for_a_second_machine_is_one_job(self) -> None:
        assert len(matrix_of(_jobs(*[8.0] * 9), 4, [])["include"]) == 1
        assert len(matrix_of(_jobs(*[80.0] * 9), 4, [])["include"]) == 4


def test_a_job_on_another_machine_finds_the_suite_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (suite := tmp_path / "repository/ci/models.toml").parent.mkdir(parents=True)
    run = '[[case.net.run]]\nlane = "executorch"\nprecision = "fp16"\nsocs = ["SM8650"]\n'
    suite.write_text(f'schema = 2\n[case.net]\nfactory = "m:f"\n{run}')
    monkeypatch.chdir(tmp_path / "repository")
    run_here(matrix, "--suite", "ci/models.toml")
    (job,) = json.loads(capsys.readouterr().out)["include"]
    assert job["arguments"] == "--suite ci/models.toml --shard 1/1"


def test_committed_changed_and_new_files_all_count_from_where_a_branch_left(tmp_path: Path) -> None:
    root = repository(tmp_path / "root", {"kept": "1", "old": "2", "gone": "3"})

    def git(*arguments: str) -> None:
        subprocess.run(["git", *IDENTITY, *arguments], cwd=root, check=True)

    git("checkout", "-q", "-b", "mine")
    git("mv", "old", "odd name\n")
    git("rm", "-q", "gone")
    git("commit", "-qm", "mine")
    git("checkout", "-q", "main")
    write(root, {"theirs": "4"})
    git("add", "theirs")
    git("commit", "-qm", "theirs")
    git("checkout", "-q", "mine")
    write(root, {"kept": "5", "new": "6"})
    assert changed_files("main", root) == ["gone", "kept", "new", "odd name\n", "old"]
