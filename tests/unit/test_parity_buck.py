"""The Buck evaluator: real Starlark, our own stand-ins for Buck's functions, and a line for everything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci.parity.buck import evaluate, lists
from ci.parity.tree import Side, Tree, fits
from provisioning.base.errors import CheckFailed
from tests.support.parity_cases import TreeOfTexts, mapping

RUNTIME = 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
LIBRARY = 'runtime.cxx_library(name = "x", srcs = select('
IN_P = mapping().model_copy(update={"scope": mapping().scope.model_copy(update={"root": "p", "also": ()})})
CODE = {f"p/{name}": "" for name in ("a.cpp", "a.h", "sub/b.cpp", "sub/deep/c.cpp", ".hidden.cpp")}


def run(text: str, *, others: dict[str, str] | None = None, name: str = "targets.bzl") -> Side:
    tree = TreeOfTexts({**CODE, **(others or {}), f"p/{name}": RUNTIME + text})
    return evaluate(tree, IN_P)["host"][0]


def sources(side: Side) -> list[str]:
    assert side.troubles == []
    return sorted(item.name for item in side.libraries["//p:x"].files)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('glob(["**/*.cpp"])', ["a.cpp", "sub/b.cpp", "sub/deep/c.cpp"]),
        ('glob(["*/*.cpp", "a.cpp"], exclude = ["sub/b.cpp"])', ["a.cpp"]),
        ('[f for f in glob(["**/*.cpp"]) if "deep" not in f]', ["a.cpp", "sub/b.cpp"]),
        ('["{}.cpp".format(n) for n in ["a"]] + (["sub/b.cpp"] if True else [])', ["a.cpp", "sub/b.cpp"]),
        ('select({"ovr_config//os:linux": ["a.cpp"], "DEFAULT": []})', ["a.cpp"]),
        ('select({"ovr_config//os:android": ["a.cpp"], "DEFAULT": ["sub/b.cpp"]})', ["sub/b.cpp"]),
        ('[("a.cpp", ["-Wall"]), ":generated[x.cpp]"]', ["a.cpp"]),
        ('["a.cpp"] if native.read_config("s", "k", "no") == "no" else []', ["a.cpp"]),
    ],
)
def test_sources(expression: str, names: list[str]) -> None:
    side = run(f'runtime.cxx_library(name = "x", srcs = {expression})\n')
    assert sources(side) == [f"p/{name}" for name in names]


SHIM = "shim_et/xplat/executorch"
CELLS = "[repositories]\nroot = .\nshim_et = shim_et\n[repository_aliases]\nfbsource = shim_et\n"


def test_files_of_other_cells_are_read_where_buckconfig_says() -> None:
    others = {".buckconfig": CELLS, f"{SHIM}/x.bzl": 'def version():\n    return "a"\n'}
    text = 'load("@fbsource//xplat/executorch:x.bzl", "version")\n'
    text += 'runtime.cxx_library(name = "x", srcs = ["{}.cpp".format(version())])\n'
    assert sources(run(text, others=others)) == ["p/a.cpp"]


def test_an_exported_file_is_its_name_and_what_is_generated_of_it() -> None:
    text = 'export_file(name = "a.h")\ngenrule(name = "g", srcs = [":a.h"], cmd = "$(exe :tool) ${SRCS}")\n'
    side = run(text, name="BUCK")
    assert side.troubles == []
    exported, generated = side.rules
    assert [item.name for item in exported.files] == ["p/a.h"]
    assert [item.name for item in generated.dependencies] == ["//p:a.h"]
    assert {item.name for item in side.labels} == {"//p:a.h", "//p:tool"}


@pytest.mark.parametrize(
    ("question", "files"),
    [
        ("runtime.is_oss", [["p/a.cpp"], ["p/sub/b.cpp"], ["p/sub/b.cpp"]]),
        ("is_fbcode()", [["p/sub/b.cpp"], ["p/a.cpp"], ["p/sub/b.cpp"]]),
    ],
)
def test_what_depends_on_who_builds_is_evaluated_for_each(question: str, files: list[list[str]]) -> None:
    load = 'load("@fbsource//tools/build_defs:fbsource_utils.bzl", "is_fbcode")\n'
    text = f'runtime.cxx_library(name = "x", srcs = ["a.cpp"] if {question} else ["sub/b.cpp"])\n'
    tree = TreeOfTexts({**CODE, "p/BUCK": RUNTIME + load + text})
    assert [sources(side) for side in evaluate(tree, IN_P)["host"]] == files


def test_preload_deps_are_dependencies() -> None:
    side = run('runtime.python_binary(name = "x", preload_deps = ["//q:library"])\n')
    assert [item.name for item in side.libraries["//p:x"].dependencies] == ["//q:library"]


def test_lists_are_what_starlark_makes_of_them_and_a_broken_one_is_the_trees_fault() -> None:
    text = 'A = ["a", "b"]\nALL = ["x/" + name for name in A]\nNUMBER = 1\n'
    assert lists(TreeOfTexts({"l.bzl": text}), "l.bzl") == {"A": "a;b", "ALL": "x/a;x/b"}
    with pytest.raises(CheckFailed, match=r"l\.bzl"):
        lists(TreeOfTexts({"l.bzl": "A = [\n"}), "l.bzl")


def test_a_select_of_which_no_branch_holds_is_said() -> None:
    side = run('runtime.cxx_library(name = "x", srcs = select({"ovr_config//os:android": ["a.cpp"]}))\n')
    assert len(side.troubles) == 1


def test_files_that_load_each_other_are_said() -> None:
    side = run('load(":a.bzl", "x")\n', others={"p/a.bzl": 'load(":a.bzl", "x")\n'})
    assert len(side.troubles) == 1


def test_a_pattern_stops_at_packages_within() -> None:
    text = 'runtime.cxx_library(name = "x", srcs = glob(["**/*.cpp"]))\n'
    assert sources(run(text, others={"p/sub/deep/BUCK": ""})) == ["p/a.cpp", "p/sub/b.cpp"]


def test_a_file_is_on_the_line_of_its_literal_or_pattern() -> None:
    text = 'runtime.cxx_library(\n  name = "x",\n  srcs = ["a.cpp"] + glob([\n    "sub/*.cpp",\n  ]))\n'
    places = {item.name: str(item.place) for item in run(text).libraries["//p:x"].files}
    assert places == {"p/a.cpp": "p/targets.bzl:4", "p/sub/b.cpp": "p/targets.bzl:5"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = [\n", 1),
        ("load(x, y = z)\n", 2),
        ('load("@elsewhere//:x.bzl", "x")\nx()\n', 3),
        ('load("@elsewhere//:x.bzl", "x")\ny = x\n', 2),
        ('load(":gone.bzl", "x")\n', 2),
        (f'{LIBRARY}{{"config//:x": [], "DEFAULT": []}}))\n', 2),
        (f'{LIBRARY}{{"config//:x": {{}}, "DEFAULT": {{"a": "a.cpp"}}}}))\n', 2),
        ('fail("stop here")\n', 2),
        ('runtime.cxx_library(name = "x", platform_srcs = ["a.cpp"])\n', 2),
    ],
)
def test_what_cannot_be_evaluated_is_said_with_its_line(text: str, line: int) -> None:
    [trouble] = run(text).troubles
    assert (trouble.place.file, trouble.place.line) == ("p/targets.bzl", line)


def test_the_same_target_declared_otherwise_again_is_said() -> None:
    text = 'runtime.cxx_library(name = "x", srcs = ["a.cpp"])\nruntime.cxx_library(name = "x", srcs = [])\n'
    assert [trouble.construct for trouble in run(text).troubles] == ["//p:x"]


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.cpp", "a/b.cpp", False),
        ("*.cpp", ".a.cpp", False),
        ("**/*.cpp", "a/b/c.cpp", True),
        ("a/**/z.cpp", "a/z.cpp", True),
        ("[ab]?.h", "b1.h", True),
        ("[!a].h", "a.h", False),
        ("a+b.h", "a+b.h", True),
    ],
)
def test_glob_patterns(pattern: str, path: str, matches: bool) -> None:
    assert fits(path, pattern) is matches


def test_what_git_ignores_is_not_of_the_tree(tmp_path: Path) -> None:
    for name in ("a.cpp", "sdk/b.cpp", "made.cpp", "new.cpp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("sdk/\n/made.cpp\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "a.cpp"], check=True)
    assert Tree(tmp_path).files == {".gitignore", "a.cpp", "new.cpp"}


def test_a_directory_is_listed_without_build_directories(tmp_path: Path) -> None:
    root = tmp_path
    names = ("a.cpp", "build/CMakeCache.txt", "build/b.cpp", "third-party/x/c.cpp", ".git/d", "x/.git")
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    assert Tree(root).files == {"a.cpp"}
