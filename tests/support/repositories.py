"""Git repositories of a few files."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path

IDENTITY = ["-c", "user.name=t", "-c", "user.email=t@localhost"]


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


def repository(root: Path, files: Mapping[str, str]) -> Path:
    """A git repository at `root` with these files committed."""
    write(root, files)
    initial = ["init", "--quiet", "--initial-branch=main"]
    for command in (initial, ["add", "--all"], [*IDENTITY, "commit", "--quiet", "-m", "x"]):
        subprocess.run(["git", *command], cwd=root, check=True, capture_output=True)
    return root
