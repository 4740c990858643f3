"""Run uv or pip to install packages, and name the cause where an installer's output shows one: the disk is
full, the network cannot be reached, a proxy is dead.

Environments that are made from lock files (`python_environments`) and what resolves lock files (`lock_files`)
install through these functions."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from provisioning import pip_settings
from provisioning.base.commands import capture
from provisioning.base.errors import EnvironmentLacking, UpstreamError
from provisioning.base.proxies import dead_proxy

NO_ROOM = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
NO_NETWORK = re.compile(
    r"error sending request|dns error|failed to lookup address|name resolution|connection refused"
    r"|network is unreachable|connect error|timed out|max retries exceeded|the network was disabled",
    re.IGNORECASE,
)
ANOTHER_DISK = "free some space, or choose another disk: XDG_CACHE_HOME, and UV_CACHE_DIR for uv's own cache"


def uv_program() -> str | None:
    """The user's own uv, else the one that was installed together with us."""
    own = Path(sys.executable).with_name("uv")
    return shutil.which("uv") or (str(own) if own.is_file() else None)


def installer_command(python: Path, uv: str | None) -> list[str]:
    if uv is None:
        return [str(python), "-m", "pip", "install", "--quiet"]
    # pip always does. A Python that writes none as it imports would compile torch at each start.
    bytecode = ["--compile-bytecode"] if sys.dont_write_bytecode else []
    flags = [*pip_settings.uv_flags(os.environ), *bytecode]
    return [uv, "pip", "install", "--quiet", *flags, "--python", str(python)]


def installer_variables() -> dict[str, str]:
    own = pip_settings.uv_config_variables(os.environ)
    return {**os.environ, **pip_settings.uv_variables(os.environ), **own}


def run_installer(command: list[str], folder: Path) -> None:
    code, output = try_installer(command)
    if not code:
        return
    raise_known_cause(output, folder)
    raise EnvironmentLacking(
        f"{Path(command[0]).name} ended with exit code {code}, so the environment is not complete:"
        f"\n{output.strip()}",
        fix="correct that, then type the command again",
    )


def try_installer(command: list[str]) -> tuple[int, str]:
    """Run an installer; returns the exit code and all that it printed."""
    process = capture(command, env=installer_variables())
    return process.returncode, process.stdout + process.stderr


def require_room(folder: Path, megabytes: int) -> None:
    free = shutil.disk_usage(folder).free >> 20
    if free < megabytes:
        raise EnvironmentLacking(
            f"{folder}: {megabytes:,} MB are needed for the packages, and {free:,} MB are free",
            fix=ANOTHER_DISK,
        )


def raise_known_cause(output: str, folder: Path) -> None:
    """Raise the error where an installer failed of the disk or of the network: no other build would help."""
    if NO_ROOM.search(output):
        # The one of least room is full: uv's cache may lie on another disk.
        rooms = {
            place: shutil.disk_usage(place).free >> 20 for place in (folder, _uv_cache()) if place.is_dir()
        }
        full = min(rooms, key=rooms.__getitem__)
        message = f"{full}: no space left on device ({rooms[full]:,} MB free)"
        raise EnvironmentLacking(message, fix=ANOTHER_DISK)
    if name := dead_proxy(output):
        raise UpstreamError(
            f"the proxy that {name} names does not answer", fix=f"correct {name}, or unset it: unset {name}"
        )
    if NO_NETWORK.search(output):
        *_, line = (line.strip() for line in output.splitlines() if NO_NETWORK.search(line))
        cause = re.sub(r"^(caused by|cause|hint): ", "", line, flags=re.IGNORECASE)
        raise UpstreamError(
            f"the package index cannot be reached: {cause}",
            fix="check the network, or name an index that can be reached (PIP_INDEX_URL or UV_DEFAULT_INDEX),"
            " then type the command again",
        )


def _uv_cache() -> Path:
    """Return the folder in which uv keeps what it downloads."""
    if folder := os.environ.get("UV_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "uv")


def is_other_build(output: str) -> bool:
    return re.search("hash mismatch|do not match the hashes", output, re.IGNORECASE) is not None
