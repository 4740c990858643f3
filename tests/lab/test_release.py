"""A release: the same bytes everywhere, of the version that its tag names, without a vendor's files."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import release
from lab.release import files
from lab.release.tagging import release_of, tag_release
from provisioning.base.errors import CheckFailed, EnvironmentLacking, ToolkitError, UsageError
from tests.support.image_archives import archive
from tests.support.repositories import repository
from tests.support.scripts import script
from tests.support.typed import run_here

RELEASED = {
    "pyproject.toml": '[project]\nname = "x"\nversion = "1.2"\n'
    '[project.urls]\nRepository = "https://github.com/a/b"\n',
    "CHANGELOG.md": "## 1.2.1\n\n- Not yet.\n\n## 1.2 (2026-01-02)\n\n- Faster.\n\n## 1.1\n\n- Old.\n",
}
UNRELEASED = {
    ".gitignore": "dist/\n",
    "pyproject.toml": '[project]\nname = "qnn-ci"\nversion = "0.2.0"\n'
    '[project.urls]\nRepository = "https://github.com/OWNER/qnn-ci"\n',
    "CHANGELOG.md": "## Unreleased\n\n- Faster.\n\n## 0.1.0\n\n- Old.\n",
    "CITATION.cff": "version: 0.1.0\ndate-released: 2026-01-01\n",
    "README.md": """\
        $ uv tool install git+https://github.com/OWNER/qnn-ci@VERSION
        - uses: OWNER/qnn-ci/.github/workflows/gate.yml@COMMIT # VERSION
        - uses: actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2
        --glibc VERSION
    """,
    "docs/hooks.md": """\
        #:schema https://github.com/OWNER/qnn-ci/raw/COMMIT/suite.json
          - repo: https://github.com/OWNER/qnn-ci
            rev: COMMIT # VERSION
    """,
    "models.toml": "uses = 'OWNER/qnn-ci-models@v3'\n",
    "manifests/adopt/qnn.yml": "uses: OWNER/qnn-ci/.github/workflows/gate.yml@COMMIT # VERSION\n",
    "code.py": 'PLACEHOLDER = "OWNER/qnn-ci"\n',
}
ADDRESS = "https://git.example/nets/qnn"
DAY = dt.date(2026, 12, 1)


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


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unreleased repository, whose committer git knows."""
    for name, value in {"NAME": "t", "EMAIL": "t@localhost"}.items():
        for role in ("AUTHOR", "COMMITTER"):
            monkeypatch.setenv(f"GIT_{role}_{name}", value)
    return repository(tmp_path / "clone", UNRELEASED)


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_a_release_writes_its_address_version_and_commit_where_they_stand(clone: Path) -> None:
    before = git(clone, "log", "--format=%H")
    told = tag_release(clone, release_of(ADDRESS, "0.2.0", DAY))
    tagged = git(clone, "rev-parse", "v0.2.0^{commit}").strip()
    assert git(clone, "rev-parse", "release-v0.2.0~1", "v0.2.0~1").split() == [tagged, before.strip()]
    assert git(clone, "show", "release-v0.2.0:README.md").splitlines() == [
        f"$ uv tool install git+{ADDRESS}@v0.2.0",
        f"- uses: nets/qnn/.github/workflows/gate.yml@{tagged} # v0.2.0",
        "- uses: actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2",
        "--glibc VERSION",
    ]
    hooks = git(clone, "show", "release-v0.2.0:docs/hooks.md")
    assert f"{ADDRESS}/raw/{tagged}/suite.json" in hooks and f"rev: {tagged} # v0.2.0\n" in hooks
    assert git(clone, "show", "v0.2.0:CITATION.cff") == "version: 0.2.0\ndate-released: 2026-12-01\n"
    assert "## 0.2.0 (2026-12-01)\n" in git(clone, "show", "v0.2.0:CHANGELOG.md")
    for other in ("models.toml", "manifests/adopt/qnn.yml", "code.py"):
        assert "OWNER/qnn-ci" in git(clone, "show", f"release-v0.2.0:{other}")
    # What is printed first is typed: the branch of the user gets the release, and the workflow takes its tag.
    assert git(clone, "status", "--porcelain") == "" and git(clone, "log", "--format=%H") == before
    (merge,) = (line.partition(" && ")[0].split() for line in told.splitlines() if " merge " in line)
    git(clone, *merge[1:])
    made = {path.name: path.read_bytes() for path in (clone / "dist" / "release").iterdir()}
    assert made["notes.md"] == b"- Faster.\n"
    git(clone, "checkout", "--quiet", "v0.2.0")
    files.make({"GITHUB_REF_TYPE": "tag", "GITHUB_REF_NAME": "v0.2.0"}, clone)
    assert made == {path.name: path.read_bytes() for path in (clone / "dist" / "release").iterdir()}


def test_the_next_release_takes_the_place_of_the_last_one_and_may_have_moved(clone: Path) -> None:
    tag_release(clone, release_of(ADDRESS, "0.2.0", DAY))
    git(clone, "merge", "--quiet", "--ff-only", "release-v0.2.0")
    log = clone / "CHANGELOG.md"
    log.write_text("## Unreleased\n\n- Smaller.\n\n" + log.read_text())
    git(clone, "commit", "--quiet", "-am", "x")
    tag_release(clone, release_of("https://github.com/others/qnn-ci", "0.3.0", DAY))
    tagged = git(clone, "rev-parse", "v0.3.0^{commit}").strip()
    pages = git(clone, "show", "release-v0.3.0:README.md", "release-v0.3.0:docs/hooks.md")
    assert pages.count(tagged) == 3 and pages.count("v0.3.0") == 3
    assert "nets/qnn" not in pages and "v0.2.0" not in pages
    assert (clone / "dist/release/notes.md").read_text() == "- Smaller.\n"


def dirty(root: Path) -> None:
    (root / "new.py").touch()


def tagged(root: Path) -> None:
    git(root, "tag", "v0.2.0")


def branched(root: Path) -> None:
    git(root, "branch", "release-v0.2.0")


def without_news(root: Path) -> None:
    (root / "CHANGELOG.md").write_text("## 0.1.0\n\n- Old.\n")
    git(root, "commit", "--quiet", "-am", "x")


def an_archive(root: Path) -> None:
    (root / ".git").rename(root / "gone")


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (dirty, CheckFailed),
        (tagged, UsageError),
        (branched, UsageError),
        (without_news, CheckFailed),
        (an_archive, EnvironmentLacking),
    ],
)
def test_a_release_is_refused_where_it_would_be_a_wrong_one(
    spoil: Callable[[Path], None], error: type[ToolkitError], clone: Path
) -> None:
    spoil(clone)
    before = sorted(path.name for path in clone.rglob("*"))
    with pytest.raises(error):
        tag_release(clone, release_of(ADDRESS, "0.2.0", DAY))
    assert sorted(path.name for path in clone.rglob("*")) == before


@pytest.mark.parametrize(
    ("address", "version", "meant"),
    [
        ("alice/nets", "0.2.0", "https://github.com/alice/nets"),
        ("git@github.com:alice/nets.git", "0.2.0", "https://github.com/alice/nets"),
        ("https://github.com/alice/nets.git", "0.2.0", "https://github.com/alice/nets"),
        ("https://github.com/alice/nets/", "0.2.0", "https://github.com/alice/nets"),
        ("https://secret@github.com/alice/nets", "0.2.0", "https://github.com/alice/nets"),
        ("https://github.com/OWNER/qnn-ci", "0.2.0", "https://github.com/YOU/qnn-ci"),
        ("https://github.com/alice", "0.2.0", "https://github.com/YOU/qnn-ci"),
        ("", "0.2.0", "https://github.com/YOU/qnn-ci"),
        (ADDRESS, "v0.2.0", f"{ADDRESS} --version 0.2.0"),
        (ADDRESS, "0.2", f"{ADDRESS} --version 1.0.0"),
        (ADDRESS, "next", f"{ADDRESS} --version 1.0.0"),
    ],
)
def test_a_bad_address_or_version_names_what_was_meant(address: str, version: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        release_of(address, version, DAY)
    assert caught.value.fix.endswith(f" release {meant}")


@pytest.mark.parametrize("step", ["commit-tree", "archive", "update-ref"])
def test_a_release_that_ends_half_way_leaves_no_tag_and_no_branch_and_can_be_repeated(
    step: str, clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = git(clone, "for-each-ref")
    path = os.environ["PATH"]
    fails = f'PATH={shlex.quote(path)}; test "$1" != {step} && exec git "$@"'
    stand_in = script(tmp_path / "bin" / "git", fails)
    monkeypatch.setenv("PATH", f"{stand_in.parent}{os.pathsep}{path}")
    with pytest.raises(EnvironmentLacking):
        tag_release(clone, release_of(ADDRESS, "0.2.0", DAY))
    monkeypatch.setenv("PATH", path)
    assert git(clone, "for-each-ref") == before and git(clone, "status", "--porcelain") == ""
    tag_release(clone, release_of(ADDRESS, "0.2.0", DAY))


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
