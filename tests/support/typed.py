"""Our commands as a user types them: in a process of their own, or here."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def parsed(verb: Any, *words: object) -> argparse.Namespace:
    """The arguments of a verb's module, as its own command line reads these words."""
    parser = argparse.ArgumentParser()
    verb.configure(parser)
    return parser.parse_args([str(word) for word in words])


def run_here(verb: Any, *words: object) -> int:
    """The exit code of a verb's module, run in this process."""
    code: int = verb.run(parsed(verb, *words))
    return code
