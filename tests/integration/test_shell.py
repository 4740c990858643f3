"""`shell` with real processes, over a directory that stands for the user's own SDK."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.command_line import STARTED_IN
from provisioning.base.settings import ROOT

SHELLS = [shell for shell in ("bash", "dash") if shutil.which(shell)]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    root = tmp_path / "it's an SDK"
    (root / "lib/x86_64-linux-clang").mkdir(parents=True)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "QNN_SDK_ROOT": str(root),
        "QNN_CI_STORE": str(tmp_path / "store"),
        "TERM": "dumb",
    }


def _shell(environ: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "provisioning", "shell", *argv],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_command_runs_in_the_environment_where_the_user_is(environ: dict[str, str], tmp_path: Path) -> None:
    words = ("--soc", "SM8750", "--", "sh", "-c", 'echo "$QNN_CI_SOC $LD_LIBRARY_PATH $PWD"')
    ran = _shell({**environ, STARTED_IN: str(tmp_path)}, *words)
    assert ran.stdout == f"SM8750 {environ['QNN_SDK_ROOT']}/lib/x86_64-linux-clang {tmp_path}\n"


def test_python_is_the_one_of_the_locked_environment(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to("/bin/false")
    path = f"{tmp_path}:{environ['PATH']}"
    ran = _shell({**environ, "PATH": path}, "--", "python", "-c", "import sys; print(sys.prefix)")
    assert ran.stdout == f"{sys.prefix}\n", ran.stderr


@pytest.mark.parametrize(("command", "code"), [("exit 42", 42), ("kill -TERM $$", -signal.SIGTERM)])
def test_the_command_ends_as_it_does_outside(environ: dict[str, str], command: str, code: int) -> None:
    assert _shell(environ, "--", "sh", "-c", command).returncode == code


def test_a_command_that_cannot_be_run_ends_as_a_shell_does(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    for command, code in (("no-such-command", 127), (str(tmp_path / "data"), 126)):
        ran = _shell(environ, "--", command)
        assert (ran.returncode, command in ran.stderr.splitlines()[-1]) == (code, True)


def test_an_environment_that_lacks_something_ends_with_3_before_anything_runs(
    environ: dict[str, str],
) -> None:
    del environ["QNN_SDK_ROOT"]
    ran = _shell(environ, "--", "echo", "ran")
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr.endswith("  try: nox -s provision\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_without_a_command_the_users_shell_opens(environ: dict[str, str], shell: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "provisioning", "shell"],
        cwd=ROOT,
        env={**environ, "SHELL": str(shutil.which(shell))},
        input="echo in=$QNN_CI_SHELL\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "in=wheels/x86_64-linux\n" in ran.stdout, ran.stderr
