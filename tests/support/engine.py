"""A container engine for tests marked `engine`: one of their own, which ends with them however they end.

Where none can be started those tests are left out, and the run's summary says how many and why; with
QNN_CI_TEST_ENGINE=required they run all the same, and fail.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.support.needs import path_of_programs

MARKER = "engine"
SWITCH = "QNN_CI_TEST_ENGINE"
PROGRAMS = {"dockerd": "docker.io", "docker": "docker.io", "mmdebstrap": "mmdebstrap"}
OWN_WORLD = [
    "unshare",
    "--mount",
    "--propagation",
    "slave",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
]
"""Processes and mounts of what runs in it are gone with it, and no mount of it is seen elsewhere."""
START_PATIENCE = 240.0
END_PATIENCE = 300.0
"""The kernel writes out what the engine's mounts hold before it lets their processes go."""


@cache
def lacking() -> str:
    """Why the tests cannot run here; empty if they can."""
    path = path_of_programs()
    missing = sorted({package for name, package in PROGRAMS.items() if not shutil.which(name, path=path)})
    if missing:
        return f"needs {', '.join(missing)}: apt-get install {' '.join(missing)}"
    if os.geteuid() != 0:
        return "only root can start an engine"
    tried = subprocess.run(
        [*OWN_WORLD, "--net", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    error = tried.stderr.strip()
    return f"this root may neither mount nor isolate: {error}" if tried.returncode else ""


def reasons(item: pytest.Item) -> list[str]:
    """Why it does not run: it needs an engine, and none can be had or is required."""
    if item.get_closest_marker(MARKER) is None or os.environ.get(SWITCH) == "required" or not lacking():
        return []
    return [f"marked {MARKER} did not run: {lacking()}"]


@contextmanager
def running() -> Iterator[Path]:
    """An engine answers inside, whose files are in the folder. It vanishes with this process, even if that is
    killed."""
    with tempfile.TemporaryDirectory(prefix="qnn-ci-engine-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        with _daemon(folder):
            yield folder


@contextmanager
def _daemon(folder: Path) -> Iterator[None]:
    host = f"unix://{folder / 'docker.sock'}"
    command = ["dockerd", "--host", host, "--bridge", "none", "--iptables=false", "--ip-masq=false"]
    command += ["--data-root", str(folder / "images"), "--exec-root", str(folder / "exec")]
    command += ["--pidfile", str(folder / "pid"), "--exec-opt", "native.cgroupdriver=cgroupfs"]
    # Another engine of this machine would otherwise share its containerd with ours.
    hidden = [
        f"mount -t tmpfs tmpfs {path}" for path in ("/run/docker", "/run/containerd") if Path(path).is_dir()
    ]
    script = "; ".join([*hidden, f"exec {shlex.join(command)}"])
    # Every process of the engine inherits the pipe's end, so that it closes when the last of them has ended.
    alive, held = os.pipe()
    log = folder / "dockerd.log"
    # dockerd has a containerd that answers late write its stacks there before it starts another.
    temporary = folder / "tmp"
    temporary.mkdir()
    try:
        with log.open("wb") as stream:
            daemon = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *OWN_WORLD, "sh", "-ec", script],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(temporary)},
                pass_fds=[held],
            )
    finally:
        os.close(held)
    try:
        end = time.monotonic() + START_PATIENCE
        with pytest.MonkeyPatch.context() as variables:
            variables.setenv("DOCKER_HOST", host)
            while subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
                if daemon.poll() is not None or time.monotonic() > end:
                    pytest.fail(f"dockerd did not start:\n{log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.2)
            yield
    finally:
        daemon.kill()
        daemon.wait()
        gone, _, _ = select.select([alive], [], [], END_PATIENCE)
        os.close(alive)
        assert gone, "processes of the engine outlive it"


def make_base(folder: Path, tag: str) -> None:
    """Debian's smallest system, imported as an image, since no registry need be in reach."""
    tar = folder / "base.tar"
    fast = '--aptopt=DPkg::Options "--force-unsafe-io"'
    bootstrapped = subprocess.run(
        [*OWN_WORLD, "mmdebstrap", "--quiet", "--variant=minbase", fast, "bookworm", str(tar)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert bootstrapped.returncode == 0, bootstrapped.stderr
    subprocess.run(["docker", "import", str(tar), tag], check=True, capture_output=True)
    tar.unlink()
