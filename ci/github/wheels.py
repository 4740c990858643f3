"""The locked packages of a stage, as wheels that travel between runs by GitHub's cache.

uv's own cache does not travel: it has packages unpacked, and nobody compares those with a hash again. A wheel
is installed by the hash that the lock file has (provisioning/python_environments.py), whoever saved it.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from ci.github.caches import NotBelieved, newest
from ci.github.files import export, set_outputs
from ci.github.place import run_of
from provisioning import pip_settings
from provisioning.base.commands import captured, session
from provisioning.base.errors import UsageError
from provisioning.base.files import hash_file
from provisioning.base.foreign import visible
from provisioning.lock_files import LOCKS, cpu_wheel, lock_path
from provisioning.python_environments import KEPT_WHEELS, TORCH

SCHEMA = 1
"""Raise it when older wheels are of no use."""


def place(environ: Mapping[str, str]) -> dict[str, str]:
    """Tell later steps the folder, and GitHub's cache the keys, with a hash of the environment's lock.

    All are empty where the runner has a cache of its own."""
    environment, temp = _environment(environ), environ.get("RUNNER_TEMP")
    if not environment or not temp or environ.get("UV_CACHE_DIR"):
        return {"wheels": "", "wheels-restore": "", "wheels-save": ""}
    folder = str(Path(temp, "qnn-ci-wheels"))
    export({KEPT_WHEELS: folder}, environ)
    machine = f"{platform.machine()}-{'.'.join(map(str, sys.version_info[:2]))}"
    prefix = f"qnn-ci-wheels-{SCHEMA}-{machine}-{environment}-{hash_file(lock_path(environment))[:32]}-"
    # A key is written once. With the run in it, the default branch can save again what was refused.
    outputs = {"wheels": folder, "wheels-restore": "", "wheels-save": prefix + run_of(environ)}
    try:
        return {**outputs, "wheels-restore": newest(prefix, environ)}
    except NotBelieved as why:
        sys.stdout.write(f"no wheels are taken from GitHub's cache: {why}\n")
        return {**outputs, "wheels-save": ""}


def run(environ: Mapping[str, str], locks: Path = LOCKS) -> int:
    """Download into QNN_CI_WHEELS what the stage QNN_CI_STAGE needs, unless it is there and was installed.

    Nothing is missing where that cannot be had: the next run asks the index, as this one did."""
    environment, top = _environment(environ), environ.get(KEPT_WHEELS, "")
    if not environment or not top:
        raise UsageError(f"{KEPT_WHEELS} or QNN_CI_STAGE is not set", fix=session("github", "results"))
    folder = Path(top, environment)
    new = not any(folder.glob("*.whl")) and _download(locks / f"{environment}.txt", folder, environ)
    set_outputs({"new": str(new).lower()}, environ)
    return 0


def _environment(environ: Mapping[str, str]) -> str:
    """Of the stage; empty if it is none of ours."""
    from ci.__main__ import VERBS

    verb = VERBS.get(environ.get("QNN_CI_STAGE", ""))
    return verb.environment if verb else ""


def _download(lock: Path, folder: Path, environ: Mapping[str, str]) -> bool:
    if not _fetched(["-r", str(lock)], folder, environ):
        return False
    if "\n# torch: " in lock.read_text(encoding="utf-8"):
        cpu = TORCH / "cpu.txt"
        python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        # As in an environment: of the user's index, else PyTorch's. Without it, each run asks them.
        if not _fetched(["-r", str(cpu)], folder, environ) and (url := cpu_wheel(python, cpu)):
            _fetched([f"torch @ {url}"], folder, environ)
    for file in folder.iterdir():
        if file.suffix != ".whl":  # the index has only its source, which is built where it is installed
            file.unlink()
    sys.stdout.write(f"{len(list(folder.iterdir()))} wheels of the environment {lock.stem}\n")
    return True


def _fetched(wanted: list[str], folder: Path, environ: Mapping[str, str]) -> bool:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    done = captured(
        [*command, "--dest", str(folder), *wanted], env={**environ, **pip_settings.pip_variables(environ)}
    )
    sys.stdout.write(visible(done.stdout + done.stderr))
    return done.returncode == 0
