"""Recording hashes in a manifest's text: only the new keys change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from provisioning.base.errors import ManifestError
from provisioning.base.settings import MANIFESTS
from provisioning.manifest_edit import with_source_keys

KEYS: dict[str, str | int] = {"sha256": "ab" * 32, "size": 123}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return Path(shutil.copy(MANIFESTS / "profiles" / "qnn-2.37.toml", tmp_path))


def test_a_recorded_hash_is_not_replaced(profile: Path) -> None:
    with pytest.raises(
        ManifestError, match=r"android-ndk\.parts\.0\.source\.sha256: expected 6d6e6598.* found abab"
    ):
        with_source_keys(profile, "android-ndk", "ndk", KEYS)


@pytest.mark.parametrize(("part", "size"), [("x86-64", 90007642), ("aarch64", 77346612)])
def test_the_right_one_of_two_parts_gets_them(tmp_path: Path, part: str, size: int) -> None:
    path = tmp_path / "wheels.toml"
    text = (MANIFESTS / "profiles" / "wheels.toml").read_text()
    lines = [line for line in text.splitlines(keepends=True) if str(size) not in line]
    path.write_text("".join(lines))
    path.write_text(with_source_keys(path, "qnn-sdk", part, {"size": size}))
    assert path.read_text() == text
