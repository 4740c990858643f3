"""The verb `lock` over manifests of our own and a real server, and what it records in a manifest."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.__main__ import VERBS as LAB
from lab.lock.files import with_source_keys
from provisioning import manifest
from provisioning.__main__ import VERBS
from provisioning.base.command_line import main
from provisioning.base.settings import MANIFESTS
from tests.support.http_server import FileServer
from tests.support.own_manifests import own_manifests
from tests.support.sdk_archives import PLACE, STRIP, sdk_zip


@dataclass
class User:
    manifests: Path
    capture: pytest.CaptureFixture[str]
    out: str = ""
    err: str = ""

    def types(self, *argv: str) -> int:
        manifest.load_profile.cache_clear()
        code = main("python -m provisioning", "", VERBS | LAB, argv)
        self.out, self.err = self.capture.readouterr()
        return code

    @property
    def profile(self) -> Path:
        return self.manifests / "profiles" / "small.toml"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    with FileServer(sdk_zip(tmp_path / "sdk.zip")) as server:
        yield server


@pytest.fixture
def user(
    tmp_path: Path,
    server: FileServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[User]:
    manifests = tmp_path / "manifests"
    rules = "\n".join(f"  {{ match = '{rule['match']}' }}," for rule in PLACE)
    profile = (
        'schema = 1\nname = "small"\nsummary = "One SDK."\n[packages]\n[host]\n'
        '[components.qnn-sdk]\nversion = "2.37.0.250724"\n'
        '[components.qnn-sdk.licence]\nid = "l"\ntitle = "L"\nurl = "https://example.com/l"\n'
        f'[[components.qnn-sdk.parts]]\nname = "sdk"\nplace = [\n{rules}\n]\n'
        f'[components.qnn-sdk.parts.source]\ntype = "archive"\nurl = "{server.url("/sdk.zip")}"\n'
        f'strip = "{STRIP}"\n# The hash is not public.\n'
    )
    monkeypatch.setenv("QNN_CI_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("QNN_CI_REPORTS", str(tmp_path / "reports"))
    with own_manifests(manifests):
        (manifests / "profiles/small.toml").write_text(profile)
        yield User(manifests, capsys)


def locks(user: User) -> int:
    return user.types("lock", "--component", "qnn-sdk", "--accept-licence", "l")


def test_afterwards_it_is_provisioned_locked_without_another_download(user: User, server: FileServer) -> None:
    locks(user)
    requests_before = len(server.requests)
    assert user.types("provision", "--profile", "small") == 0
    assert len(server.requests) == requests_before


def test_what_fails_its_identity_check_is_not_recorded(user: User) -> None:
    text = user.profile.read_text().replace('version = "2.37.0.250724"', 'version = "2.38.0"')
    user.profile.write_text(text)
    assert locks(user) == 4
    assert user.profile.read_text() == text


def test_check_names_a_lock_file_of_no_environment(user: User) -> None:
    (user.manifests / "locks").mkdir()
    (user.manifests / "locks/old.txt").touch()
    assert user.types("lock", "--check") == 1
    assert "old.txt: no environment of that name" in user.err


KEYS: dict[str, str | int] = {"sha256": "ab" * 32, "size": 123}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return Path(shutil.copy(MANIFESTS / "profiles" / "qnn-2.37.toml", tmp_path))


def test_a_recorded_hash_is_not_replaced(profile: Path) -> None:
    assert with_source_keys(profile, "android-ndk", "ndk", KEYS) == profile.read_text()


@pytest.mark.parametrize(("part", "size"), [("x86-64", 90007642), ("aarch64", 77346612)])
def test_the_right_one_of_two_parts_gets_them(tmp_path: Path, part: str, size: int) -> None:
    path = tmp_path / "wheels.toml"
    text = (MANIFESTS / "profiles" / "wheels.toml").read_text()
    lines = [line for line in text.splitlines(keepends=True) if str(size) not in line]
    path.write_text("".join(lines))
    path.write_text(with_source_keys(path, "qnn-sdk", part, {"size": size}))
    assert path.read_text() == text
