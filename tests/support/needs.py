"""Programs that some tests use for real, and that a machine may lack.

Tests marked `needs(...)` are left out where one is missing; the run's summary counts them for each package.
With QNN_CI_TEST_PROGRAMS=required they run all the same, and fail.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter

import pytest

MARKER = "needs"
SWITCH = "QNN_CI_TEST_PROGRAMS"
LEFT_OUT = pytest.StashKey[dict[str, str]]()

PACKAGES = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "adb": "adb",
    "chromium": "chromium",
    "clang++": "clang",
    "ld.lld": "lld",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "qemu-aarch64": "qemu-user",
    "readelf": "binutils",
    "shellcheck": "shellcheck",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
}
"""The Debian and Ubuntu package of each."""

SEARCHED = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))


def program(name: str) -> str:
    """Where it is; without it the test fails and says what to install."""
    found = shutil.which(name, path=SEARCHED)
    if found is None:
        pytest.fail(f"{name} is not on PATH: apt-get install {PACKAGES[name]}", pytrace=False)
    return found


def lacking(names: tuple[str, ...]) -> list[str]:
    """The packages of those that are not here."""
    return sorted({PACKAGES[name] for name in names if shutil.which(name, path=SEARCHED) is None})


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs a program that is not here, unless all are required."""
    if os.environ.get(SWITCH) == "required":
        return
    left_out: dict[str, str] = {}
    gone: list[pytest.Item] = []
    for item in items:
        named = tuple(name for mark in item.iter_markers(MARKER) for name in mark.args)
        if packages := lacking(named):
            left_out[item.nodeid] = " ".join(packages)
            gone.append(item)
    if gone:
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=gone)
        config.stash[LEFT_OUT] = left_out


def tell(config: pytest.Config, reporter: pytest.TerminalReporter) -> None:
    left_out = config.stash.get(LEFT_OUT, {})
    if left_out:
        reporter.section("programs that are not here")
    for package, count in sorted(Counter(" ".join(left_out.values()).split()).items()):
        checks = "check" if count == 1 else "checks"
        reporter.line(f"{count} {checks} did not run without {package}: apt-get install {package}")
