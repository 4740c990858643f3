"""How our own tests run: in any order, alone, in parts."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with three files of tests, of which one relies on another."""
    files = {
        ".gitignore": "reports\n__pycache__\n",
        "conftest.py": "from tests.conftest import *",
        "pytest.ini": "[pytest]\nmarkers =\n  whole\n  needs\n  engine\n",
        "checks/test_left.py": """
            import os, pathlib
            left = pathlib.Path(os.environ["XDG_CACHE_HOME"], "qnn-ci", "left")
            def test_leaves():
                left.parent.mkdir(parents=True, exist_ok=True)
                left.touch()
            """,
        "checks/test_relies.py": """
            import os, pathlib
            def test_relies():
                assert pathlib.Path(os.environ["XDG_CACHE_HOME"], "qnn-ci", "left").is_file()
            """,
        "checks/test_many.py": """
            import pytest
            class TestFirst:
                def test_a(self): ...
                def test_b(self): ...
            class TestSecond:
                def test_c(self): ...
                def test_d(self): ...
            @pytest.mark.parametrize("n", range(20))
            def test_e(n): ...
            """,
    }
    for name, text in files.items():
        file = tmp_path / "project" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(re.sub("^ {12}", "", text, flags=re.MULTILINE))
    (tmp_path / "project" / "manifests").mkdir()
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "tests"]):
        subprocess.run([*git, *words], cwd=tmp_path / "project", check=True)
    return tmp_path / "project"


def run(project: Path, *words: str) -> tuple[int, list[str]]:
    """The exit code, and the lines of standard output."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(project.parent / "home"),
        "XDG_CACHE_HOME": str(project.parent / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=False)
    assert "INTERNALERROR" not in done.stdout + done.stderr
    return done.returncode, (done.stdout + done.stderr).splitlines()


def order(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if "::" in line]


def test_a_file_that_relies_on_another_fails_alone_and_is_named(project: Path) -> None:
    assert run(project, "-n0", "checks/test_left.py", "checks/test_relies.py")[0] == 0
    code, lines = run(project, "-n2", "--alone", "checks")
    assert code == 1
    assert any(line.startswith("failed alone: checks/test_relies.py: 1 failed") for line in lines), lines
    verdicts = {line.split()[4]: line.split()[1] for line in lines if line.startswith("[")}
    assert verdicts == {
        "checks/test_left.py": "passed",
        "checks/test_many.py": "passed",
        "checks/test_relies.py": "failed",
    }


def test_resuming_leaves_out_what_passed_until_a_file_changes(project: Path) -> None:
    assert run(project, "--alone", "checks/test_many.py", "checks/test_left.py")[0] == 0
    code, lines = run(project, "--alone", "--resume", "checks/test_many.py", "checks/test_left.py")
    assert (code, [line for line in lines if line.startswith("[")]) == (0, [])
    (project / "new.py").touch()
    code, lines = run(project, "--alone", "--resume", "checks/test_many.py")
    assert (code, len([line for line in lines if line.startswith("[")])) == (0, 1)


def test_two_workers_have_the_order_that_was_drawn_once(project: Path) -> None:
    code, lines = run(project, "-n2", "--dist", "loadfile", "--random-order", "new", "checks/test_many.py")
    assert code == 0, lines


def test_a_random_order_keeps_files_and_classes_together_and_its_seed_gives_it_again(project: Path) -> None:
    collect = ("-n0", "--co", "-q", "checks")
    plain = order(run(project, *collect)[1])
    _, first = run(project, *collect, "--random-order", "new")
    (seed,) = {line.split()[-1] for line in first if line.startswith("random order")}
    assert order(run(project, *collect, "--random-order", seed)[1]) == order(first)
    assert sorted(order(first)) == sorted(plain) and order(first) != plain
    for part in (0, 1):
        names = ["::".join(test.split("::")[: part + 1]) for test in order(first) if test.count("::") > part]
        assert sum(a != b for a, b in itertools.pairwise(names)) <= len(set(names)), names


def test_with_workers_the_order_is_the_same(project: Path) -> None:
    code, lines = run(
        project, "-v", "-n1", "--dist", "loadfile", "--random-order", "7", "checks/test_many.py"
    )
    alone = order(run(project, "-n0", "--co", "-q", "--random-order", "7", "checks/test_many.py")[1])
    ran = [line.split()[-1] for line in lines if " PASSED " in line]
    assert (code, ran) == (0, alone)


def test_shards_have_every_test_once_and_whole_files(project: Path) -> None:
    shards = [order(run(project, "-n0", "--co", "-q", "--shard", f"{i}/2", "checks")[1]) for i in (1, 2)]
    files = [{test.partition("::")[0] for test in shard} for shard in shards]
    assert not files[0] & files[1] and all(files)
    assert sorted(shards[0] + shards[1]) == sorted(order(run(project, "-n0", "--co", "-q", "checks")[1]))


def test_a_test_that_fails_only_on_a_busy_machine_differs(project: Path) -> None:
    text = """
import pathlib, subprocess, sys, time
def state(child):
    return pathlib.Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]
def test_never_stopped():
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    end, stopped = time.monotonic() + 3, False
    while time.monotonic() < end and not stopped:
        stopped = "T" in map(state, children)
        time.sleep(0.005)
    for child in children:
        child.kill()
        child.wait()
    assert not stopped
def test_plain(): ...
def test_red(): assert False
"""
    (project / "checks" / "test_busy.py").write_text(text)
    code, lines = run(project, "-n0", "-q", "--twice", "checks/test_busy.py")
    assert code == 1
    assert "differs: checks.test_busy::test_never_stopped: passed in quiet, failed under load" in lines
    assert "failed twice: checks.test_busy::test_red" in lines
    assert not any("test_plain" in line for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ("--shard", "3/2"),
        ("--random-order", "often"),
        ("--alone", "checks/test_absent.py"),
        ("--alone", "--twice"),
    ],
)
def test_a_wrong_value_is_a_usage_error_that_repeats_it(project: Path, words: tuple[str, ...]) -> None:
    code, lines = run(project, *words)
    assert (code, any(words[-1] in line for line in lines)) == (4, True), lines


def test_a_program_without_a_row_in_the_table_is_no_internal_error(project: Path) -> None:
    text = "import pytest\n@pytest.mark.needs('no-such-program')\ndef test_a(): ...\n"
    (project / "checks" / "test_program.py").write_text(text)
    _, lines = run(project, "-n0", "checks/test_program.py")
    assert any("no-such-program" in line for line in lines)
