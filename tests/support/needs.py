"""Programs that some tests use for real, and that a machine may lack.

Tests marked `needs(...)` are left out where one is missing; the run's summary counts them for each package.
With QNN_CI_TEST_PROGRAMS=required they run all the same, and fail. Where QNN_CI_TEST_PATH has another PATH,
these tests alone have it, and all others have what a reader has.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MARKER = "needs"
SWITCH = "QNN_CI_TEST_PROGRAMS"
THEIR_PATH = "QNN_CI_TEST_PATH"

PACKAGES = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "adb": "adb",
    "ccache": "ccache",
    "chromium": "chromium",
    "clang++": "clang",
    "ld.lld": "lld",
    "mksquashfs": "squashfs-tools",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "qemu-aarch64": "qemu-user",
    "qemu-x86_64": "qemu-user",
    "readelf": "binutils",
    "shellcheck": "shellcheck",
    "squashfuse": "squashfuse",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
}
"""The Debian and Ubuntu package of each program."""


def path_of_programs() -> str:
    """Return the PATH of tests that need programs."""
    return os.environ.get(THEIR_PATH) or os.environ.get("PATH", os.defpath)


@contextmanager
def programs_on_path() -> Iterator[None]:
    """Within this context, PATH has what some tests need."""
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("PATH", path_of_programs())
        yield


def _which(name: str) -> str | None:
    """A server's program is in the folder sbin, which a user's PATH may lack, beside a bin on PATH."""
    folders = path_of_programs().split(os.pathsep)
    beside = [str(Path(folder).with_name("sbin")) for folder in folders if Path(folder).name == "bin"]
    return shutil.which(name, path=os.pathsep.join([*folders, *beside]))


def program(name: str) -> str:
    """Where it is; without it the test fails and says what to install."""
    path = _which(name)
    if path is None:
        pytest.fail(f"{name} is not on PATH: apt-get install {PACKAGES.get(name, name)}", pytrace=False)
    return path


def lacking(names: tuple[str, ...]) -> list[str]:
    """The packages of those that are not here."""
    return sorted({PACKAGES.get(name, name) for name in names if _which(name) is None})


def reasons(item: pytest.Item) -> list[str]:
    """One for each package that is not here, unless all are required."""
    if os.environ.get(SWITCH) == "required":
        return []
    names = tuple(name for mark in item.iter_markers(MARKER) for name in mark.args)
    return [f"did not run without {package}: apt-get install {package}" for package in lacking(names)]
