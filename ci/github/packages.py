"""Install packages of the job's Debian or Ubuntu that a stage needs and the runner lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from provisioning.base.commands import quoted
from provisioning.base.errors import EnvironmentLacking, UpstreamError, UsageError


def run(environ: Mapping[str, str]) -> int:
    """Read QNN_CI_PACKAGES, names separated by spaces."""
    wanted = environ.get("QNN_CI_PACKAGES", "").split()
    for name in wanted:
        if name.startswith("-"):
            raise UsageError(f"QNN_CI_PACKAGES={name}: expected the name of a package")
    lacking = [name for name in wanted if not installed(name)]
    for name in wanted:
        sys.stdout.write(f"{name}: {'to be installed' if name in lacking else 'installed'}\n")
    sys.stdout.flush()
    if lacking:
        remedy = quoted("apt-get", "install", *lacking)
        _as_root(["apt-get", "update", "--quiet"], remedy)
        _as_root(["apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *lacking], remedy)
    return 0


def installed(package: str) -> bool:
    if shutil.which("dpkg-query") is None:
        raise EnvironmentLacking("dpkg-query is not on PATH", remedy=f"install {package} yourself")
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    done = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout == "installed"


def _as_root(command: Sequence[str], remedy: str) -> None:
    # With `env`, because sudo passes on no variables.
    silent = ["env", "DEBIAN_FRONTEND=noninteractive", *command]
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            raise EnvironmentLacking(f"{command[0]} needs root, and there is no sudo", remedy=remedy)
        silent = ["sudo", "--non-interactive", *silent]
    done = subprocess.run(silent, check=False)
    if done.returncode:
        raise UpstreamError(f"{' '.join(command)} ended with exit code {done.returncode}", remedy=remedy)
