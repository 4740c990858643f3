"""Folders that a user names and that a build empties in part: only where nothing of the user's is lost."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from provisioning.errors import UsageError


def refuse_foreign(folder: Path, mark: str, flag: str, ours: Iterable[str] | None = None) -> None:
    """Raises UsageError where `folder` holds something (by a name in `ours`), and not the file of a build."""
    if ours is None:
        ours = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ()
    taken = [name for name in ours if _holds(folder / name)]
    if taken and not (folder / mark).is_file():
        raise UsageError(
            f"{folder} holds {taken[0]} of something else, which a build would remove",
            remedy=f"name an empty or new folder with {flag}",
        )


def _holds(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists() or path.is_symlink()
