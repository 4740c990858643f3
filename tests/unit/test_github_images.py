"""The images of a release: only those without a vendor's files are pushed, by their digests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci.github import images
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError
from tests.support.image_archives import archive
from tests.support.scripts import script

SKOPEO = """\
for word; do
  case "$last" in --digestfile) echo "sha256:$(echo "$*" | sha256sum | cut -c -64)" > "$word" ;; esac
  last=$word
done
"""
OURS = {"opt/lib/libexecutorch_backend_qnn.so": b"", "opt/qnn_partitioner.py": b""}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of release.yml's job `push`, with a skopeo that only says what it would do."""
    program = script(tmp_path / "bin" / "skopeo", SKOPEO)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2"\n')
    (tmp_path / "images").mkdir()
    for name in images.NAMES:
        (tmp_path / "images" / f"{name}.tar").write_bytes(archive(name, OURS))
    return {
        "GITHUB_WORKSPACE": str(tmp_path),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_REPOSITORY": "Some/QNN-ci",
        "GITHUB_REF_TYPE": "tag",
        "GITHUB_REF_NAME": "v1.2",
        "DOCKER_CONFIG": str(tmp_path / "docker"),
        "QNN_CI_IMAGES": "push",
        "QNN_CI_ARCHIVES": "images",
        "QNN_CI_REGISTRY": "registry.example",
    }


def push(environ: dict[str, str]) -> int:
    """In the clone that is the job's workspace."""
    return images.run(environ, Path(environ["GITHUB_WORKSPACE"]))


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
    ids=["SDK", "library", "licence", "another image", "cut short", "empty"],
)
def test_an_image_with_a_vendors_files_or_another_one_is_not_pushed(job: dict[str, str], bad: bytes) -> None:
    Path(job["GITHUB_WORKSPACE"], "images", "executorch.tar").write_bytes(bad)
    with pytest.raises(CheckFailed):
        push(job)
    assert not Path(job["GITHUB_OUTPUT"]).exists()


@pytest.mark.parametrize(
    "changed", [{"GITHUB_REF_NAME": "v1.3"}, {"GITHUB_REF_TYPE": "branch"}, {"QNN_CI_IMAGES": ""}]
)
def test_only_the_versions_own_tag_pushes(job: dict[str, str], changed: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        push({**job, **changed})


def test_a_refused_push_ends_the_job(job: dict[str, str]) -> None:
    Path(job["GITHUB_WORKSPACE"], "bin", "skopeo").write_text("#!/bin/sh\necho denied >&2; exit 1\n")
    with pytest.raises(ToolkitError, match="denied"):
        push(job)
