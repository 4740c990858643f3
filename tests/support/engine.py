"""A container engine for tests marked `engine`: one of their own, which ends with them however they end.

Where none can be started those tests are left out, and the run's summary says how many and why; with
QNN_CI_TEST_ENGINE=required they run all the same, and fail.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

MARKER = "engine"
SWITCH = "QNN_CI_TEST_ENGINE"
PROGRAMS = {"dockerd": "docker.io", "docker": "docker.io", "buildah": "buildah", "mmdebstrap": "mmdebstrap"}
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
"""Processes and mounts of what runs in it are gone with it."""
FOLDERS = "qnn-ci-engine-"
CONTROL_GROUP = "qnn-ci-engines"
START_PATIENCE = 60.0
END_PATIENCE = 300.0
"""The kernel writes out what the engine's mounts hold before it lets their processes go."""
LEFT_OUT = pytest.StashKey[list[str]]()


def lacking() -> str:
    """Why the tests cannot run here; empty if they can."""
    missing = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})
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
    said = tried.stderr.strip()
    return f"this root may neither mount nor isolate: {said}" if tried.returncode else ""


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs an engine where none can be had, unless one is required."""
    ours = [item for item in items if item.get_closest_marker(MARKER)]
    if not ours or os.environ.get(SWITCH) == "required" or not lacking():
        return
    items[:] = [item for item in items if item not in ours]
    config.hook.pytest_deselected(items=ours)
    config.stash[LEFT_OUT] = [item.nodeid for item in ours]


def tell(config: pytest.Config, reporter: pytest.TerminalReporter) -> None:
    if left_out := config.stash.get(LEFT_OUT, []):
        reporter.section("container engine")
        reporter.line(f"{len(left_out)} checks marked {MARKER} did not run: {lacking()}")


@contextmanager
def running(images: Path | None = None) -> Iterator[Path]:
    """An engine answers inside, whose files are in the folder, or its images elsewhere.

    It and all mounts made inside vanish with this process, even if that is killed; what is then left on disk
    goes when the next one starts.
    """
    keep_mounts_to_ourselves()
    remove_what_the_dead_left()
    folder = Path(tempfile.mkdtemp(prefix=FOLDERS))
    with (folder / "new-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Under this name only once it is locked, as without a lock the folder is a dead one's.
        (folder / "new-lock").rename(folder / "lock")
        with _daemon(folder, images or folder / "images"):
            yield folder
    remove_what_the_dead_left()


@contextmanager
def _daemon(folder: Path, images: Path) -> Iterator[None]:
    host = f"unix://{folder / 'docker.sock'}"
    command = ["dockerd", "--host", host, "--bridge", "none", "--iptables=false", "--ip-masq=false"]
    command += ["--data-root", str(images), "--exec-root", str(folder / "exec")]
    command += ["--pidfile", str(folder / "pid"), "--exec-opt", "native.cgroupdriver=cgroupfs"]
    command += ["--cgroup-parent", f"/{CONTROL_GROUP}"]
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
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = host
    try:
        end = time.monotonic() + START_PATIENCE
        while subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
            if daemon.poll() is not None or time.monotonic() > end:
                pytest.fail(f"dockerd did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)
        yield
    finally:
        if before is None:
            del os.environ["DOCKER_HOST"]
        else:
            os.environ["DOCKER_HOST"] = before
        daemon.kill()
        daemon.wait()
        gone, _, _ = select.select([alive], [], [], END_PATIENCE)
        os.close(alive)
        assert gone, "processes of the engine outlive it"


def keep_mounts_to_ourselves() -> None:
    """From here on others' mounts are seen by us, and ours by no others."""
    new_mounts, recursive, slave = 0x20000, 0x4000, 0x80000
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(new_mounts) or libc.mount(None, b"/", None, recursive | slave, None):
        raise OSError(ctypes.get_errno(), "cannot have mounts of our own")


def remove_what_the_dead_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        with suppress(OSError), (folder / "lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    hierarchies = Path("/sys/fs/cgroup")
    for group in (hierarchies / CONTROL_GROUP, *hierarchies.glob(f"*/{CONTROL_GROUP}")):
        for path, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                Path(path).rmdir()


def make_base(folder: Path, tag: str) -> None:
    """Debian's smallest system, imported as an image, since no registry need be in reach."""
    tar = folder / "base.tar"
    fast = '--aptopt=DPkg::Options "--force-unsafe-io"'
    # Without one, docker before 23 makes it for each step and takes it away, which leaves the hour on /etc.
    hosts = '--customize-hook=touch "$1/etc/hosts"'
    made = subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", fast, hosts, "bookworm", str(tar)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    subprocess.run(["docker", "import", str(tar), tag], check=True, capture_output=True)
    tar.unlink()
