"""Finding the build's programs, and showing the first error of a log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ci.builds.cmake import Build, Program, find_cmake, find_compiler, find_ninja, find_program, first_error
from provisioning.base.errors import CheckFailed, EnvironmentLacking


@pytest.fixture(autouse=True)
def _no_programs_beside_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))


def program(folder: Path, name: str, says: str, code: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def path_of(*folders: Path) -> dict[str, str]:
    return {"PATH": ":".join(map(str, folders))}


def test_takes_the_first_cmake_that_is_new_enough(tmp_path: Path) -> None:
    program(tmp_path / "old", "cmake", "cmake version 3.25.1")
    new = program(tmp_path / "new", "cmake", "cmake version 3.28.0-rc1")

    assert find_cmake("3.28", path_of(tmp_path / "old", tmp_path / "new")).path == new


def test_compares_versions_as_numbers(tmp_path: Path) -> None:
    found = program(tmp_path / "bin", "cmake", "cmake version 3.100.0")

    assert find_cmake("3.28", path_of(tmp_path / "bin")).path == found


def test_names_a_cmake_that_is_too_old_and_the_way_to_a_newer(tmp_path: Path) -> None:
    old = program(tmp_path / "bin", "cmake", "cmake version 3.25.1")

    with pytest.raises(EnvironmentLacking) as caught:
        find_cmake("3.28", path_of(tmp_path / "bin"))

    assert caught.value.message == f"CMake: expected 3.28 or newer, found 3.25.1 at {old}"
    assert "-m pip install 'cmake>=3.28'" in caught.value.remedy


def test_a_cmake_that_does_not_run_is_none(tmp_path: Path) -> None:
    program(tmp_path / "bin", "cmake", "cmake version 4.0.0", code=1)

    with pytest.raises(EnvironmentLacking, match="found none"):
        find_cmake("3.28", path_of(tmp_path / "bin"))


def test_no_ninja_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking) as caught:
        find_ninja(path_of(tmp_path))

    assert caught.value.remedy.endswith("-m pip install ninja")


def test_no_compiler_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking) as caught:
        find_compiler(path_of(tmp_path))

    assert caught.value.remedy == "apt-get install g++"


def test_cxx_names_the_compiler(tmp_path: Path) -> None:
    program(tmp_path / "bin", "g++", "g++ 12")
    mine = program(tmp_path / "own", "my-c++", "mine 1.0")

    assert find_compiler({**path_of(tmp_path / "bin"), "CXX": str(mine)}).identity == "mine 1.0"


def test_a_compiler_named_with_a_launcher_is_told_apart_from_one_that_lacks(tmp_path: Path) -> None:
    program(tmp_path / "bin", "g++", "g++ 12.2.0")

    with pytest.raises(EnvironmentLacking) as caught:
        find_compiler({"CXX": "ccache g++", **path_of(tmp_path / "bin")})

    assert caught.value.remedy == "name the program alone, without a launcher or arguments"


def test_a_compiler_named_from_here_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = program(tmp_path / "bin", "g++", "g++ 12.2.0")
    monkeypatch.chdir(tmp_path)

    assert find_compiler({"CXX": "bin/g++"}).path == find_compiler({"PATH": "bin"}).path == found


def test_a_cxx_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    program(tmp_path / "bin", "g++", "g++ 12")

    with pytest.raises(EnvironmentLacking, match="nothing-c"):
        find_compiler({**path_of(tmp_path / "bin"), "CXX": "nothing-c++"})


def test_no_cross_compiler_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking) as caught:
        find_program("aarch64-linux-gnu-g++", path_of(tmp_path))

    assert caught.value.remedy == "apt-get install g++-aarch64-linux-gnu"


@pytest.mark.parametrize(
    ("identity", "version"),
    [("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", "12.2.0"), ("cmake version 4.4.4", "4.4.4"), ("odd", "")],
)
def test_reads_the_version_out_of_what_a_program_says(identity: str, version: str) -> None:
    assert Program(Path("x"), identity).version == version


@pytest.mark.parametrize(
    "line",
    [
        "src/main.cpp:3:5: error: 'x' was not declared",
        "src/main.cpp:1:10: fatal error: none.h: No such file or directory",
        "CMake Error at CMakeLists.txt:1 (project):",
        "ninja: error: loading 'build.ninja'",
        "main.cpp:(.text+0x5): undefined reference to `f()'",
        "/usr/bin/ld: cannot find -lnone",
    ],
)
def test_shows_the_first_error_and_what_follows(line: str) -> None:
    shown = first_error(f"[1/2] error-free start\nwarning: fine\n{line}\nits context\nanother error: later\n")

    assert shown.splitlines()[:2] == [f"  {line}", "  its context"]


def test_shows_the_end_of_a_log_without_a_known_error() -> None:
    shown = first_error("\n".join(f"line {n}" for n in range(100)))

    assert shown.splitlines()[-1] == "  line 99"
    assert len(shown.splitlines()) == 12


def test_a_failing_build_is_told_with_its_first_error_and_its_log(tmp_path: Path) -> None:
    failing = program(tmp_path / "bin", "cmake", "x.cpp:1:1: error: no", code=1)
    tool = Program(failing, "cmake version 4.0.0")
    build = Build(tool, tool, tmp_path / "source", tmp_path / "tree", tmp_path / "tree" / "build.log")

    with pytest.raises(CheckFailed) as caught:
        build.configure({})

    assert "configuring source failed with exit code 1:\n  x.cpp:1:1: error: no" in caught.value.message
    assert caught.value.remedy == f"read {build.log}"
    assert build.log.read_text(encoding="utf-8").startswith(f"$ {failing} -S ")


def test_a_failing_build_is_explained_where_its_error_is_known(tmp_path: Path) -> None:
    said = "CMake Error: x links to executorch::backend_qnn but the target was not found."
    failing = program(tmp_path / "bin", "cmake", said, code=1)
    tool = Program(failing, "cmake version 4.0.0")
    build = Build(tool, tool, tmp_path / "source", tmp_path / "tree", tmp_path / "tree" / "build.log")

    with pytest.raises(CheckFailed, match=r"CMake older than 3\.28"):
        build.configure({})


@pytest.mark.parametrize(
    ("definitions", "inputs", "kept"),
    [({"A": "1"}, "same", True), ({"A": "2"}, "same", False), ({"A": "1"}, "other", False)],
)
def test_a_tree_made_from_other_things_is_emptied_first(
    tmp_path: Path, definitions: dict[str, str], inputs: str, kept: bool
) -> None:
    tool = Program(program(tmp_path / "bin", "cmake", "done"), "cmake version 4.0.0")
    build = Build(tool, tool, tmp_path / "source", tmp_path / "tree", tmp_path / "tree" / "build.log")
    build.configure({"A": "1"}, inputs="same")
    (build.tree / "main.o").touch()

    build.configure(definitions, inputs=inputs)

    assert (build.tree / "main.o").exists() is kept


def test_a_tree_of_another_place_is_emptied_first(tmp_path: Path) -> None:
    tool = Program(program(tmp_path / "bin", "cmake", "done"), "cmake version 4.0.0")
    build = Build(tool, tool, tmp_path / "source", tmp_path / "tree", tmp_path / "tree" / "build.log")
    build.configure({})
    moved = (tmp_path / "tree").rename(tmp_path / "moved")
    (moved / "main.o").touch()

    Build(tool, tool, tmp_path / "source", moved, moved / "build.log").configure({})

    assert not (moved / "main.o").exists()
