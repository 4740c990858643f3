"""The CI matrix: balanced, never empty by accident, and never without a case that a change concerns."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci import matrix
from ci.lowering.suite import SHIPPED, all_programs
from ci.matrix import affected_cases, matrix_of
from ci.scheduler import Job
from provisioning.cli import main
from provisioning.errors import UsageError

PROGRAMS = all_programs([])


def _jobs(*seconds: float) -> list[Job]:
    return [Job(f"job{index}", each) for index, each in enumerate(seconds)]


class TestShards:
    def test_they_are_of_equal_length(self) -> None:
        entries = matrix_of(_jobs(8, 1, 1, 1, 1, 1, 1, 1, 1), 2, [])["include"]
        assert [entry["seconds"] for entry in entries] == [8, 8]

    @given(st.lists(st.floats(0.1, 100), max_size=30), st.integers(1, 9))
    def test_every_program_is_in_one_of_them(self, seconds: list[float], shards: int) -> None:
        entries = matrix_of(_jobs(*seconds), shards, [])["include"]
        assert sum(int(str(entry["programs"])) for entry in entries) == len(seconds)
        assert all(entry["programs"] for entry in entries) and len(entries) <= shards

    def test_nothing_to_do_is_an_empty_list(self) -> None:
        assert matrix_of([], 4, []) == {"include": []}

    def test_the_arguments_carry_the_choice(self) -> None:
        (entry,) = matrix_of(_jobs(1), 4, ["--tag", "pr"])["include"]
        assert entry["arguments"] == "--tag pr --shard 1/1"


class TestAffected:
    def _cases(self, *changed: str) -> frozenset[str] | None:
        return affected_cases(PROGRAMS, changed, "HEAD").cases

    def test_a_models_file_concerns_the_cases_that_use_it(self) -> None:
        assert self._cases("ci/models/audio.py") == frozenset({"keywords"})

    def test_a_file_that_others_import_concerns_theirs_too(self) -> None:
        cases = self._cases("ci/models/vision.py")
        assert cases is not None and {"vit", "bert", "llama_decode", "op_gelu"} <= cases

    @pytest.mark.parametrize(
        "changed",
        [
            "ci/lowering/lower.py",
            "ci/lowering/judge.py",
            "ci/emulator.py",
            "ci/scheduler.py",
            "provisioning/store.py",
        ],
    )
    def test_what_the_stages_import_concerns_everything(self, changed: str) -> None:
        assert self._cases(changed) is None

    @pytest.mark.parametrize(
        "changed",
        ["manifests/locks/executorch.txt", "manifests/profiles/wheels.toml", "new.bin", "ci/models/gone.py"],
    )
    def test_what_is_not_sure_concerns_everything(self, changed: str) -> None:
        assert self._cases(changed) is None

    @pytest.mark.parametrize(
        "changed", ["README.md", "docs/runner.md", "tests/unit/test_elf.py", "ci/lint.py"]
    )
    def test_what_nothing_here_reads_concerns_nothing(self, changed: str) -> None:
        assert self._cases(changed) == frozenset()

    def test_the_file_that_made_it_everything_is_named(self) -> None:
        assert affected_cases(PROGRAMS, ["docs/x.md", "ci/emulator.py"], "HEAD").why == "ci/emulator.py"

    def test_a_case_that_changed_in_the_suite_is_the_only_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        then = SHIPPED.read_text().replace('factory = "ci.models.audio:keywords"', 'factory = "old:keywords"')
        monkeypatch.setattr(matrix, "_git", lambda *arguments: then)
        assert self._cases("manifests/suites/lowering.toml") == frozenset({"keywords"})

    def test_a_suite_that_could_not_be_read_then_concerns_everything(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(matrix, "_git", lambda *arguments: "not [ toml")
        assert self._cases("manifests/suites/lowering.toml") is None


class TestGit:
    @pytest.fixture
    def repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(matrix, "ROOT", tmp_path)
        for arguments in (
            ["init", "-q", "-b", "main"],
            ["config", "user.email", "t@example.org"],
            ["config", "user.name", "t"],
            ["commit", "-q", "--allow-empty", "-m", "first"],
        ):
            subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
        return tmp_path

    def test_committed_changed_and_new_files_all_count(self, repository: Path) -> None:
        (repository / "committed").write_text("1")
        (repository / "odd name\n").write_text("1")
        subprocess.run(["git", "add", "."], cwd=repository, check=True)
        subprocess.run(["git", "commit", "-qm", "second"], cwd=repository, check=True)
        (repository / "new").write_text("1")
        (repository / "committed").write_text("2")
        assert matrix.changed_files("HEAD~1") == ["committed", "new", "odd name\n"]
        assert matrix.changed_files("HEAD") == ["committed", "new"]

    def test_a_commit_that_is_not_there_is_wrong_use(self, repository: Path) -> None:
        with pytest.raises(UsageError, match="git merge-base nowhere HEAD failed"):
            matrix.changed_files("nowhere")


class TestVerb:
    def _run(self, *arguments: str) -> int:
        from ci.__main__ import VERBS

        return main("python -m ci", "", VERBS, ["matrix", *arguments])

    def test_it_prints_json_and_nothing_else(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self._run("--shards", "3", "--tag", "pr") == 0
        include = json.loads(capsys.readouterr().out)["include"]
        assert [entry["arguments"] for entry in include] == [f"--tag pr --shard {n}/3" for n in (1, 2, 3)]

    def test_an_empty_matrix_says_so_to_github(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
        monkeypatch.setattr(matrix, "changed_files", lambda ref: ["README.md"])
        assert self._run("--changed-since", "HEAD", "--github") == 0
        assert (tmp_path / "output").read_text() == 'matrix={"include": []}\nempty=true\n'

    def test_only_the_cases_concerned_are_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(matrix, "changed_files", lambda ref: ["ci/models/audio.py"])
        assert self._run("--changed-since", "HEAD", "--shards", "1") == 0
        (entry,) = json.loads(capsys.readouterr().out)["include"]
        assert entry["arguments"] == "--case keywords --shard 1/1"

    def test_shards_must_be_some(self) -> None:
        assert self._run("--shards", "0") == 2


def test_the_flags_are_those_that_the_stages_take() -> None:
    from ci.lowering.verb import configure

    parser = argparse.ArgumentParser()
    configure(parser)
    typed = "--suite a.toml --tag pr -k x --soc SM8650 --case y --shard 1/2"
    assert parser.parse_args(typed.split()).case == ["y"]
