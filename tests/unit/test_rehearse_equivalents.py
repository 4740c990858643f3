"""What stands in for other people's actions does to files what they do on GitHub."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ci.github.rehearse.equivalents import (
    Done,
    Machine,
    Place,
    Repository,
    cache_restore,
    cache_save,
    checkout,
    download_artifact,
    upload_artifact,
)
from tests.support.rehearsals import IDENTITY, repository, write

MAIN, MINE = "refs/heads/main", "refs/heads/mine"

Job = Callable[..., Place]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Jobs of one rehearsal, each with a workspace of its own that has these files."""
    machine = Machine(Repository("o/r", tmp_path, "0" * 40), tmp_path / "caches", tmp_path / "artifacts")
    numbers = itertools.count()

    def made(files: dict[str, str] | None = None, ref: str = MAIN) -> Place:
        home = tmp_path / f"job-{next(numbers)}"
        for name in ("workspace", "temp"):
            (home / name).mkdir(parents=True)
        write(home / "workspace", files or {})
        return Place(machine, home / "workspace", home / "temp", ref, MAIN, print, print)

    return made


def files_of(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def restored(place: Place, key: str, path: str = "store", **more: str) -> Done:
    return cache_restore({"path": path, "key": key, **more}, place)


def matched(place: Place, key: str, **more: str) -> tuple[str | None, str | None]:
    outputs = restored(place, key, **more).outputs
    return outputs.get("cache-matched-key"), outputs.get("cache-hit")


# Checkouts


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, list[str]]:
    """A repository with three commits on main, the last of which is rehearsed, and a branch with one more."""
    root = repository(tmp_path_factory.mktemp("origin"), {"file": "0"})

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=root, check=True, capture_output=True, text=True
        ).stdout

    def commit(content: str) -> str:
        write(root, {"file": content})
        git(*IDENTITY, "commit", "-q", "-a", "-m", content)
        return git("rev-parse", "HEAD").strip()

    shas = [git("rev-parse", "HEAD").strip(), commit("1"), commit("2")]
    git("checkout", "-q", "-b", "branch")
    shas.append(commit("3"))
    git("checkout", "-q", "main")
    return Repository("o/r", root, shas[2]), shas


@pytest.mark.parametrize(("ref", "number"), [("", 2), ("branch", 3), ("first", 0)])
def test_a_checkout_is_of_the_rehearsed_commit_or_of_what_is_asked_for(
    job: Job, commits: tuple[Repository, list[str]], ref: str, number: int
) -> None:
    rehearsed, shas = commits
    place = job()
    place = replace(place, machine=replace(place.machine, repository=rehearsed))
    done = checkout({"ref": shas[0] if ref == "first" else ref, "path": "here"}, place)
    assert done.outputs["commit"] == shas[number]
    assert (place.workspace / "here" / "file").read_text() == str(number)
    git = ["git", "-C", str(place.workspace / "here")]
    count = subprocess.run([*git, "rev-list", "--count", "HEAD"], capture_output=True, text=True, check=True)
    assert count.stdout == "1\n"


# Caches


def test_a_cache_gives_back_folders_files_and_links(job: Job) -> None:
    files = {"store/a": "1", "store/deep/b": "2", "alone.txt": "3"}
    one = job(files)
    (one.workspace / "store" / "link").symlink_to("a")
    (one.workspace / "store" / "twin").hardlink_to(one.workspace / "store" / "a")
    cache_save({"path": "store\nalone.txt\nnothing", "key": "k"}, one)
    other = job()
    restored(other, "k", path="store\nalone.txt\nnothing")
    assert files_of(other.workspace) == {**files, "store/link": "1", "store/twin": "1"}
    assert (other.workspace / "store" / "link").readlink() == Path("a")


def test_a_cache_of_that_key_beats_newer_ones_and_of_those_that_begin_so_the_newest_is_taken(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter((2000.0, 3000.0, 1000.0))
    monkeypatch.setattr(time, "time", lambda: next(now))
    for key in ("k-1", "k-2", "k-3"):
        cache_save({"path": "store", "key": key}, job({"store/key": key}))
    place = job()
    assert matched(place, "k-1", **{"restore-keys": "k-"}) == ("k-1", "true")
    assert matched(place, "k-9", **{"restore-keys": "none\nk-"}) == ("k-2", "false")
    assert (place.workspace / "store/key").read_text() == "k-2"
    assert matched(place, "k-", **{"restore-keys": "k-1"}) == ("k-2", "false")
    assert matched(place, "x") == (None, None)


# Artifacts


@pytest.mark.parametrize(
    ("path", "more", "names"),
    [
        ("out", {}, {"a", "deep/b"}),
        ("out/*", {}, {"a", "deep/b"}),
        ("out/a", {}, {"a"}),
        ("out\nother", {}, {"out/a", "out/deep/b", "other/c"}),
        ("out\n!out/deep/**", {}, {"a"}),
        ("out", {"include-hidden-files": "true"}, {"a", "deep/b", ".hidden"}),
    ],
)
def test_an_artifact_has_the_files_below_what_its_patterns_share(
    job: Job, path: str, more: dict[str, str], names: set[str]
) -> None:
    place = job({"out/a": "1", "out/deep/b": "2", "out/.hidden": "3", "other/c": "4"})
    upload_artifact({"name": "n", "path": path, **more}, place)
    download_artifact({"name": "n", "path": "in"}, place)
    assert set(files_of(place.workspace / "in")) == names


# Others
