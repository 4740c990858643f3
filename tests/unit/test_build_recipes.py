"""Recipes: what is built for a target, as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.builds.recipes import for_tree, load_recipe
from provisioning.base.errors import ManifestError

GOOD = """
schema = 1
summary = "a recipe"
toolchain = "host"
[[projects]]
name = "all"
source = "."
build = "."
[[outputs]]
kind = "library"
files = ["lib/a.so"]
to = "lib"
"""


def recipe(folder: Path, text: str) -> Path:
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    return folder


def test_what_is_only_with_a_file_is_asked_of_a_tree_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "examples" / "models" / "llama").mkdir(parents=True)
    (tmp_path / "examples" / "models" / "llama" / "CMakeLists.txt").touch()
    recipe = for_tree(load_recipe("aarch64-linux"), tmp_path)
    assert recipe.projects[-1].name == "llama"
    assert [Path(output.files[0]).name for output in recipe.outputs if output.kind == "runner"] == [
        "qnn_executor_runner",
        "llama_main",
    ]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('source = "."', 'source = "../elsewhere"', "source"),
        ('to = "lib"', 'to = "/usr/lib"', "to"),
        ('build = "."', 'build = "."\noptions = { A = "{nowhere}" }', "(top)"),
    ],
)
def test_a_recipe_that_cannot_be_taken_names_its_key(tmp_path: Path, old: str, new: str, key: str) -> None:
    with pytest.raises(ManifestError) as caught:
        load_recipe("mine", recipe(tmp_path, GOOD.replace(old, new)))
    assert key in caught.value.key
