"""The run of a verb of the laboratory, which becomes a report as that of any stage does, and a command whose
output is kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from provisioning.base.commands import session
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun


def stage_run(name: str, selection: Selection) -> StageRun:
    """With the words that were typed."""
    return StageRun(name, selection.profile, selection.target, session("lab", *sys.argv[1:]))


def logged(
    command: Sequence[str | Path],
    log: Path,
    environ: Mapping[str, str] | None = None,
    subject: object = "",
    *,
    timeout: float | None = None,
    cwd: Path | None = None,
) -> int:
    """Run a command with its output in a log; returns its exit code. Too long is a lack of the machine."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command, stdout=output, stderr=output, env=environ, timeout=timeout, cwd=cwd, check=False
            )
        except subprocess.TimeoutExpired as error:
            message, fix = f"{subject}: no answer after {timeout:g} s", f"read {log}; --timeout gives more"
            raise EnvironmentLacking(message, fix=fix) from error
    return done.returncode
