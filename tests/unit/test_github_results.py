"""Results, wheels and stores by GitHub's cache: which one a job restores, and who saves."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from ci.github import place, results, wheels
from tests.support.http_server import FileServer, Reply, Request
from tests.support.wheels import make_wheel
from tests.support.workflows.commands import pairs

MAIN, PULL, QUEUE = "refs/heads/main", "refs/pull/1/merge", "refs/heads/gh-readonly-queue/main/pr-1"


class CacheList(FileServer):
    """GitHub's list of what is saved in a folder, the newest first. Its filters are left to who asks."""

    def __init__(self, caches: Path) -> None:
        super().__init__(b"")
        self.caches = caches

    def next_reply(self, request: Request) -> Reply:
        files = sorted(self.caches.glob("*/*"), key=lambda file: file.stat().st_mtime, reverse=True)
        rows = [{"key": unquote(file.name), "ref": unquote(file.parent.name)} for file in files]
        return Reply(body=json.dumps({"actions_caches": rows}).encode())


@dataclass
class GitHub:
    """Its caches, its list of them, and the variables of its jobs."""

    home: Path
    api: str
    count: int = 0

    def environ(self, ref: str, **more: str) -> dict[str, str]:
        self.count += 1
        temp = self.home / f"job-{self.count}"
        temp.mkdir()
        event: dict[str, object] = {"repository": {"default_branch": "main"}}
        if ref == PULL:
            event["pull_request"] = {"base": {"ref": "main"}}
        (temp / "event.json").write_text(json.dumps(event))
        names = {"GITHUB_REF": ref, "GITHUB_EVENT_PATH": str(temp / "event.json")}
        run = {"GITHUB_RUN_ID": str(self.count), "RUNNER_TEMP": str(temp), "GITHUB_OUTPUT": str(temp / "out")}
        at = {"GITHUB_API_URL": self.api, "GITHUB_REPOSITORY": "somebody/models"}
        return {**names, **run, **at, **more}

    def save(self, ref: str, key: str) -> None:
        file = self.home / "caches" / quote(ref, safe="") / quote(key, safe="")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (1e9 + self.count, 1e9 + self.count))


@pytest.fixture
def github(tmp_path: Path) -> Iterator[GitHub]:
    home = tmp_path / "github"
    home.mkdir()
    with CacheList(home / "caches") as server:
        yield GitHub(home, server.url(""))


def placed(environ: Mapping[str, str]) -> dict[str, str]:
    """The outputs of the step that finds the results."""
    assert results.run(environ) == 0
    return pairs(Path(environ["GITHUB_OUTPUT"]))


@pytest.fixture
def key(github: GitHub) -> str:
    """The newest of two that the default branch saved."""
    for _ in range(2):
        key = placed(github.environ(MAIN))["save"]
        github.save(MAIN, key)
    return key


@pytest.mark.parametrize("ref", [MAIN, PULL, QUEUE])
def test_a_later_job_restores_what_the_default_branch_saved_last(github: GitHub, key: str, ref: str) -> None:
    assert placed(github.environ(ref))["restore"] == key


def test_a_cache_that_a_pull_request_saved_itself_is_restored_by_nobody(github: GitHub, key: str) -> None:
    github.count += 100
    github.save(PULL, f"{key}9")
    github.save("refs/heads/topic", f"{key}9")
    assert placed(github.environ(PULL))["restore"] == ""
    assert placed(github.environ("refs/heads/topic"))["restore"] == ""
    assert placed(github.environ(MAIN))["restore"] == key


@pytest.mark.parametrize(
    ("event", "ref", "saves"),
    [
        ("push", MAIN, "true"),
        ("schedule", MAIN, "true"),
        ("push", "refs/heads/topic", "false"),
        ("pull_request", PULL, "false"),
        ("pull_request_target", MAIN, "false"),
        ("merge_group", QUEUE, "false"),
    ],
)
def test_the_default_branch_alone_saves(github: GitHub, event: str, ref: str, saves: str) -> None:
    assert placed(github.environ(ref, GITHUB_EVENT_NAME=event))["saves"] == saves


@pytest.mark.parametrize("answer", [403, 404, 500, b"{}", b"<html>", None])
def test_without_githubs_list_nothing_is_restored(
    github: GitHub, key: str, answer: int | bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = Reply(status=answer) if isinstance(answer, int) else Reply(body=answer)
    with FileServer(b"", usual=reply) as server:
        github.api = server.url("") if answer is not None else "http://127.0.0.1:1"
        assert placed(github.environ(PULL))["restore"] == ""
    assert ("actions: read" in capsys.readouterr().out) == (answer in (403, 404))


def test_a_list_that_was_not_filtered_gives_no_other_refs_cache(github: GitHub) -> None:
    environ = github.environ(MAIN)
    row = {"key": f"{results.prefix_of(environ)}1", "ref": "refs/pull/9/merge"}
    with FileServer(b"", usual=Reply(body=json.dumps({"actions_caches": [row]}).encode())) as server:
        assert placed({**environ, "GITHUB_API_URL": server.url("")})["restore"] == ""


def test_the_token_is_sent_to_githubs_api_alone(github: GitHub) -> None:
    with FileServer(b"") as other:
        redirect = Reply(status=302, headers={"Location": other.url("/x")})
        with FileServer(b"", usual=redirect) as server:
            github.api = server.url("")
            placed(github.environ(PULL, GH_TOKEN="hush"))
            assert server.requests[0].headers["authorization"] == "Bearer hush"
    assert not any("authorization" in request.headers for request in other.requests)


@pytest.mark.parametrize("name", ["QNN_CI_SUITE", "QNN_CI_PROFILE", "QNN_CI_SOC", "QNN_CI_ARTIFACT"])
def test_each_job_has_results_of_its_own(github: GitHub, key: str, name: str) -> None:
    assert placed(github.environ(PULL, **{name: "another"}))["restore"] == ""


def wheel_settings(environ: dict[str, str]) -> tuple[dict[str, str], Path]:
    """A job's environment after the step `place`, and lock files, of one package that an index here has."""
    home = Path(environ["RUNNER_TEMP"])
    for name in ("links", "locks"):
        (home / name).mkdir()
    name, content = "mine-1.0-py3-none-any.whl", make_wheel("mine-1.0-py3-none-any.whl")
    (home / "links" / name).write_bytes(content)
    hashed = hashlib.sha256(content).hexdigest()
    (home / "locks" / "executorch.txt").write_text(f"mine==1.0 \\\n    --hash=sha256:{hashed}\n")
    pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(home / "links")}
    job = {"PATH": os.environ["PATH"], **environ, **pip, "QNN_CI_STAGE": "test_lowering"}
    return job, home / "locks"


def test_the_locked_packages_are_kept_as_wheels(github: GitHub) -> None:
    environ, locks = wheel_settings(github.environ("refs/heads/main"))
    outputs = placed({**environ, "GITHUB_ENV": str(github.home / "env")})
    environ |= pairs(github.home / "env")
    assert environ["QNN_CI_WHEELS"] == outputs["wheels"] and "UV_CACHE_DIR" not in environ

    def new() -> str:
        assert wheels.run(environ, locks) == 0
        return pairs(Path(environ["GITHUB_OUTPUT"]))["new"]

    kept = Path(outputs["wheels"], "executorch")
    assert new() == "true" and [file.name for file in kept.iterdir()] == ["mine-1.0-py3-none-any.whl"]
    assert new() == "false"


def test_no_wheels_are_restored_but_those_that_the_default_branch_saved(
    github: GitHub,
) -> None:
    """What is unpacked can lie anywhere, so that their hashes are compared later is not enough."""

    def of(ref: str) -> dict[str, str]:
        return placed(github.environ(ref, QNN_CI_STAGE="test_lowering"))

    key = of("refs/heads/main")["wheels-save"]
    assert of(PULL)["wheels-restore"] == ""
    github.save("refs/heads/main", key)
    assert of(PULL)["wheels-restore"] == key
    github.save(PULL, f"{key}9")
    assert of(PULL)["wheels-restore"] == ""
    github.api = "http://127.0.0.1:1"
    outputs = of("refs/heads/main")
    assert outputs["wheels-restore"] == outputs["wheels-save"] == ""


def test_wheels_that_cannot_be_had_fail_no_job(github: GitHub) -> None:
    environ, locks = wheel_settings(github.environ("refs/heads/main"))
    shutil.rmtree(environ["PIP_FIND_LINKS"])
    kept = github.home / "wheels"
    assert wheels.run({**environ, "QNN_CI_WHEELS": str(kept)}, locks) == 0
    assert pairs(Path(environ["GITHUB_OUTPUT"]))["new"] == "false" and not any(kept.rglob("*.whl"))


def test_a_runner_with_a_cache_of_its_own_takes_no_wheels(github: GitHub) -> None:
    environ = github.environ(PULL, QNN_CI_STAGE="test_lowering", UV_CACHE_DIR="/mine")
    assert placed(environ)["wheels"] == ""


def test_a_store_that_a_pull_request_may_have_saved_itself_is_not_restored(
    github: GitHub,
) -> None:
    def cacheable(ref: str) -> tuple[str, str]:
        environ = github.environ(ref)
        assert place.run(environ) == 0
        outputs = pairs(Path(environ["GITHUB_OUTPUT"]))
        return outputs["cacheable"], outputs["key"]

    assert cacheable(PULL)[0] == "true"
    github.save(PULL, cacheable(PULL)[1])
    assert cacheable(PULL)[0] == "false"
    assert cacheable("refs/heads/main")[0] == "true"
    github.api = "http://127.0.0.1:1"
    assert (cacheable(PULL)[0], cacheable("refs/heads/main")[0]) == ("false", "true")
