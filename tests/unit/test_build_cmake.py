"""The engine of all builds: what its folder records, its commands, their log and their errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci.builds import cmake
from ci.builds.cmake import Build, BuildCommand, ConfiguredProject, failure
from ci.builds.toolchain import BuildTool
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from tests.support.scripts import script


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """With a CMake that only notes how it was called."""
    path = script(tmp_path / "bin" / "cmake", f'echo "$* $CXXFLAGS" >> {tmp_path}/calls')
    tool = BuildTool(path, "cmake version 4.0.0")
    folder = tmp_path / "work"
    project = ConfiguredProject("demo", tmp_path / "source", folder / "build", {"A": "1"})
    return Build(folder, tool, tool, (project,), jobs=2, identity={"compiler": "g++ 12"})


def defining(build: Build, **definitions: str) -> Build:
    return replace(build, projects=(replace(build.projects[0], definitions=definitions),))


def configured(build: Build) -> list[str]:
    """The words of the last configuring."""
    lines = (build.folder.parent / "calls").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("-S")][-1].split()


def object_file(build: Build) -> Path:
    path = build.folder / "build" / "main.o"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    return path


def test_a_folder_of_another_build_is_emptied_and_the_reason_shown(
    build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    build.run()
    file = object_file(build)
    (build.folder / "notes.txt").touch()
    replace(build, identity={"compiler": "g++ 13"}).run()
    assert "compiler was g++ 12, is g++ 13" in capsys.readouterr().err
    assert (file.exists(), (build.folder / "notes.txt").exists()) == (False, True)


def test_a_folder_that_was_moved_or_whose_record_is_damaged_starts_anew(build: Build) -> None:
    build.run()
    moved = replace(build, folder=build.folder.rename(build.folder.with_name("moved")))
    assert moved.state().reasons[0].startswith("build directory was")
    for text in ("{", "{}", "[]", '{"format": 1}'):
        (moved.folder / cmake.RECORD).write_text(text, encoding="utf-8")
        assert len(moved.state().reasons) == 1


def test_what_is_configured_already_is_configured_again_only_when_that_may_give_something_else(
    build: Build,
) -> None:
    def times(build: Build) -> int:
        build.run()
        text = (build.folder.parent / "calls").read_text(encoding="utf-8")
        return sum(line.startswith("-S") for line in text.splitlines())

    assert [times(build), times(build)] == [1, 1]
    assert times(defining(build, A="2")) == 2
    globbed = replace(defining(build, A="2"), listing="one file more")
    assert [times(globbed), times(globbed)] == [3, 3]


def test_options_of_earlier_builds_and_what_was_not_found_then_are_not_in_the_cache(build: Build) -> None:
    build.run()
    cache = build.folder / "build" / "CMakeCache.txt"
    cache.touch()
    build.run()
    assert cache.exists()
    defining(build, A="2").run()
    assert not cache.exists()


def test_a_project_that_could_not_be_configured_is_configured_again_with_any_options(build: Build) -> None:
    build.run()
    works = build.cmake.path.read_text(encoding="utf-8")
    build.cmake.path.write_text(f"{works}exit 1\n", encoding="utf-8")
    with pytest.raises(CheckFailed):
        defining(build, A="2").run()
    build.cmake.path.write_text(works, encoding="utf-8")
    calls = build.folder.parent / "calls"
    calls.unlink()
    build.run()
    assert "-DA=1" in configured(build)


def test_what_is_built_is_installed_each_time(build: Build) -> None:
    """CMake leaves what is installed already as it is."""
    build = replace(build, projects=(replace(build.projects[0], install=True),))
    for _ in range(2):
        build.run()
    calls = (build.folder.parent / "calls").read_text(encoding="utf-8")
    assert calls.count("--install") == 2


def test_variables_that_would_change_the_build_unseen_are_not_passed_on(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXXFLAGS", "-O0")
    build.run()
    assert "-O0" not in configured(build)
    assert build.environ({"CXX": "tcc", "PATH": "/bin"})["PATH"] == "/bin"


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("c++: fatal error: Killed signal terminated program cc1plus", EnvironmentLacking, "--jobs 4"),
        ("x.s: error: No space left on device", EnvironmentLacking, "--build-dir"),
    ],
)
def test_lack_of_memory_or_disk_is_no_error_of_the_tree(text: str, kind: type[Exception], shown: str) -> None:
    error = failure(BuildCommand("building it", ("cmake",)), 1, text, Path("log"), 8)
    assert type(error) is kind
    assert shown in f"{error.message} {error.fix}"
