"""What a tree says of itself before anything is built."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci.builds import tree as trees
from provisioning.base.errors import EnvironmentLacking
from tests.support.miniature_executorch import make_tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path, commit=False)


def test_a_changed_tree_is_told_from_its_commit(tmp_path: Path) -> None:
    root = make_tree(tmp_path)
    (root / "version.txt").write_text("1.5.2\n", encoding="utf-8")
    assert trees.open_tree(root).changed


def test_another_directory_name_is_refused_before_the_compiler_does(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking, match=r"executorch.*\bet\b"):
        trees.open_tree(make_tree(tmp_path, commit=False, name="et"))


def declare(folder: Path, *paths: str) -> None:
    text = "".join(
        f'[submodule "{path}"]\n\tpath = {path}\n\turl = https://github.com/some/{Path(path).name}.git\n'
        for path in paths
    )
    (folder / ".gitmodules").write_text(text, encoding="utf-8")
    for path in paths:
        (folder / path).mkdir(parents=True)


def test_an_empty_submodule_that_is_needed_is_reported_with_the_command_that_fills_it(tree: Path) -> None:
    declare(tree, "backends/mlx/mlx", "third-party/eigen", "extension/tokenizers", "third-party/volk")
    declare(tree / "extension/tokenizers", "third-party/re2")
    (tree / "third-party/eigen/Eigen").touch()
    inner = "extension/tokenizers/third-party/re2"
    needed = ("third-party/eigen", "extension/tokenizers", inner, "third-party/of-another-version")
    with pytest.raises(EnvironmentLacking, match=inner) as caught:
        trees.open_tree(tree, needed)
    assert caught.value.fix.endswith("submodule update --init --recursive -- extension/tokenizers")
    (tree / "extension/tokenizers/third-party/re2/re2.cc").touch()
    trees.open_tree(tree, needed)


def test_submodules_have_the_commits_that_the_tree_names(tmp_path: Path) -> None:
    root = make_tree(tmp_path)
    text = '[submodule "a"]\n\tpath = third-party/a\n\turl = https://github.com/some/a.git\n'
    (root / ".gitmodules").write_text(text, encoding="utf-8")
    index = ["git", "update-index", "--add", "--cacheinfo", f"160000,{'ab' * 20},third-party/a"]
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run(index, cwd=root, check=True)
    subprocess.run(["git", *identity, "commit", "-qm", "a"], cwd=root, check=True)
    (root / "third-party" / "a").mkdir()
    (root / "third-party" / "a" / "file").touch()
    submodules = trees.submodules(trees.open_tree(root))
    assert submodules == [trees.Submodule("third-party/a", "https://github.com/some/a.git", "ab" * 20)]
