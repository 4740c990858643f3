"""Checkouts of repositories of this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from provisioning import sources
from provisioning.base.errors import IntegrityError, ToolkitError, UpstreamError
from provisioning.sources import Git
from tests.support.http_server import FileServer, Reply


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a tag `v1`, one commit after it, and a submodule named by a relative address."""
    settings = {
        "protocol.file.allow": "always",
        "user.name": "Test",
        "user.email": "test@example.invalid",
        "init.defaultBranch": "main",
        "commit.gpgSign": "false",
    }
    configure(monkeypatch, settings)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    library = tmp_path / "up" / "library"
    library.mkdir(parents=True)
    (library / "library.txt").write_text("library")
    run(library, "init", "-q")
    commit(library, "library")
    tree = tmp_path / "up" / "tree"
    tree.mkdir()
    (tree / "file.txt").write_text("one")
    run(tree, "init", "-q")
    run(tree, "submodule", "--quiet", "add", "../library", "third-party/library")
    commit(tree, "one")
    run(tree, "tag", "v1")
    (tree / "file.txt").write_text("two")
    commit(tree, "two")
    return tree


def configure(monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, str]) -> None:
    """Settings of git besides those that there are."""
    count = int(os.environ.get("GIT_CONFIG_COUNT", "0"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", str(count + len(settings)))
    for index, (key, value) in enumerate(settings.items(), count):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{index}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{index}", value)


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, message: str) -> str:
    run(folder, "add", "-A")
    run(folder, "commit", "-q", "-m", message)
    return run(folder, "rev-parse", "HEAD")


def pinned(upstream: Path, pin: str | None, tag: str = "v1") -> Git:
    # A file:// address, which a manifest may not hold.
    return Git.model_construct(type="git", url=upstream.as_uri(), tag=tag, commit=pin)


def test_the_pinned_commit_is_checked_out_with_its_submodules(upstream: Path, tmp_path: Path) -> None:
    pin = run(upstream, "rev-parse", "v1")
    into = tmp_path / "out" / "tree"
    assert sources.checkout(pinned(upstream, pin), into) == pin
    assert (into / "file.txt").read_text() == "one"
    assert (into / "third-party" / "library" / "library.txt").read_text() == "library"
    assert run(into, "rev-list", "--count", "HEAD") == "1"


def test_what_is_fetched_is_unpacked_file_by_file(upstream: Path, tmp_path: Path) -> None:
    program = upstream / "tool" / "program"
    program.parent.mkdir()
    program.write_text("#!/bin/sh")
    program.chmod(0o700)
    (upstream / "link").symlink_to("tool/program")
    source = pinned(upstream, commit(upstream, "a program and a link"), "v2")
    run(upstream, "tag", "v2")
    fetched = source.fetch(tmp_path / "downloads")
    assert run(fetched.path, "rev-parse", "HEAD") == source.commit == fetched.sha256
    places = {"file.txt": "file", "tool/program": "bin/program", "link": "link"}
    entries = source.unpack(fetched.path, tmp_path / "into", places.get)
    listed = {row.path: (row.kind, row.mode) for row in entries}
    assert listed == {"file": ("file", 0o644), "bin/program": ("file", 0o755), "link": ("link", 0o777)}
    assert (tmp_path / "into" / "file").read_text() == "two"
    assert (tmp_path / "into" / "link").readlink() == Path("tool/program")


def test_a_server_that_gives_only_named_commits_serves_by_the_tag(
    upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(upstream, "tag", "-a", "-m", "annotated", "v2", "v1")
    run(upstream, "tag", "-d", "v1")
    pin = run(upstream, "rev-parse", "v2^{commit}")
    configure(monkeypatch, {"protocol.version": "0"})
    run(tmp_path, "init", "-q", "empty")
    asking = ["git", "fetch", "-q", "--depth=1", upstream.as_uri(), pin]
    refused = subprocess.run(asking, cwd=tmp_path / "empty", capture_output=True, check=False)
    assert refused.returncode != 0
    assert sources.checkout(pinned(upstream, pin, "v2"), tmp_path / "tree") == pin


def test_a_finished_checkout_is_used_again(upstream: Path, tmp_path: Path) -> None:
    pin = run(upstream, "rev-parse", "v1")
    sources.checkout(pinned(upstream, pin), tmp_path / "tree")
    upstream.rename(upstream.with_name("gone"))
    assert sources.checkout(pinned(upstream, pin), tmp_path / "tree") == pin


@pytest.mark.parametrize("changed", ["file.txt", "a new file", "third-party/library/library.txt"])
def test_a_finished_checkout_that_was_changed_since_is_refused(
    upstream: Path, tmp_path: Path, changed: str
) -> None:
    pin = run(upstream, "rev-parse", "v1")
    sources.checkout(pinned(upstream, pin), tmp_path / "tree")
    (tmp_path / "tree" / changed).write_text("changed by hand")
    with pytest.raises(IntegrityError, match=str(tmp_path / "tree")):
        sources.checkout(pinned(upstream, pin), tmp_path / "tree")


def test_another_checkout_in_the_place_is_not_taken_for_the_pin(upstream: Path, tmp_path: Path) -> None:
    sources.checkout(pinned(upstream, None), tmp_path / "tree")
    other = run(upstream, "rev-parse", "main")
    with pytest.raises(IntegrityError, match=other):
        sources.checkout(pinned(upstream, other), tmp_path / "tree")


def test_a_checkout_cut_short_is_finished_by_the_next(upstream: Path, tmp_path: Path) -> None:
    pin = run(upstream, "rev-parse", "v1")
    library = upstream.with_name("library")
    library.rename(upstream.with_name("away"))
    with pytest.raises(ToolkitError):
        sources.checkout(pinned(upstream, pin), tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
    upstream.with_name("away").rename(library)
    (tmp_path / "tree.part" / ".git" / "index.lock").touch()
    assert sources.checkout(pinned(upstream, pin), tmp_path / "tree") == pin


def test_a_pin_that_can_be_had_is_still_refused_when_the_tag_names_another(
    upstream: Path, tmp_path: Path
) -> None:
    pin, other = run(upstream, "rev-parse", "v1"), run(upstream, "rev-parse", "main")
    run(upstream, "tag", "-f", "v1", other)
    with pytest.raises(IntegrityError, match=f"v1.*{pin}.*{other}"):
        sources.checkout(pinned(upstream, pin), tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_a_server_that_refuses_is_not_called_a_network_error(tmp_path: Path) -> None:
    with FileServer(b"", usual=Reply(status=401, body=b"no")) as server:
        source = Git.model_construct(type="git", url=server.url("/tree.git"), tag="v1", commit="a" * 40)
        with pytest.raises(UpstreamError) as caught:
            sources.checkout(source, tmp_path / "tree")
    assert "credential" in caught.value.fix


def test_only_files_of_the_commit_and_its_submodules_count(upstream: Path, tmp_path: Path) -> None:
    (upstream / ".gitignore").write_text("*.log\n")
    source = pinned(upstream, commit(upstream, "ignore logs"), "v2")
    run(upstream, "tag", "v2")
    sources.checkout(source, tmp_path / "tree")
    (tmp_path / "tree" / "planted.log").write_text("not of the commit")
    assert sources.checkout(source, tmp_path / "tree") == source.commit
    assert sources.files_of(tmp_path / "tree", source) == [
        ".gitignore",
        ".gitmodules",
        "file.txt",
        "third-party/library/library.txt",
    ]
