"""Our commands as a user types them: in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from provisioning.base.settings import ROOT


def typed(
    *words: str | Path,
    package: str = "ci",
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float = 900,
) -> subprocess.CompletedProcess[str]:
    """What `python -m PACKAGE WORDS` printed, and its exit code."""
    return subprocess.run(
        [sys.executable, "-m", package, *map(str, words)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
