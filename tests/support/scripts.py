"""Small programs that stand in for real ones."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from provisioning.base.settings import MANIFESTS


def script(path: Path, text: str, interpreter: str = "/bin/sh") -> Path:
    """A program at this path, in a folder that need not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def locked_environment(folder: Path, name: str, program: str = "", interpreter: str = "/bin/sh") -> Path:
    """An environment of a session that is there already, as in an image: by default it is this Python."""
    python = script(folder / name / "bin" / "python", program or f'exec "{sys.executable}" "$@"', interpreter)
    shutil.copyfile(MANIFESTS / "locks" / f"{name}.txt", folder / name / "lock.txt")
    return python
