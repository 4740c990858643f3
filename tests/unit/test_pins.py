"""The patch with newer pins, between the job that computes them and the one that may write."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.dev import pins
from provisioning.base.errors import CheckFailed
from tests.support.repositories import repository

LOCK = "manifests/locks/lint.txt"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {LOCK: "ruff==1.0\nold\n", "manifests/socs.toml": "x = 1\n", "noxfile.py": "import nox\n"}
    return repository(tmp_path / "root", files)


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def patch_of(root: Path) -> bytes:
    """As git writes it, of all that changed."""
    git(root, "add", "--all", "--intent-to-add")
    return git(root, "diff", "--binary", "--find-renames", "HEAD").encode()


def test_what_one_job_writes_the_other_applies(root: Path, tmp_path: Path) -> None:
    changed = {
        LOCK: "ruff==1.1\nö\n@@ -1 +1 @@\ndiff --git a/noxfile.py b/noxfile.py\n",
        "manifests/socs.toml": "",
    }
    for name, text in changed.items():
        (root / name).write_text(text, encoding="utf-8")
    (root / "noxfile.py").write_text("import os\n")
    patch = tmp_path / "dist" / "x.patch"
    pins.write(patch, root)
    git(root, "checkout", "--quiet", ".")
    pins.apply(patch.read_bytes(), root)
    assert {name: (root / name).read_text(encoding="utf-8") for name in changed} == changed
    assert git(root, "status", "--porcelain") == f" M {LOCK}\n M manifests/socs.toml\n"


def link(root: Path) -> None:
    (root / LOCK).unlink()
    (root / LOCK).symlink_to("/etc/passwd")


CHANGES: dict[str, Callable[[Path], object]] = {
    "outside": lambda root: (root / "noxfile.py").write_text("import os\n"),
    "new file": lambda root: (root / "manifests" / "new.toml").write_text("x = 1\n"),
    "removed": lambda root: (root / LOCK).unlink(),
    "renamed": lambda root: (root / LOCK).rename(root / "manifests" / "locks" / "x.txt"),
    "executable": lambda root: (root / LOCK).chmod(0o755),
    "link": link,
    "binary": lambda root: (root / LOCK).write_bytes(b"\0\1"),
    "submodule": lambda root: repository(root / "manifests" / "sub", {"x": "x"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_else_git_can_write_is_refused(root: Path, change: str) -> None:
    CHANGES[change](root)
    patch = patch_of(root)
    assert patch
    with pytest.raises(CheckFailed):
        pins.judged(patch)


GOOD = f"""\
diff --git a/{LOCK} b/{LOCK}
index 1111111..2222222 100644
--- a/{LOCK}
+++ b/{LOCK}
@@ -1,2 +1,2 @@
-ruff==1.0
+ruff==1.1
 old
"""


def test_the_patch_that_the_hostile_ones_are_made_of_is_accepted() -> None:
    assert pins.judged(GOOD.encode()) == [LOCK]


@pytest.mark.parametrize(
    "hostile",
    [
        GOOD.replace("+++ b/manifests/locks/lint.txt", "+++ b/noxfile.py"),
        GOOD.replace("--- a/manifests/locks/lint.txt", "--- /dev/null"),
        GOOD.replace("manifests/", "manifests/../"),
        GOOD.replace("manifests/locks/lint.txt", "/manifests/lint.txt"),
        GOOD.replace("manifests/locks/lint.txt", '"manifests/lint.txt"'),
        GOOD.replace("lint.txt", ".gitattributes"),
        GOOD.replace("100644", "120000"),
        GOOD.replace("index 1111111..2222222 100644", "index 1111111..2222222"),
        GOOD.replace("index 1111111..2222222 100644", "old mode 100644\nnew mode 100755"),
        GOOD.replace("index", "similarity index 100%\nindex"),
        GOOD.replace(" old\n", ""),
        GOOD + "--- a/noxfile.py\n+++ b/noxfile.py\n@@ -1 +1 @@\n-import nox\n+import os\n",
        GOOD + "GIT binary patch\n",
        GOOD + GOOD,
        "From: somebody\n" + GOOD,
        GOOD.rstrip("\n"),
        GOOD.partition("@@")[0],
        GOOD.replace("\n--- ", "\r\n--- "),
        GOOD + "x" * pins.LARGEST,
    ],
)
def test_a_patch_that_somebody_made_by_hand_is_refused(root: Path, hostile: str) -> None:
    with pytest.raises(CheckFailed):
        pins.apply(hostile.encode("utf-8", "surrogateescape"), root)
    assert git(root, "status", "--porcelain") == ""


def test_a_file_behind_a_link_stays_as_it_is(root: Path) -> None:
    (root / "locks").mkdir()
    (root / LOCK).rename(root / "locks" / "lint.txt")
    (root / "manifests" / "locks").rmdir()
    (root / "manifests" / "locks").symlink_to("../locks")
    with pytest.raises(CheckFailed, match=LOCK):
        pins.apply(GOOD.encode(), root)
    assert (root / "locks" / "lint.txt").read_text().startswith("ruff==1.0")
