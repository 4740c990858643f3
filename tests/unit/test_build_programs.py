"""CMake, Ninja and compilers are found, or the command that installs them is named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ci.builds.programs import Program, find_cmake, find_compiler, find_ninja, find_program
from provisioning.base.errors import EnvironmentLacking


@pytest.fixture(autouse=True)
def _no_programs_beside_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))


def program(folder: Path, name: str, prints: str, code: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {code}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def path_of(*folders: Path) -> dict[str, str]:
    return {"PATH": ":".join(map(str, folders))}


@pytest.mark.parametrize("version", ["3.28.0-rc1", "3.100.0"])
def test_the_first_cmake_that_is_new_enough_is_taken(tmp_path: Path, version: str) -> None:
    program(tmp_path / "old", "cmake", "cmake version 3.25.1")
    program(tmp_path / "broken", "cmake", "cmake version 4.0.0", code=1)
    new = program(tmp_path / "new", "cmake", f"cmake version {version}")
    path = path_of(tmp_path / "old", tmp_path / "broken", tmp_path / "new")
    assert find_cmake("3.28", path).path == new


def test_a_cmake_that_is_too_old_is_named_with_the_command_for_a_newer_one(tmp_path: Path) -> None:
    old = program(tmp_path / "bin", "cmake", "cmake version 3.25.1")
    with pytest.raises(EnvironmentLacking) as caught:
        find_cmake("3.28", path_of(tmp_path / "bin"))
    assert caught.value.message == f"CMake: expected 3.28 or newer, found 3.25.1 at {old}"
    assert caught.value.remedy == f"{sys.executable} -m pip install 'cmake>=3.28'"


@pytest.mark.parametrize(
    ("find", "remedy"),
    [
        (find_ninja, "-m pip install ninja"),
        (find_compiler, "apt-get install g++"),
        (
            lambda environ: find_program("aarch64-linux-gnu-g++", environ),
            "apt-get install g++-aarch64-linux-gnu",
        ),
    ],
)
def test_what_is_missing_names_its_package(
    tmp_path: Path, find: Callable[[Mapping[str, str]], Program], remedy: str
) -> None:
    with pytest.raises(EnvironmentLacking) as caught:
        find(path_of(tmp_path))
    assert caught.value.remedy.endswith(remedy)


def test_cxx_names_the_compiler_by_a_path_from_here_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "g++", "g++ 12")
    mine = program(tmp_path / "own", "my-c++", "mine 1.0")
    monkeypatch.chdir(tmp_path)
    assert find_compiler({**path_of(tmp_path / "bin"), "CXX": "own/my-c++"}) == Program(mine, "mine 1.0")
    with pytest.raises(EnvironmentLacking, match="nothing-c"):
        find_compiler({**path_of(tmp_path / "bin"), "CXX": "nothing-c++"})


def test_a_compiler_with_a_launcher_is_refused_with_the_reason(tmp_path: Path) -> None:
    program(tmp_path / "bin", "g++", "g++ 12.2.0")
    with pytest.raises(EnvironmentLacking) as caught:
        find_compiler({"CXX": "ccache g++", **path_of(tmp_path / "bin")})
    assert caught.value.remedy == "name the program alone, without a launcher or arguments"


@pytest.mark.parametrize(
    ("identity", "version"),
    [("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", "12.2.0"), ("cmake version 4.4.4", "4.4.4"), ("odd", "")],
)
def test_the_version_is_read_from_what_a_program_prints(identity: str, version: str) -> None:
    assert Program(Path("x"), identity).version == version
