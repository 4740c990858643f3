"""A folder with every distribution of a locked environment, for a Python and system other than this one.

The user's own pip fetches them, so that index, find-links, credentials, proxies and certificates mean what
they mean everywhere else, and whoever installs from the folder needs none of them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.image.sealed import is_sealed, seal, unseal
from provisioning.base.commands import captured, session
from provisioning.base.errors import EnvironmentLacking, UpstreamError
from provisioning.lock_files import CPU, cpu_wheel
from provisioning.python_environments import TORCH

LEGACY_PLATFORMS = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64")
OLDEST_GLIBC = 5
"""The first minor version of glibc that manylinux supports."""
LOCK = "lock.txt"


@dataclass(frozen=True, slots=True)
class WheelTarget:
    """What the distributions must run on: `python` and `glibc` as in "3.11" and "2.36"."""

    python: str
    glibc: str

    @property
    def flags(self) -> list[str]:
        minor = int(self.glibc.split(".")[1])
        platforms = [f"manylinux_2_{version}_x86_64" for version in range(minor, OLDEST_GLIBC - 1, -1)]
        tag = f"cp{self.python.replace('.', '')}"
        flags = ["--python-version", self.python, "--implementation", "cp"]
        for abi in (tag, "abi3", "none"):
            flags += ["--abi", abi]
        for platform in (*platforms, *LEGACY_PLATFORMS):
            flags += ["--platform", platform]
        return flags


def fill(lock: Path, into: Path, wanted: WheelTarget, torch: Path = TORCH) -> bool:
    """Fill `into` with the distributions of a lock file, and with that; returns whether it had to fetch.

    `torch` is the folder with the builds of torch that are on record."""
    text = lock.read_text(encoding="utf-8")
    request = f"{wanted}\n{text}"
    if is_sealed(into, request):
        return False
    unseal(into)
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    _download(["--require-hashes", "-r", str(lock)], into, wanted)
    if any(line.startswith("# torch: ") for line in text.splitlines()):
        _fetch_torch(into, wanted, torch / CPU)
    (into / LOCK).write_text(text, encoding="utf-8")
    seal(into, request)
    return True


def _fetch_torch(into: Path, wanted: WheelTarget, recorded: Path) -> None:
    try:
        _download(["--require-hashes", "-r", str(recorded)], into, wanted)
    except UpstreamError as error:
        # pip does not know PyTorch's own index, and uv does.
        if wheel := cpu_wheel(f"cp{wanted.python.replace('.', '')}", recorded):
            _download([wheel], into, wanted)
            return
        raise EnvironmentLacking(
            f"the package index has no CPU build of torch that is on record: {error.message}",
            fix="name an index that has it (PIP_EXTRA_INDEX_URL=URL), or record your index's build: "
            + session("lock", "--torch"),
        ) from error


def _download(what: Sequence[str], into: Path, wanted: WheelTarget) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into)]
    environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = captured([*command, *wanted.flags, *what], env=environ)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr]
        raise UpstreamError(
            f"pip could not fetch {what[-1]}: {errors[-1].strip()}",
            fix="check the package index that pip is set to: python -m pip config list",
        )
