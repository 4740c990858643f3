"""A session as nox runs it, with a stand-in for the Python of its environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from provisioning.base import toml
from provisioning.base.settings import ROOT
from tests.support.scripts import locked_environment

STAND_IN = """\
import pathlib, signal, sys, time
here = pathlib.Path({here!r})
def tidy(number, frame):
    time.sleep(0.7)  # nox's own patience is 0.3
    (here / "tidied").touch()
    raise SystemExit(130)
signal.signal({listens_to}, tidy)
(here / "arguments").write_text(" ".join(sys.argv[1:]))
(here / "started").touch()
time.sleep(60)
"""


STARTED_BY = """\
import runpy, sys, types
sys.modules["nox"] = types.ModuleType("nox")
sys.version_info = {version}
runpy.run_path("noxfile.py")
"""


@pytest.mark.parametrize("version", [(3, 9), (3, 14)])
def test_a_python_that_we_have_no_packages_for_is_refused_before_anything_is_made(
    version: tuple[int, int],
) -> None:
    project = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not SpecifierSet(project["requires-python"]).contains(".".join(map(str, version)))
    command = [sys.executable, "-c", STARTED_BY.format(version=version)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    ("tell", "number"),
    [
        pytest.param(os.killpg, signal.SIGINT, id="both-by-a-terminal", marks=pytest.mark.whole),
        pytest.param(os.kill, signal.SIGTERM, id="only-nox-by-kill"),
    ],
)
def test_an_interrupted_session_has_time_to_tidy_up(
    tmp_path: Path, tell: Callable[[int, int], None], number: signal.Signals
) -> None:
    program = STAND_IN.format(here=str(tmp_path), listens_to=int(number))
    locked_environment(tmp_path, "executorch", program, sys.executable)
    process = subprocess.Popen(
        [sys.executable, "-m", "nox", "--", "--only", "validate"],
        cwd=ROOT,
        env={**os.environ, "QNN_CI_ENVIRONMENTS": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # A shell's background jobs are begun deaf to interrupts.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        tell(process.pid, number)
        assert process.wait(60) == 130
        assert (tmp_path / "tidied").exists()
        assert (tmp_path / "arguments").read_text() == "-m ci gate --only validate"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def printed(folder: Path, session: str, *words: str) -> str:
    """By a session of nox that is started in a folder with the environments."""
    nox = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", session, "--", *words]
    environ = {**os.environ, "QNN_CI_ENVIRONMENTS": str(folder)}
    return subprocess.run(nox, cwd=folder, env=environ, capture_output=True, text=True, check=True).stdout


def test_what_runs_after_a_build_for_a_device_is_built_of_the_same_tree(tmp_path: Path) -> None:
    locked_environment(tmp_path, "executorch", 'echo "$3 ${QNN_CI_BUILDS_TREE:-0}"')
    sessions = ("test_lowering", "build_android", "test_emulator")
    nox = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", *sessions]
    environ = {**os.environ, "QNN_CI_ENVIRONMENTS": str(tmp_path)}
    done = subprocess.run(nox, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "test_lowering 0\nbuild_android 0\ntest_emulator 1\n"


@pytest.mark.parametrize(("name", "hint"), [("test_emulater", "test_emulator"), ("doctor", "validate")])
def test_a_session_that_is_not_there_is_answered_with_the_one_that_may_be_meant(name: str, hint: str) -> None:
    nox = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", name]
    done = subprocess.run(nox, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert f"did you mean {hint}" in done.stderr


def test_a_relative_path_counts_from_where_nox_was_started(tmp_path: Path) -> None:
    locked_environment(tmp_path, "tools")
    assert printed(tmp_path, "store", "list", "--store", "mine") == f"no trees in {tmp_path / 'mine'}\n"


def test_the_users_folder_says_which_environment_a_model_needs(tmp_path: Path) -> None:
    (tmp_path / "Llama").mkdir()
    (tmp_path / "Llama" / "config.json").write_text("{}")
    for name in ("llm", "executorch"):
        locked_environment(tmp_path, name, f"echo {name}")
    assert printed(tmp_path, "compile", "Llama/", "-o", "out") == "llm\n"
