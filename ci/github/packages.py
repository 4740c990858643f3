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
    install = ["install", "--quiet", "--yes", "--no-install-recommends", *lacking]
    for arguments in (["update", "--quiet"], install) if lacking else ():
        command = as_root(["apt-get", *arguments], {"DEBIAN_FRONTEND": "noninteractive"})
        if code := subprocess.run(command, check=False).returncode:
            raise UpstreamError(
                f"apt-get {' '.join(arguments)} ended with exit code {code}",
                fix=quoted("apt-get", "install", *lacking),
            )
    return 0


def installed(package: str) -> bool:
    if shutil.which("dpkg-query") is None:
        raise EnvironmentLacking("dpkg-query is not on PATH", fix=f"install {package} yourself")
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    done = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout == "installed"


def as_root(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The command for root, with these variables: sudo passes on none."""
    with_variables = ["env", *(f"{name}={value}" for name, value in environ.items()), *command]
    if os.geteuid() == 0:
        return with_variables
    if shutil.which("sudo") is None:
        raise EnvironmentLacking(
            f"{command[0]} needs root here, and there is no sudo",
            fix="run the job as root, in a container",
        )
    return ["sudo", "--non-interactive", *with_variables]
