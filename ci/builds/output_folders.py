"""Folders that builds write to: nothing of the user's is lost in them, nor another build's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.errors import UsageError

if TYPE_CHECKING:
    from filelock import BaseFileLock


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


def alone_in(folder: Path, role: str) -> BaseFileLock:
    """While held, no other build has the folder in this role; one folder may have two."""
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(folder.with_name(f".{folder.name}.{role}.lock"))


def _holds(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists() or path.is_symlink()
