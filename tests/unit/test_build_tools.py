"""Programs of a build are found, or the command that installs them is named."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ci.builds.toolchain import BuildTool, find_cmake, find_compiler
from provisioning.base import commands
from provisioning.base.errors import EnvironmentLacking
from tests.support.scripts import script


@pytest.fixture(autouse=True)
def _no_programs_beside_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))


def program(folder: Path, name: str, prints: str, code: int = 0) -> Path:
    return script(folder / name, f"echo '{prints}'\nexit {code}")


def path_of(*folders: Path) -> dict[str, str]:
    return {"PATH": ":".join(map(str, folders))}


def test_the_first_cmake_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    program(tmp_path / "old", "cmake", "cmake version 3.25.1")
    program(tmp_path / "broken", "cmake", "cmake version 4.0.0", code=1)
    new = program(tmp_path / "new", "cmake", "cmake version 3.100.0")
    path = path_of(tmp_path / "old", tmp_path / "broken", tmp_path / "new")
    assert find_cmake("3.28", path).path == new


def test_cxx_names_the_compiler_by_a_path_from_here_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "g++", "g++ 12")
    mine = program(tmp_path / "own", "my-c++", "mine 1.0")
    monkeypatch.chdir(tmp_path)
    assert find_compiler({**path_of(tmp_path / "bin"), "CXX": "own/my-c++"}) == BuildTool(mine, "mine 1.0")
    with pytest.raises(EnvironmentLacking, match="nothing-c"):
        find_compiler({**path_of(tmp_path / "bin"), "CXX": "nothing-c++"})


def test_a_compiler_that_is_there_and_does_not_answer_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = program(tmp_path / "bin", "g++", "g++ 12", code=1)
    with pytest.raises(EnvironmentLacking, match=re.escape(f"{broken} does not say its version: it ended")):
        find_compiler(path_of(tmp_path / "bin"))
    monkeypatch.setattr(commands, "ANSWER_SECONDS", 0.2)
    hanging = script(tmp_path / "hangs" / "g++", "sleep 60")
    with pytest.raises(EnvironmentLacking, match=r"hangs/g.. does not say its version: it gave no"):
        find_compiler({**path_of(tmp_path / "bin"), "CXX": str(hanging)})


def test_a_compiler_that_does_not_answer_is_passed_over_where_another_one_does(tmp_path: Path) -> None:
    program(tmp_path / "bin", "g++", "g++ 12", code=1)
    other = program(tmp_path / "bin", "clang++", "clang 17")
    assert find_compiler(path_of(tmp_path / "bin")).path == other


def test_a_compiler_that_prints_without_end_is_ended(tmp_path: Path) -> None:
    endless = script(tmp_path / "clang++", "exec yes")
    assert commands.version_line(endless) == ("", "it prints without end")


@pytest.mark.parametrize(
    ("text", "code", "answer"),
    [
        ("clang 17\nof some vendor", 0, ("clang 17", "")),
        ("", 0, ("", "it ended with exit code 0")),
        ("no such flag", 2, ("", "it ended with exit code 2: no such flag")),
    ],
)
def test_a_program_says_its_version_or_why_it_does_not(
    text: str, code: int, answer: tuple[str, str], tmp_path: Path
) -> None:
    asked = script(tmp_path / "program", f"printf '{text}'; exit {code}")
    assert commands.version_line(asked) == answer
