"""Running commands, the overlay, and the bill of materials."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import pytest

from ci.builds import install as stage
from ci.builds import source
from ci.builds.execute import Ticker, execute, fault
from ci.builds.loadable import Built
from ci.builds.plan import Command, Plan
from provisioning import overlay
from provisioning.base.disk import disk_errors
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import StageRun
from tests.support.build_plans import make_plan

COMMAND = Command("building it", ("cmake", "--build", "."))


def python(code: str) -> Command:
    return Command("building it", (sys.executable, "-c", code))


def test_all_that_a_command_says_is_in_the_log(tmp_path: Path) -> None:
    code = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr)"
    execute(python(code), tmp_path / "log", os.environ, jobs=2)
    assert (tmp_path / "log").read_text(encoding="utf-8").splitlines()[-2:] == ["out", "err"]


def test_the_first_error_is_shown(tmp_path: Path) -> None:
    code = (
        "print('[1/9] a.cpp'); print('a.cpp:3:1: error: first'); print('b.cpp:1:1: error: second'); exit(2)"
    )
    with pytest.raises(CheckFailed, match=r"exit code 2:\n  a\.cpp:3:1: error: first"):
        execute(python(code), tmp_path / "log", os.environ, jobs=2)


def test_an_earlier_commands_error_is_not_this_ones(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a.cpp:3:1: error: long ago\n", encoding="utf-8")
    with pytest.raises(CheckFailed) as caught:
        execute(python("print('gone wrong'); exit(1)"), tmp_path / "log", os.environ, jobs=2)
    assert "long ago" not in caught.value.message


def test_a_known_cause_is_explained() -> None:
    found = fault(
        COMMAND, 1, "error: libc++.so.1: cannot open shared object file: No such file", Path("log"), 2
    )
    assert "libc++" in found.message.partition("\n  error")[2].partition("\n")[2]


@pytest.mark.parametrize(
    "text", ["c++: fatal error: Killed signal terminated program cc1plus", "LLVM ERROR: out of memory"]
)
def test_too_little_memory_halves_the_jobs(text: str) -> None:
    found = fault(COMMAND, 1, text, Path("log"), 8)
    assert (type(found), found.remedy) == (EnvironmentLacking, "--jobs 4")


def test_a_full_disk_is_no_fault_of_the_tree() -> None:
    found = fault(COMMAND, 1, "x.s: error: No space left on device", Path("log"), 8)
    assert (found.exit_code, "disk is full" in found.message) == (3, True)


def test_progress_off_a_terminal_is_a_line_for_each_tenth() -> None:
    out = io.StringIO()
    ticker = Ticker("building", out)
    for done in range(1, 101):
        ticker.step(done, 100)
    assert len(out.getvalue().splitlines()) == 11


def test_a_build_inside_the_build_does_not_count() -> None:
    out = io.StringIO()
    ticker = Ticker("building", out)
    ticker.step(50, 100)
    ticker.step(2, 2)
    assert out.getvalue() == "building: 50 of 100\n"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_plan(tmp_path)


def put(plan: Plan, place: str, age: int = 0) -> Path:
    path = plan.build / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, ns=(0, 10**18 - age))
    return path


RUNNER = "examples/qualcomm/executor_runner/qnn_executor_runner"
PLACES = ("lib/libqnn_executorch_backend.so", "lib/executorch/backends/qualcomm/libqnn_executorch_backend.so")


@pytest.mark.parametrize("newer", PLACES)
def test_of_two_places_the_one_installed_last_is_taken(plan: Plan, newer: str) -> None:
    put(plan, RUNNER)
    paths = {place: put(plan, place, age=0 if place == newer else 5) for place in PLACES}
    assert [file.path for file in stage.collect(plan, True) if file.kind == "library"] == [paths[newer]]


def test_after_installing_into_the_tree_no_overlay_hides_what_was_installed(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    adaptor = plan.dist / "python" / "backends" / "PyA.so"
    adaptor.parent.mkdir(parents=True)
    adaptor.touch()
    plan.tree.root.mkdir(parents=True)
    run = StageRun("build_x86", "wheels", "x86_64-linux", "")
    source._put_into_python(plan, run, install=False)
    made = (plan.dist / "overlay" / overlay.DESCRIPTION).is_file()
    source._put_into_python(plan, run, install=True)
    assert (made, (plan.dist / "overlay").exists()) == (True, False)
    assert f"export PYTHONPATH={plan.tree.root.parent}$" in capsys.readouterr().out


def test_what_was_not_made_is_named(plan: Plan) -> None:
    with pytest.raises(CheckFailed, match=r"expected the build to make .*libqnn_executorch_backend\.so"):
        stage.collect(plan, True)


def test_a_strip_of_another_machine_is_said(plan: Plan, tmp_path: Path) -> None:
    program = tmp_path / "strip"
    program.write_text("#!/bin/sh\necho 'unable to recognise the format' >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    built = [Built("runner", put(plan, RUNNER), "bin/qnn_executor_runner")]
    with pytest.raises(CheckFailed, match="failed on qnn_executor_runner with exit code 1: unable to"):
        stage.assemble(built, tmp_path / "part", str(program))


def test_another_build_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """Whichever stage made it: nothing is left that tells of files that are gone."""
    old = (
        "bin/a",
        "bin/b",
        "lib/a.so",
        "python/a.so",
        "licences/x/LICENSE",
        "sbom.cdx.json",
        "manifest.json",
    )
    for place in (*(f"dist/{each}" for each in old), "part/bin/a", "part/lib/new.so"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place, encoding="utf-8")
    for users in ("overlay", "notes"):
        (tmp_path / "dist" / users).mkdir()
    stage.replace(tmp_path / "part", tmp_path / "dist")
    left = sorted(str(path.relative_to(tmp_path / "dist")) for path in (tmp_path / "dist").rglob("*"))
    assert left == ["bin", "bin/a", "lib", "lib/new.so", "notes", "overlay"]
    assert (tmp_path / "dist/bin/a").read_text(encoding="utf-8") == "part/bin/a"


def test_a_folder_that_may_not_be_written_to_is_no_crash() -> None:
    with pytest.raises(EnvironmentLacking, match="/usr/dist: Permission denied"), disk_errors("--output"):
        raise PermissionError(errno.EACCES, "Permission denied", "/usr/dist")


def test_an_unforeseen_fault_stays_what_it_is() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"), disk_errors("--output"):
        raise OSError(errno.EBADF, "Bad file descriptor")
