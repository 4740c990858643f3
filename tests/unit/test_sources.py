from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from provisioning.base.errors import EnvironmentLacking, UpstreamError
from provisioning.own_installation import adopt
from provisioning.sources import Archive
from tests.support.http_server import FileServer, Reply

AAR = b"PK\x03\x04" + bytes(range(256)) * 40
SHA = hashlib.sha256(AAR).hexdigest()


def archive(url: str, sha256: str | None = None) -> Archive:
    return Archive(type="archive", url=url, sha256=sha256)


def test_an_unlocked_archive_is_fetched_once_and_taken_over_when_locked(tmp_path: Path) -> None:
    with FileServer(AAR) as server:
        url = server.url("/v1.zip")
        unlocked = archive(url).fetch(tmp_path)
        again = archive(url).fetch(tmp_path)
        locked = archive(url, unlocked.sha256).fetch(tmp_path)
    assert unlocked == again
    assert unlocked.path.name.endswith("-v1.zip")
    assert locked.path == tmp_path / SHA
    assert len(server.requests) == 1


def test_the_users_mirror_is_the_only_host_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = archive("https://vendor.invalid/sdk/v1.zip", SHA)
    with FileServer(b"", paths={"/all/sdk/v1.zip": Reply(body=AAR)}) as server:
        monkeypatch.setenv("QNN_CI_MIRROR", server.url("/all"))
        fetched = source.fetch(tmp_path)
        server.paths = {}
        fetched.path.unlink()
        with pytest.raises(UpstreamError, match=r"/all/sdk/v1\.zip.*404") as caught:
            source.fetch(tmp_path)
    assert fetched.sha256 == SHA
    assert "invalid" not in caught.value.message


def make_qnn(root: Path) -> Path:
    (root / "include" / "QNN").mkdir(parents=True)
    (root / "lib" / "x86_64-linux-clang").mkdir(parents=True)
    (root / "sdk.yaml").write_text(
        "name: QAIRT\nversion: 2.37.0.250724  # pinned\nbuild_id: 'v2.37.0.2507'\n"
    )
    return root


def test_an_sdk_is_adopted_where_it_is_with_what_it_says_of_itself(tmp_path: Path) -> None:
    root = make_qnn(tmp_path / "my sdk")
    adopted = adopt("qnn-sdk", str(root), "QNN_SDK_ROOT")
    assert (adopted.path, adopted.version) == (root, "2.37.0.250724")


@pytest.mark.parametrize(
    "slip",
    [
        "opt/qairt",
        "opt/qairt/2.37.0.250724/lib/x86_64-linux-clang",
        "opt/qairt/2.38.0.251000",
    ],
)
def test_a_near_miss_is_answered_with_the_right_path(slip: str, tmp_path: Path) -> None:
    root = make_qnn(tmp_path / "opt" / "qairt" / "2.37.0.250724")
    with pytest.raises(EnvironmentLacking) as caught:
        adopt("qnn-sdk", str(tmp_path / slip), "QNN_SDK_ROOT")
    assert caught.value.fix == f"export QNN_SDK_ROOT={root}"
    assert str(tmp_path / slip) in caught.value.message
    assert caught.value.exit_code == 3


def test_another_component_is_not_taken_for_this_one(tmp_path: Path) -> None:
    (tmp_path / "ndk" / "toolchains").mkdir(parents=True)
    with pytest.raises(EnvironmentLacking, match="include/QNN"):
        adopt("qnn-sdk", str(tmp_path / "ndk"), "QNN_SDK_ROOT")
