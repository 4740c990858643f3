"""A container engine for tests marked `engine`: the one that answers, else one started for this run.

Where neither can be had those tests are left out, and the run's summary says so and why; with
QNN_CI_TEST_ENGINE=required they run all the same, and fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MARKER = "engine"
SWITCH = "QNN_CI_TEST_ENGINE"
PROGRAMS = {"dockerd": "docker.io", "docker": "docker.io", "buildah": "buildah", "mmdebstrap": "mmdebstrap"}
START_PATIENCE = 60.0
LEFT_OUT = pytest.StashKey[list[str]]()


def lacking() -> str:
    """Why the tests cannot run here; empty if they can."""
    missing = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})
    if missing:
        return f"needs {', '.join(missing)}: apt-get install {' '.join(missing)}"
    if not (os.geteuid() == 0 or answers()):
        return "no engine answers, and only root can start one"
    return ""


def answers() -> bool:
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs an engine where none can be had, unless one is required."""
    ours = [item for item in items if item.get_closest_marker(MARKER)]
    if not ours or os.environ.get(SWITCH) == "required" or not lacking():
        return
    items[:] = [item for item in items if item not in ours]
    config.hook.pytest_deselected(items=ours)
    config.stash[LEFT_OUT] = [item.nodeid for item in ours]


def tell(config: pytest.Config, reporter: pytest.TerminalReporter) -> None:
    left_out = config.stash.get(LEFT_OUT, [])
    # With xdist the workers collect, and this process only knows that they did as it would.
    by_workers = bool(getattr(config.option, "numprocesses", None)) and os.environ.get(SWITCH) != "required"
    if left_out or (by_workers and lacking()):
        reporter.section("container engine")
        reporter.line(f"{len(left_out) or 'The'} checks marked {MARKER} did not run: {lacking()}")
        for nodeid in left_out:
            reporter.line(f"  {nodeid}")


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """An engine answers inside; one that had to be started keeps all it has in `folder` and is ended."""
    if answers():
        yield
        return
    host = f"unix://{folder / 'docker.sock'}"
    command = ["dockerd", "--host", host, "--bridge", "none", "--iptables=false", "--ip-masq=false"]
    command += ["--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    log = folder / "dockerd.log"
    with log.open("wb") as stream:
        daemon = subprocess.Popen(
            [*command, "--pidfile", str(folder / "pid")], stdout=stream, stderr=subprocess.STDOUT
        )
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = host
    try:
        end = time.monotonic() + START_PATIENCE
        while not answers():
            if daemon.poll() is not None or time.monotonic() > end:
                pytest.fail(f"dockerd did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)
        yield
    finally:
        if before is None:
            del os.environ["DOCKER_HOST"]
        else:
            os.environ["DOCKER_HOST"] = before
        daemon.terminate()
        daemon.wait(60)
        _unmount_below(folder)
        shutil.rmtree(folder / "data", ignore_errors=True)


def _unmount_below(folder: Path) -> None:
    """A daemon leaves its network namespace mounted, and a folder with a mount cannot be removed."""
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        point = line.split()[1]
        if Path(point).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", point], check=False)


def make_base(folder: Path, tag: str) -> None:
    """Debian's smallest system, imported as an image, since no registry need be in reach."""
    tar = folder / "base.tar"
    fast = '--aptopt=DPkg::Options "--force-unsafe-io"'
    made = subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", fast, "bookworm", str(tar)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    subprocess.run(["docker", "import", str(tar), tag], check=True, capture_output=True)
    tar.unlink()
