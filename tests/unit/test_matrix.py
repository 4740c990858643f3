"""The CI matrix: balanced, never empty by accident, and never without a case that a change concerns."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.engine.jobs import Job
from ci.github.matrix import affected_cases, changed_files, gitlab_pipeline, matrix_of
from ci.lanes.executorch.suite import SHIPPED, all_programs
from provisioning.base.command_line import main
from provisioning.base.settings import ROOT
from tests.support.repositories import IDENTITY, repository, write

PROGRAMS = all_programs([])


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

    def test_a_child_pipeline_of_gitlab_has_the_shards_and_never_none(self) -> None:
        entries = matrix_of(_jobs(100, 100), 2, ["--tag", "pr"])["include"]
        jobs = gitlab_pipeline(entries)
        assert list(jobs) == ["qnn 1/2", "qnn 2/2"]
        assert "test_lowering -- --tag pr --shard 2/2" in json.dumps(jobs["qnn 2/2"])
        assert len(gitlab_pipeline([])) == 1

    @pytest.mark.parametrize("shards", [[], matrix_of(_jobs(100), 1, [])["include"]])
    def test_a_child_pipeline_runs_in_the_image_of_the_job_that_plans_it(
        self, shards: list[dict[str, object]]
    ) -> None:
        """Of its parent it inherits none."""
        jobs: dict[str, Any] = gitlab_pipeline(shards, image="python:3.11")
        assert jobs and all(job["image"] == "python:3.11" for job in jobs.values())

    @pytest.mark.parametrize(
        ("variables", "remembers"),
        [
            ({"CI_COMMIT_REF_PROTECTED": "true", "CI_COMMIT_BRANCH": "main"}, True),
            ({"CI_COMMIT_REF_PROTECTED": "false", "CI_COMMIT_BRANCH": "topic"}, False),
            ({"CI_COMMIT_REF_PROTECTED": "true", "CI_MERGE_REQUEST_IID": "1"}, False),
            ({}, False),
        ],
    )
    def test_on_gitlab_only_a_protected_branch_uses_the_cache(
        self, variables: dict[str, str], remembers: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from ci.__main__ import VERBS

        for name in ("CI_COMMIT_REF_PROTECTED", "CI_COMMIT_BRANCH"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("CI_JOB_IMAGE", "python:3.11")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        output = tmp_path / "pipeline.yml"
        assert main("qnn-ci", "", VERBS, ["matrix", "--format", "gitlab", "-o", str(output)]) == 0
        jobs = json.loads(output.read_text())
        assert jobs and all(("cache" in job) == remembers for job in jobs.values())
        assert all(job["image"] == "python:3.11" for job in jobs.values())


class TestAffected:
    def _cases(self, *changed: str) -> frozenset[str] | None:
        return affected_cases(PROGRAMS, [ROOT / name for name in changed], "HEAD").cases

    def test_a_file_that_others_import_concerns_theirs_too(self) -> None:
        cases = self._cases("ci/pipeline/models/shipped/vision.py")
        assert cases is not None and {"vit", "bert", "llama_decode", "op_gelu"} <= cases

    @pytest.mark.parametrize(
        "changed",
        [
            "ci/lanes/executorch/lower.py",
            "ci/a_new_file.py",
            "ci/pipeline/models/shipped/gone.py",
            "manifests/locks/executorch.txt",
            "noxfile.py",
        ],
    )
    def test_what_is_not_known_to_be_harmless_concerns_everything(self, changed: str) -> None:
        assert self._cases(changed) is None

    @pytest.mark.parametrize(
        "changed", ["README.md", "docs/building.md", "tests/unit/test_elf.py", "lab/lint.py"]
    )
    def test_what_the_manifest_calls_harmless_concerns_nothing(self, changed: str) -> None:
        assert self._cases(changed) == frozenset()

    def test_a_case_that_changed_in_the_suite_is_the_only_one(self, tmp_path: Path) -> None:
        factory = "ci.pipeline.models.shipped.audio:keywords"
        now = SHIPPED.read_text()
        suite = repository(tmp_path / "root", {"x.toml": now.replace(factory, "old:keywords")}) / "x.toml"
        suite.write_text(now)
        assert affected_cases(all_programs([suite]), [suite], "HEAD").cases == frozenset({"keywords"})


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


OWN = """
[case.{0}]
factory = "{0}:net"
[[case.{0}.run]]
lane = "executorch"
precision = "fp16"
socs = ["SM8650"]
tags = ["pr"]
thresholds = {{ cosine = 0.99 }}
"""


class TestAnotherRepository:
    """A suite with its models, in the repository of whoever uses this one."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        suite = "schema = 2\n" + OWN.format("one") + OWN.format("two")
        files = {
            "suite.toml": suite,
            "one.py": "import shared",
            "two.py": "",
            "shared.py": "",
            "labels.txt": "",
        }
        nets = {f"nets/{name}": text for name, text in files.items()}
        return repository(tmp_path / "theirs", {**nets, "README.md": ""}) / "nets"

    def _matrix(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
        from ci.__main__ import VERBS

        flags = ["--suite", str(folder / "suite.toml"), "--changed-since", "HEAD", "--shards", "1"]
        assert main("python -m ci", "", VERBS, ["matrix", *flags]) == 0
        include = json.loads(capsys.readouterr().out)["include"]
        return [str(entry["arguments"]) for entry in include]

    def test_nothing_changed_there_is_nothing_to_do_whatever_changed_here(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self._matrix(folder, capsys) == []

    @pytest.mark.parametrize(
        ("changed", "case"), [("one.py", "one"), ("shared.py", "one"), ("two.py", "two")]
    )
    def test_a_file_of_theirs_concerns_the_cases_that_import_it(
        self, folder: Path, changed: str, case: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / changed).write_text("import math\n" + (folder / changed).read_text())
        (arguments,) = self._matrix(folder, capsys)
        assert arguments == f"--suite {folder / 'suite.toml'} --case {case} --shard 1/1"

    def test_a_case_that_changed_is_the_only_one(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        suite = folder / "suite.toml"
        suite.write_text(suite.read_text().replace("cosine = 0.99", "cosine = 0.98", 1))
        (arguments,) = self._matrix(folder, capsys)
        assert "--case one --shard" in arguments

    def test_what_a_factory_might_read_concerns_everything(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (folder / "labels.txt").write_text("cat")
        assert not any("--case" in arguments for arguments in self._matrix(folder, capsys))


def test_on_gitlab_only_the_job_without_models_has_the_key() -> None:
    shards = [{"shard": "1/1", "arguments": ""}]
    jobs: dict[str, Any] = gitlab_pipeline(shards, remembers=True, pushes=True)
    work, push = jobs["qnn 1/1"], jobs["push"]
    assert "results/" in work["artifacts"]["paths"] and "environment" not in work
    assert push["environment"] == "qnn-ci-cache" and push["stage"] == ".post"
    assert push["script"][-1].endswith("cache -- push results")
    assert not any("test_" in line for line in push["script"])
    assert "push" not in gitlab_pipeline(shards, remembers=True)
