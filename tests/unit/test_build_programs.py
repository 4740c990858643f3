"""CMake, Ninja and compilers are found, or the command that installs them is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ci.builds.programs import Program, find_cmake, find_compiler
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
