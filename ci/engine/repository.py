"""The root of the user's files: names of files are relative to it, so clones share results."""

from __future__ import annotations

from pathlib import Path


def repository_of(suite: Path) -> Path:
    """The nearest folder around the suite with a `.git`, or the suite's own."""
    folder = suite.absolute().parent
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), folder)
