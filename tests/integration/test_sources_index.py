"""A wheel from the user's own index: real pip, and an index on the loopback interface."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from provisioning.base.errors import EnvironmentLacking, IntegrityError, UpstreamError
from provisioning.base.proxies import PROXIES
from provisioning.sources import Wheel, explained_pip
from tests.support.http_server import FileServer, Reply
from tests.support.wheels import index_paths, make_wheel

FILENAME = "tiny_sdk-1.0-cp311-cp311-manylinux_2_34_aarch64.whl"
WHEEL = make_wheel(FILENAME)
OTHER = "tiny_sdk-0.9-cp311-cp311-manylinux_2_34_aarch64.whl"
SHA = hashlib.sha256(WHEEL).hexdigest()


def source(sha256: str | None = SHA, filename: str = FILENAME) -> Wheel:
    return Wheel(type="wheel", package="tiny-sdk", version="1.0", filename=filename, sha256=sha256)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("PIP_", "UV_", "QNN_CI_")) or "proxy" in n.lower()]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


def serving(filename: str = FILENAME) -> FileServer:
    return FileServer(b"", paths=index_paths("tiny-sdk", [(filename, make_wheel(filename))]))


@pytest.mark.parametrize("variable", ["UV_DEFAULT_INDEX", "PIP_CONFIG_FILE"])
def test_a_wheel_of_another_platform_comes_from_the_users_index(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Settings about installing do not matter: nothing is installed.
    monkeypatch.setenv("PIP_REQUIRE_HASHES", "1")
    with serving() as server:
        value = server.url("/simple")
        if variable == "PIP_CONFIG_FILE":
            (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {value}\n")
            value = str(tmp_path / "pip.conf")
        monkeypatch.setenv(variable, value)
        fetched = source().fetch(tmp_path / "downloads")
    assert (fetched.path, fetched.path.read_bytes()) == (tmp_path / "downloads" / SHA, WHEEL)


def test_a_wheel_comes_from_the_users_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = tmp_path / "li nks"
    links.mkdir()
    (links / FILENAME).write_bytes(WHEEL)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", links.as_uri())
    assert source().fetch(tmp_path / "downloads").sha256 == SHA


def test_other_bytes_than_the_manifests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url("/simple"))
        with pytest.raises(IntegrityError, match=f"{'0' * 64}.*{SHA}"):
            source("0" * 64).fetch(tmp_path)
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == []


def test_the_indexs_credentials_serve_for_its_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url("/simple", userinfo="me:TOP%40SECRET@"))
        source().fetch(tmp_path)
        assert server.requests[-1].headers["authorization"] == "Basic bWU6VE9QQFNFQ1JFVA=="


@pytest.mark.parametrize("refusal", ["no wheel", "401", "down"])
def test_what_fails_is_reported_without_secrets(
    refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileServer(b"", usual=Reply(status=401)) if refusal == "401" else serving(OTHER) as server:
        address = server.url("/simple", userinfo="me:TOPSECRET@")
        if refusal == "down":
            address = "http://me:TOPSECRET@127.0.0.1:9/simple"
        monkeypatch.setenv("PIP_INDEX_URL", address)
        with pytest.raises(UpstreamError) as caught:
            source().fetch(tmp_path)
    error = caught.value
    assert FILENAME in error.message and "ERROR" in error.output
    assert "TOPSECRET" not in error.message + error.fix + error.output


def test_a_full_disk_is_no_fault_of_the_index() -> None:
    words = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    error = explained_pip(source(), f"WARNING: connection broken\n{words}")
    assert isinstance(error, EnvironmentLacking) and "TMPDIR" in error.fix


def test_what_pip_says_is_shown_without_its_secrets() -> None:
    text = "ERROR: could not open https://u:hush@i.invalid/simple?key=hush (tried 'http://hush@x/')"
    error = explained_pip(source(), text)
    assert "could not open" in error.output and "hush" not in error.message + error.output


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "all_proxy"])
def test_a_proxy_that_does_not_answer_is_named_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for proxy in PROXIES:
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(UpstreamError, match="proxy") as caught:
        source().fetch(tmp_path)
    assert f"unset {name}" in caught.value.fix
