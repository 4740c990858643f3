"""The root of the user's files: names of files are relative to it, so clones share results."""

from __future__ import annotations

import os
from pathlib import Path


def repository_of(suite: Path) -> Path:
    """The nearest folder around the suite with a `.git`, or the suite's own."""
    folder = suite.absolute().parent
    around = (folder, *folder.parents)
    # Each command of git writes to its folder: `access` asks for no times, which would be inputs of the work.
    return next((parent for parent in around if os.access(parent / ".git", os.F_OK)), folder)
