"""The engine that tests start ends with them, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.whole]

HOLDER = """
import subprocess, sys
from tests.support.engine import running
with running() as folder:
    subprocess.run(["docker", "import", sys.argv[1], "sleeper"], check=True, capture_output=True)
    sleeper = ["docker", "run", "--detach", "--network", "none", "sleeper", "/sleep", "600"]
    subprocess.run(sleeper, check=True, capture_output=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", sys.argv[2]], check=True)
    print("up", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> Path:
    """The files of an image that can only sleep."""
    program = "/bin/sleep"
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    with tarfile.open(tmp_path / "sleeper.tar", "w", dereference=True) as archive:
        archive.add(program, "sleep")
        for library in (word for word in said.split() if word.startswith("/")):
            archive.add(library, library)
    return tmp_path / "sleeper.tar"


@pytest.fixture
def place() -> Iterator[Path]:
    """Near the root, as the paths of sockets may not be long."""
    with tempfile.TemporaryDirectory(prefix="qnn-ci-") as folder:
        yield Path(folder)


@pytest.fixture
def held(sleeper: Path, place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that keeps an engine with a running container, and a mount."""
    (place / "mounted").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, sleeper, place / "mounted"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        yield process
        process.kill()
    assert said == "up\n"


def processes() -> Iterator[tuple[int, str]]:
    """Number and command line of each."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        yield int(path.parent.name), said


def living(folder: Path) -> list[str]:
    """Command lines of processes that have to do with a folder, or sleep as the container does."""
    return [said for _, said in processes() if str(folder) in said or said == "/sleep 600 "]


def mounts_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/1/mounts").read_text().splitlines() if str(folder) in line]


def soon_gone(folder: Path) -> bool:
    end = time.monotonic() + 30
    while living(folder) and time.monotonic() < end:
        time.sleep(0.1)
    return not living(folder)


def test_a_killed_test_run_leaves_no_process_and_no_mount(held: subprocess.Popen[str], place: Path) -> None:
    assert any("containerd" in said for said in living(place)) and "/sleep 600 " in living(place)
    held.send_signal(signal.SIGKILL)
    assert soon_gone(place), living(place)
    assert mounts_below(place) == []


def test_what_is_mounted_for_tests_is_seen_by_nobody_else(held: subprocess.Popen[str], place: Path) -> None:
    assert mounts_below(place) == []


def test_a_run_that_ends_leaves_nothing(held: subprocess.Popen[str], place: Path) -> None:
    assert held.stdin is not None
    held.stdin.close()
    assert held.wait(60) == 0
    assert (living(place), [path.name for path in place.iterdir()]) == ([], ["mounted"])


def test_files_of_a_killed_run_are_removed_by_the_next(tmp_path: Path) -> None:
    dead, alive = tmp_path / "qnn-ci-engine-dead", tmp_path / "qnn-ci-engine-alive"
    for folder in (dead, alive):
        folder.mkdir()
        (folder / "lock").touch()
    code = "from tests.support.engine import remove_what_the_dead_left as sweep; sweep()"
    holding = f"import fcntl; f = open({str(alive / 'lock')!r}); fcntl.flock(f, fcntl.LOCK_EX); {code}"
    keeper = f"{holding}; import os; print(*sorted(os.listdir({str(tmp_path)!r})))"
    done = subprocess.run(
        [sys.executable, "-c", keeper],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "qnn-ci-engine-alive\n", done.stderr
