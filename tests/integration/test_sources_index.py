"""The user's own pip and uv against an index on the loopback interface."""

from __future__ import annotations

import hashlib
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from provisioning.base.errors import IntegrityError, UpstreamError
from provisioning.download import Fetched
from provisioning.manifest import Wheel
from provisioning.sources import wheel
from provisioning.sources.wheel import fetch_wheel
from tests.support.http_server import FileServer
from tests.support.wheels import index_paths, make_wheel

FILENAME = "tiny_sdk-1.0-cp311-cp311-manylinux_2_34_aarch64.whl"
WHEEL = make_wheel(FILENAME)
SHA = hashlib.sha256(WHEEL).hexdigest()
OWN_PIP = partial(wheel._file_from_pip, [sys.executable, "-m", "pip"])


def source(sha256: str | None = SHA, filename: str = FILENAME) -> Wheel:
    return Wheel(type="wheel", package="tiny-sdk", version="1.0", filename=filename, sha256=sha256)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("PIP_", "UV_", "QNN_CI_")) or "proxy" in n.lower()]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("UV_NO_CACHE", "1")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


def use(monkeypatch: pytest.MonkeyPatch, *ways: wheel.Way) -> None:
    monkeypatch.setattr(wheel, "_ways", lambda environ: list(ways))


@pytest.mark.parametrize("way", [OWN_PIP, wheel._address_from_pip, wheel._address_from_uv])
def test_a_wheel_of_another_platform_comes_from_the_users_index(
    way: wheel.Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, way)
    with FileServer(b"", paths=index_paths("tiny-sdk", [(FILENAME, WHEEL)])) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url("/simple"))
        monkeypatch.setenv("UV_DEFAULT_INDEX", server.url("/simple"))
        fetched = fetch_wheel(source(), tmp_path)
    assert (fetched.path, fetched.path.read_bytes()) == (tmp_path / SHA, WHEEL)
    assert sorted(p.name for p in tmp_path.iterdir()) == [SHA, f"{SHA}.lock"]


@pytest.mark.parametrize("setting", ["REQUIRE_HASHES", "USER"])
def test_settings_about_installing_do_not_stop_it(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"PIP_{setting}", "1")
    use(monkeypatch, wheel._address_from_pip)
    with FileServer(b"", paths=index_paths("tiny-sdk", [(FILENAME, WHEEL)])) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url("/simple"))
        assert fetch_wheel(source(), tmp_path).sha256 == SHA


@pytest.mark.parametrize("way", [OWN_PIP, wheel._address_from_uv])
def test_a_wheel_comes_from_the_users_links(
    way: wheel.Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "li nks"
    links.mkdir()
    (links / FILENAME).write_bytes(WHEEL)
    use(monkeypatch, way)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    # Nobody listens there, so that asking fails.
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", links.as_uri())
    assert fetch_wheel(source(), tmp_path / "downloads").sha256 == SHA


def test_other_bytes_than_the_manifests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, wheel._address_from_uv)
    with FileServer(b"", paths=index_paths("tiny-sdk", [(FILENAME, WHEEL)])) as server:
        monkeypatch.setenv("UV_DEFAULT_INDEX", server.url("/simple"))
        with pytest.raises(IntegrityError, match=f"expected sha256 {'0' * 64}, found {SHA}"):
            fetch_wheel(source("0" * 64), tmp_path)
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == []


def test_an_address_that_needs_what_only_pip_has_is_left_to_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> Fetched:
        raise UpstreamError("the server answered 401")

    use(monkeypatch, refused, OWN_PIP)
    with FileServer(b"", paths=index_paths("tiny-sdk", [(FILENAME, WHEEL)])) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url("/simple"))
        assert fetch_wheel(source(), tmp_path).sha256 == SHA


@pytest.mark.parametrize("way", [OWN_PIP, wheel._address_from_uv])
def test_a_wheel_that_the_index_lacks_is_named_without_secrets(
    way: wheel.Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "tiny_sdk-0.9-cp311-cp311-manylinux_2_34_aarch64.whl"
    use(monkeypatch, way)
    with FileServer(b"", paths=index_paths("tiny-sdk", [(other, make_wheel(other))])) as server:
        for variable in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
            monkeypatch.setenv(variable, server.url("/simple", userinfo="me:TOPSECRET@"))
        with pytest.raises(UpstreamError, match="does not have this wheel") as caught:
            fetch_wheel(source(), tmp_path)
    assert FILENAME in caught.value.message
    assert "TOPSECRET" not in caught.value.message + caught.value.remedy


@pytest.mark.parametrize("way", [OWN_PIP, wheel._address_from_uv])
def test_an_index_that_is_down_is_named(
    way: wheel.Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, way)
    for variable in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.setenv(variable, "http://me:TOPSECRET@127.0.0.1:9/simple")
    with pytest.raises(UpstreamError, match="could not be reached") as caught:
        fetch_wheel(source(), tmp_path)
    assert caught.value.exit_code == 4
    assert "TOPSECRET" not in caught.value.message + caught.value.remedy
