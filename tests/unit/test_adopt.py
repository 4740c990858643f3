"""`adopt`: what it writes into a repository, what it leaves, and what it says that it costs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from ci.github import adopt
from ci.github.adopt import COMMENT, DEPENDABOT, GATE, billed_minutes
from ci.work.jobs import Job
from lab.lint import FILLED_IN
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.origin import ON_GITHUB, this_copy
from provisioning.base.settings import PLACEHOLDER, ROOT
from tests.support.examples import example, filled
from tests.support.typed import run_here
from tests.support.workflows import call_of

SUITE = 'schema = 2\n[case.net]\nfactory = "net:make"\n' + (
    '[[case.net.run]]\nlane = "executorch"\nprecision = "8a8w"\nsocs = ["SM8650", "SM8750"]\n'
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    subprocess.run(["git", "init", "-q", "-b", "trunk", str(tmp_path)], check=True)
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci/models.toml").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_three_files_gate_the_suite_that_is_there(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(adopt) == 0
    said = capsys.readouterr().out
    assert all(f"wrote {name}" in said for name in (GATE, COMMENT, DEPENDABOT))
    gate, comment, dependabot = (
        yaml.safe_load((repository / name).read_text()) for name in (GATE, COMMENT, DEPENDABOT)
    )
    (job,) = gate["jobs"].values()
    assert job["with"] == {"suite": "ci/models.toml", "comment": True}
    assert set(job["with"]) <= set(call_of("gate.yml")["inputs"])
    assert gate[True]["push"] == {"branches": ["trunk"]} and "workflow_dispatch" in gate[True]
    assert comment[True]["workflow_run"]["workflows"] == [gate["name"]]
    assert dependabot["updates"][0]["package-ecosystem"] == "github-actions"
    assert re.search(r"about \d+ minutes .* and \d+ if nothing changed", said) and "USD" in said


def test_the_chips_and_suites_that_are_typed_are_those_of_the_workflow(repository: Path) -> None:
    (repository / "other.toml").write_text(SUITE.replace("case.net", "case.other"))
    typed = ["--suite", "other.toml", "--suite", "ci/models.toml", "--soc", "8-elite", "--soc", "SM8650"]
    assert run_here(adopt, *typed) == 0
    (job,) = yaml.safe_load((repository / GATE).read_text())["jobs"].values()
    assert job["with"]["suite"] == "other.toml,ci/models.toml" and job["with"]["socs"] == "SM8750,SM8650"


def test_typed_twice_it_changes_nothing(repository: Path) -> None:
    run_here(adopt)
    before = {name: (repository / name).read_bytes() for name in (GATE, COMMENT, DEPENDABOT)}
    assert run_here(adopt) == 0
    assert before == {name: (repository / name).read_bytes() for name in before}


def test_a_file_that_somebody_edited_stays_and_its_difference_is_shown(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_here(adopt)
    edited = (repository / GATE).read_text().replace("comment: true", "tags: quick")
    (repository / GATE).write_text(edited)
    (repository / COMMENT).unlink()
    with pytest.raises(CheckFailed, match=r"qnn\.yml"):
        run_here(adopt)
    said = capsys.readouterr().out
    assert (repository / GATE).read_text() == edited and (repository / COMMENT).is_file()
    assert "-      tags: quick\n+      comment: true\n" in said


@pytest.mark.parametrize(("ecosystem", "stays"), [("github-actions", True), ('"github-actions"', True)])
def test_dependabot_that_renews_actions_already_is_as_it_should_be(
    repository: Path, ecosystem: str, stays: bool
) -> None:
    (repository / ".github").mkdir()
    text = f"version: 2\nupdates:\n  - package-ecosystem: {ecosystem}\n"
    (repository / DEPENDABOT).write_text(text)
    assert (run_here(adopt) == 0) == stays and (repository / DEPENDABOT).read_text() == text


def test_dependabot_that_renews_others_alone_is_shown_what_it_lacks(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / ".github").mkdir()
    (repository / DEPENDABOT).write_text("version: 2\nupdates:\n  - package-ecosystem: pip\n")
    with pytest.raises(CheckFailed, match="dependabot"):
        run_here(adopt)
    assert "+  - package-ecosystem: github-actions" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["missing.toml", "../outside.toml"])
def test_a_suite_that_the_repository_does_not_have_is_refused(repository: Path, name: str) -> None:
    (repository.parent / "outside.toml").write_text(SUITE)
    with pytest.raises(UsageError, match="repository"):
        run_here(adopt, "--suite", name)


def test_without_a_suite_it_says_which_it_looked_for(repository: Path) -> None:
    (repository / "ci/models.toml").unlink()
    with pytest.raises(UsageError, match=r"ci/models\.toml"):
        run_here(adopt)


@pytest.mark.parametrize(
    "remote",
    [
        "https://github.com/somebody/qnn-ci",
        "https://github.com/somebody/qnn-ci.git",
        "https://token@github.com/somebody/qnn-ci/",
        "git@github.com:somebody/qnn-ci.git",
        "ssh://git@github.com/somebody/qnn-ci.git",
    ],
)
def test_a_clone_knows_its_address_from_its_remote_and_its_commit_from_git(
    tmp_path: Path, remote: str
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    for command in (["add", "-A"], ["commit", "-qm", "x"], ["remote", "add", "origin", remote]):
        subprocess.run([*git, *command], check=True)
    copy = this_copy(tmp_path)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert (copy.name, copy.commit, copy.version) == ("somebody/qnn-ci", head.strip(), "1.2.3")


@pytest.mark.parametrize("remote", ["/tmp/qnn-ci", "https://gitlab.example/a/b", "https://github.com/a"])
def test_another_remote_is_no_address_on_github(remote: str) -> None:
    assert ON_GITHUB.fullmatch(remote) is None


def test_the_page_shows_the_workflow_that_comments_as_it_is_written() -> None:
    text = (ROOT / "manifests/adopt/qnn-comment.yml").read_text(encoding="utf-8")
    assert filled(text) == example(ROOT / "docs/github.md", "name: QNN comment\n")
    assert PLACEHOLDER in text and FILLED_IN


def test_minutes_grow_with_the_programs_and_are_fewer_if_nothing_changed() -> None:
    few, many = ([Job(str(number), 60.0) for number in range(count)] for count in (2, 100))
    assert billed_minutes(few, 1.0) < billed_minutes(many, 1.0) and billed_minutes(
        many, 0.1
    ) < billed_minutes(many, 1.0)
    # plan, report, verdict, and a job that is ready after two and a half minutes
    assert billed_minutes([Job("one", 10.0)], 1.0) == 3 + 3
