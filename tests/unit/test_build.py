"""What decides a build from source, what a tree says of itself, and how a build gets into dist/."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.builds import source
from ci.builds import tree as trees
from ci.builds.built_files import LoadableFile, check, replace_build, require_writable
from ci.builds.cmake import API, CMakeTarget, files_read, linked_into, targets
from ci.builds.source_plan import MEMORY_PER_JOB, LocatedSdk, SourcePlan
from ci.builds.toolchain import Toolchain, cross
from ci.builds.tree import SourceTree, link_with_copies, load_recipe, make_overlay
from ci.builds.verb import X86
from ci.work.jobs import available_memory
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.stage_run import StageRun
from provisioning.dist import description_of
from tests.support.build_plans import make_plan
from tests.support.elves import AARCH64, X86_64, Library
from tests.support.miniature_executorch import make_tree
from tests.support.typed import run_here


@pytest.mark.parametrize(
    ("limit", "used", "cached", "available"),
    [
        (f"{3 * MEMORY_PER_JOB}", MEMORY_PER_JOB, 0, 2 * MEMORY_PER_JOB),
        (f"{3 * MEMORY_PER_JOB}", 3 * MEMORY_PER_JOB, 2 * MEMORY_PER_JOB, 2 * MEMORY_PER_JOB),
        (f"{MEMORY_PER_JOB}", MEMORY_PER_JOB, 0, 1),
        ("max", 5, 0, 1 << 35),
    ],
)
def test_a_containers_limit_counts(
    tmp_path: Path, limit: str, used: int, cached: int, available: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   33554432 kB\n", encoding="ascii")
    (tmp_path / "memory.max").write_text(f"{limit}\n", encoding="ascii")
    (tmp_path / "memory.current").write_text(f"{used}\n", encoding="ascii")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n", encoding="ascii")
    assert available_memory(tmp_path / "meminfo", tmp_path) == available


@pytest.mark.parametrize("definition", ["BUILD_TESTING=ON", "-DBUILD_TESTING:BOOL=ON"])
def test_the_users_definitions_win_and_other_arguments_are_passed_on(tmp_path: Path, definition: str) -> None:
    plan = make_plan(tmp_path, extra=(definition, "--fresh"))
    project = plan.cmake_build().projects[1]
    assert (project.definitions["BUILD_TESTING"], project.arguments) == ("ON", ("--fresh",))


@pytest.mark.parametrize(
    "change",
    [
        {"toolchain": Toolchain("vendor g++ 13.1.0", {})},
        {"python_identity": "cpython-312"},
        {"sdk": LocatedSdk(Path("/sdk"), "v2.48.0.260626000000")},
    ],
)
def test_what_cmake_does_not_notice_starts_anew(tmp_path: Path, change: dict[str, object]) -> None:
    plan = make_plan(tmp_path)
    other = replace(plan, **change)  # type: ignore[arg-type]
    assert other.cmake_build().identity != plan.cmake_build().identity


@pytest.mark.parametrize("place", ["lib/libmine.so", "overlay/notes.txt", "manifest.json"])
def test_an_output_folder_with_the_users_files_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    with pytest.raises(UsageError, match=str(tmp_path)):
        run_here(X86, "--dry-run", "--output", tmp_path, "--store", tmp_path / "store")


def test_a_toolchain_file_is_known_by_its_content(tmp_path: Path) -> None:
    recipe, file = load_recipe("aarch64-linux"), tmp_path / "t.cmake"
    identities = set()
    for text in ("set(A 1)\n", "set(A 2)\n"):
        file.write_text(text, encoding="utf-8")
        identities.add(cross(recipe, {}, file).identity)
    assert len(identities) == 2
    with pytest.raises(UsageError, match="--toolchain-file"):
        cross(recipe, {}, tmp_path / "nowhere.cmake")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path, commit=False)


def test_a_changed_tree_is_told_from_its_commit(tmp_path: Path) -> None:
    root = make_tree(tmp_path)
    (root / "version.txt").write_text("1.5.2\n", encoding="utf-8")
    assert trees.open_tree(root).state.changed


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


@pytest.fixture
def plan(tmp_path: Path) -> SourcePlan:
    return make_plan(tmp_path)


def test_a_build_without_the_backend_is_refused_with_what_it_made(
    plan: SourcePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = plan.build / "qnn_executor_runner"
    runner.parent.mkdir(parents=True)
    runner.touch()
    made = CMakeTarget("r", "EXECUTABLE", plan.build, plan.source, (runner,), (), "", (), (), "r::@1")
    monkeypatch.setattr(SourcePlan, "targets", lambda plan: [made])
    with pytest.raises(CheckFailed, match=r"lib/libqnn_executorch_backend\.so.*bin/qnn_executor_runner"):
        source.collect(plan)


def test_what_cannot_be_stripped_does_not_ship(tmp_path: Path) -> None:
    (tmp_path / "built").write_bytes(b"no program")
    file = LoadableFile("runner", tmp_path / "built", "bin/built")
    with pytest.raises(CheckFailed, match="built with exit code 1"):
        source.assemble([file], tmp_path / "part", "false")


def test_another_build_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """Whichever stage made it: nothing is left that tells of files that are gone."""
    old = ("bin/a", "bin/b", "lib/old.so", "python/a", "licences/x/COPYING", "sbom.cdx.json", "manifest.json")
    for place in (*(f"dist/{name}" for name in old), "part/bin/a", "part/lib/new.so"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place, encoding="utf-8")
    for users in ("overlay", "notes"):
        (tmp_path / "dist" / users).mkdir()
    replace_build(tmp_path / "part", tmp_path / "dist")
    remaining = sorted(str(path.relative_to(tmp_path / "dist")) for path in (tmp_path / "dist").rglob("*"))
    assert remaining == ["bin", "bin/a", "lib", "lib/new.so", "notes", "overlay"]
    assert (tmp_path / "dist/bin/a").read_text(encoding="utf-8") == "part/bin/a"


def test_the_overlay_is_what_pythonpath_names(plan: SourcePlan, capsys: pytest.CaptureFixture[str]) -> None:
    adaptor = plan.dist / "python" / "backends" / "PyA.so"
    adaptor.parent.mkdir(parents=True)
    adaptor.touch()
    plan.tree.root.mkdir(parents=True)
    source.put_into_python(plan, StageRun("build_x86", "wheels", "x86_64-linux", ""))
    overlaid = description_of(plan.dist / "overlay")
    assert overlaid is not None and overlaid.tree == plan.tree.root
    assert f"export PYTHONPATH={plan.dist / 'overlay'}$" in capsys.readouterr().out


LINUX = {"machine": AARCH64, "interpreter": "/lib/ld-linux-aarch64.so.1", "needed": ["libc.so.6"]}
ANDROID = {
    "machine": AARCH64,
    "interpreter": "/system/bin/linker64",
    "needed": ["libc.so", "liblog.so"],
    "alignment": 0x4000,
    "android_api": 30,
}


def rules(folder: Path, target: str, library: Library) -> list[str]:
    built = LoadableFile("runner", library.write(folder / "qnn_executor_runner"), "bin/qnn_executor_runner")
    return [finding.rule for finding in check([built], target, "2.34", [Path("/srv/me/src")])]


@pytest.mark.parametrize(
    ("good", "change", "rule"),
    [
        (LINUX, {}, ""),
        (LINUX, {"versions": {"libc.so.6": ["GLIBC_2.17", "GLIBC_2.34"]}}, ""),
        (LINUX, {"runpath": "$ORIGIN:$ORIGIN/../lib"}, ""),
        (LINUX, {"machine": X86_64}, "build-machine"),
        (LINUX, {"needed": ["libmine.so"]}, "build-needed"),
        (LINUX, {"runpath": "/opt/build/lib"}, "build-search-path"),
        (LINUX, {"versions": {"libc.so.6": ["GLIBC_2.4", "GLIBC_2.35"]}}, "build-glibc"),
        (LINUX, {"versions": {"libc.so.6": ["GLIBC_ABI_DT_RELR"]}}, "build-glibc"),
        (LINUX, {"textrel": True}, "build-relocations"),
        (LINUX, {"execstack": True}, "build-stack"),
        (LINUX, {"content": b"/srv/me/src/runner.cpp\0"}, "build-paths"),
        (ANDROID, {}, ""),
        (ANDROID, {"alignment": 0x1000}, "build-page-size"),
        (ANDROID, {"android_api": 31}, "build-android-api"),
        (ANDROID, {"needed": ["libc++_shared.so"]}, "build-needed"),
    ],
)
def test_each_error_of_a_runner_is_reported_alone(
    tmp_path: Path, good: dict[str, Any], change: dict[str, Any], rule: str
) -> None:
    target = "aarch64-android" if good is ANDROID else "aarch64-linux"
    assert "".join(rules(tmp_path, target, Library(**{**good, **change}))) == rule


def test_what_is_built_with_it_is_there(tmp_path: Path) -> None:
    runner = Library(**{**LINUX, "needed": ["libqnn_executorch_backend.so"], "runpath": "$ORIGIN/../lib"})  # type: ignore[arg-type]
    library = Library(machine=AARCH64, soname="libqnn_executorch_backend.so")
    built = [
        LoadableFile("runner", runner.write(tmp_path / "r"), "bin/r"),
        LoadableFile("library", library.write(tmp_path / "l"), "lib/libqnn_executorch_backend.so"),
    ]
    assert check(built, "aarch64-linux", "2.34", []) == []
    elsewhere = [built[0], replace(built[1], place="python/libqnn_executorch_backend.so")]
    assert [finding.rule for finding in check(elsewhere, "aarch64-linux", "2.34", [])] == ["build-needed"]


def target(name: str, kind: str, **more: Any) -> dict[str, Any]:
    file = {"EXECUTABLE": name, "SHARED_LIBRARY": f"lib{name}.so", "OBJECT_LIBRARY": ""}.get(
        kind, f"lib{name}.a"
    )
    found = {
        "name": name,
        "type": kind,
        "id": f"{name}::@1",
        "paths": {"source": "src", "build": "out"},
        **more,
    }
    return {**found, "artifacts": [{"path": file}]} if file else found


def link(*libraries: str) -> dict[str, Any]:
    fragments = [{"fragment": text, "role": "libraries"} for text in libraries]
    return {"link": {"commandFragments": [{"fragment": "-O2 libnone.a", "role": "flags"}, *fragments]}}


def answer(build: Path, *found: dict[str, Any]) -> None:
    reply = build / API / "reply"
    reply.mkdir(parents=True)
    entries = [{"jsonFile": f"target-{entry['name']}.json"} for entry in found]
    for entry in found:
        (reply / f"target-{entry['name']}.json").write_text(json.dumps(entry), encoding="utf-8")
    model = {"paths": {"source": "/tree"}, "configurations": [{"targets": entries}]}
    (reply / "codemodel.json").write_text(json.dumps(model), encoding="utf-8")
    (reply / "index-1.json").write_text("stale", encoding="utf-8")
    index = {"reply": {"codemodel-v2": {"jsonFile": "codemodel.json"}}}
    (reply / "index-2.json").write_text(json.dumps(index), encoding="utf-8")


def test_what_went_into_a_program_is_followed_through_installed_libraries_and_object_files(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    answer(
        one,
        target("core", "STATIC_LIBRARY", dependencies=[{"id": "parts::@1"}, {"id": "generator::@1"}]),
        target("parts", "OBJECT_LIBRARY", sources=[{"path": "src/part.c"}]),
        target("generator", "EXECUTABLE"),
        target("none", "STATIC_LIBRARY"),
    )
    answer(other, target("runner", "EXECUTABLE", **link("-Wl,--whole-archive /one/lib/libcore.a", "-ldl")))
    known = [*targets(one), *targets(other)]
    runner = [found for found in known if found.name == "runner"]
    linked = linked_into(runner, known)
    assert {found.name for found in linked} == {"runner", "core", "parts"}

    printed = {
        one: "out/CMakeFiles/core.dir/a.o: #deps 1, deps mtime 1 (VALID)\n    /tree/a.h\n\n"
        "out/CMakeFiles/none.dir/b.o: #deps 1, deps mtime 1 (VALID)\n    /tree/b.h\n",
        other: "out/CMakeFiles/core.dir/c.o: #deps 1, deps mtime 1 (VALID)\n    /tree/c.h\n",
    }
    assert {str(path) for path in files_read(linked, printed)} == {"/tree/src/part.c", "/tree/a.h"}


def test_a_project_without_an_answer_is_built_anew(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed) as caught:
        targets(tmp_path)
    assert "--clean" in caught.value.fix


def test_an_output_that_is_a_file_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "dist").touch()
    for folder in (tmp_path / "dist", tmp_path / "dist" / "below"):
        with pytest.raises(UsageError, match="--output"):
            require_writable(folder, "--output")
    require_writable(tmp_path / "new" / "folder", "--output")


COPIED = ("third-party/flatcc",)
FILES = (
    "CMakeLists.txt",
    "exir/core.py",
    "exir/__init__.py",
    "backends/qualcomm/a.cpp",
    "third-party/gflags/b.cpp",
    "third-party/flatcc/src/c.c",
    "third-party/flatcc/.git/config",
    ".git/config",
)
ADAPTOR = "backends/qualcomm/python/PyA.cpython-312.so"


@pytest.fixture
def linked_tree(tmp_path: Path) -> Path:
    root = tmp_path / "executorch"
    for place in FILES:
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(place, encoding="utf-8")
    return root


@pytest.fixture
def shown(linked_tree: Path, tmp_path: Path) -> Path:
    into = tmp_path / "build" / "tree" / "executorch"
    link_with_copies(linked_tree, COPIED, into)
    return into


def test_changes_of_the_tree_are_followed(shown: Path, linked_tree: Path) -> None:
    source = linked_tree / "third-party/flatcc/src/c.c"
    source.write_text("changed", encoding="utf-8")
    os.utime(source, ns=(0, 10**18))
    (linked_tree / "CMakeLists.txt").unlink()
    (linked_tree / "version.txt").touch()
    link_with_copies(linked_tree, COPIED, shown)
    copy = shown / "third-party/flatcc/src/c.c"
    assert (copy.read_text(encoding="utf-8"), copy.stat().st_mtime_ns) == ("changed", 10**18)
    assert sorted(path.name for path in shown.iterdir()) == ["backends", "exir", "third-party", "version.txt"]


def test_folders_that_the_build_writes_into_may_be_read_only_in_the_tree(
    linked_tree: Path, tmp_path: Path
) -> None:
    source = linked_tree / "third-party/flatcc/src"
    source.chmod(0o555)
    link_with_copies(linked_tree, COPIED, tmp_path / "shown")
    source.chmod(0o755)
    assert (tmp_path / "shown/third-party/flatcc/src").stat().st_mode & 0o200


def overlay_of(root: Path, files: dict[str, Path], into: Path) -> Path:
    make_overlay(SourceTree(root, "1.5.0", "cff6f4dd32", time=0), files, into, "wheels")
    return into / "executorch"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "new.so").write_bytes(b"new")
    return {ADAPTOR: tmp_path / "new.so"}


def test_an_overlay_has_the_tree_and_our_files_instead_of_its_own_and_of_earlier_ones(
    linked_tree: Path, tmp_path: Path, files: dict[str, Path]
) -> None:
    old = (linked_tree / ADAPTOR).with_name("PyB.cpython-38.so")
    old.parent.mkdir()
    old.touch()
    files["exir/core.py"] = tmp_path / "new.so"
    root = overlay_of(linked_tree, files, tmp_path / "overlay")
    assert (root / "exir/core.py").read_bytes() == b"new" and (root / "backends/qualcomm/a.cpp").is_file()
    assert (linked_tree / "exir/core.py").read_text(encoding="utf-8") == "exir/core.py"
    assert [path.name for path in (root / ADAPTOR).parent.iterdir()] == ["__init__.py", Path(ADAPTOR).name]
    assert (root / ADAPTOR).read_bytes() == b"new"
    assert old.exists()
    packages = (".", "backends", "backends/qualcomm", "backends/qualcomm/python")
    assert [(root / package / "__init__.py").exists() for package in packages] == [False, True, True, True]


def test_python_finds_the_version_of_the_overlays_tree(linked_tree: Path, tmp_path: Path) -> None:
    (linked_tree / "version.py").write_text("__version__ = 'of another day'", encoding="utf-8")
    root = overlay_of(linked_tree, {}, tmp_path / "overlay")
    found = importlib.metadata.Distribution.discover(name="executorch", path=[str(root.parent)])
    assert [distribution.version for distribution in found] == ["1.5.0+cff6f4d"]
    assert "'1.5.0+cff6f4d'" in (root / "version.py").read_text(encoding="utf-8")
