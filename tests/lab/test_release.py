"""A release: the same bytes everywhere, of the version that its tag names, without a vendor's files."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from lab import release
from lab.release import files
from provisioning.base.errors import CheckFailed, UsageError
from tests.support.image_archives import archive
from tests.support.repositories import repository
from tests.support.typed import run_here

RELEASED = {
    "pyproject.toml": '[project]\nname = "x"\nversion = "1.2"\n'
    '[project.urls]\nRepository = "https://github.com/a/b"\n',
    "CHANGELOG.md": "## 1.2.1\n\n- Not yet.\n\n## 1.2 (2026-01-02)\n\n- Faster.\n\n## 1.1\n\n- Old.\n",
}


def test_a_release_is_the_same_wherever_and_whenever_it_is_made_and_its_checksums_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-01-02T03:04:05+0000")
    first = repository(tmp_path / "one", RELEASED)
    subprocess.run(["git", "clone", "-q", first, tmp_path / "other"], check=True)
    releases = []
    for root, kind, name in ((first, "tag", "v1.2"), (tmp_path / "other", "branch", "main")):
        about = {"GITHUB_REF_TYPE": kind, "GITHUB_REF_NAME": name}
        files.make(about, root)
        releases.append({path.name: path.read_bytes() for path in (root / "dist" / "release").iterdir()})
    assert releases[0].pop("notes.md") == b"- Faster.\n"
    sums_with_notes = releases[0].pop("SHA256SUMS").decode().splitlines()
    assert releases[1].pop("SHA256SUMS").decode().splitlines() == sums_with_notes[:-1]
    assert releases[0] == releases[1]
    assert sorted(sums_with_notes[:-1]) == sorted(
        f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in releases[0].items()
    )
    bill = json.loads(releases[0]["qnn-ci.cdx.json"])
    assert bill["metadata"]["timestamp"] == "2026-01-02T03:04:05+00:00"
    assert releases[0]["qnn-ci-1.2.tar.gz"][4:8] == bytes(4)  # where gzip would say when


def test_a_tag_that_is_not_the_version_is_refused() -> None:
    with pytest.raises(UsageError, match=r"v9\.9"):
        files.make({"GITHUB_REF_TYPE": "tag", "GITHUB_REF_NAME": "v9.9"})


@pytest.mark.parametrize(("file", "kept"), [("pyproject.toml", "a/b"), ("docs/page.md", "the example")])
def test_a_release_names_the_address_of_its_owner(file: str, kept: str, tmp_path: Path) -> None:
    texts = {**RELEASED, "docs/page.md": "uses: the example\n"}
    files.require_releasable(repository(tmp_path / "owned", texts))
    left = {**texts, file: texts[file].replace(kept, "OWNER/qnn-ci")}
    with pytest.raises(CheckFailed):
        files.require_releasable(repository(tmp_path / "left", left))


OURS = {"opt/lib/libexecutorch_backend_qnn.so": b"", "opt/qnn_partitioner.py": b""}


@pytest.mark.parametrize(
    "bad",
    [
        archive("executorch", {"opt/qnn-ci/qnn-sdk/lib/x86_64-linux-clang/libQnnHtp.so": b""}),
        archive("executorch", {"usr/lib/python3/onnxruntime_qnn/libQnnHtpV75Skel.so.1": b""}),
        archive("executorch", {}, **{"qnn-ci.not-to-be-published": "Qualcomm"}),
        archive("wheels", OURS),
        archive("executorch", OURS)[:2000],
        b"",
    ],
)
def test_an_image_with_a_vendors_files_or_another_one_may_not_be_published(
    tmp_path: Path, bad: bytes
) -> None:
    for name in files.IMAGES:
        (tmp_path / f"{name}.tar").write_bytes(archive(name, OURS))
    assert run_here(release, "--images", str(tmp_path)) == 0
    (tmp_path / "executorch.tar").write_bytes(bad)
    with pytest.raises(CheckFailed):
        run_here(release, "--images", str(tmp_path))
