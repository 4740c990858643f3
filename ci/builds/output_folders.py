"""The folders that builds write to. Nothing of the user's or of another build's is lost there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.errors import UsageError
from provisioning.base.files import hash_file
from provisioning.dist import MANIFEST

if TYPE_CHECKING:
    from filelock import BaseFileLock

LICENCES = "licences"
BILL_OF_MATERIALS = "sbom.cdx.json"
OURS = ("bin", "lib", "python", LICENCES, BILL_OF_MATERIALS, MANIFEST)
"""The files and folders of a build below dist/<target>/."""


def refuse_foreign(folder: Path, mark: str, flag: str, ours: Iterable[str] | None = None) -> None:
    """Raise UsageError if `folder` contains something (one of `ours`) but not `mark`, a build's file."""
    if ours is None:
        ours = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ()
    taken = [name for name in ours if _holds(folder / name)]
    if taken and not (folder / mark).is_file():
        raise UsageError(
            f"{folder} holds {taken[0]} of something else, which a build would remove",
            fix=f"name an empty or new folder with {flag}",
        )


def require_writable(folder: Path, flag: str) -> None:
    """Before an hour of compiling: the folder can be made and written to."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise UsageError(
            f"{there}: expected a folder for {flag}, found a file", fix=f"name a folder with {flag}"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"{there} cannot be written to", fix=f"name another folder with {flag}")


def alone_in(folder: Path, role: str) -> BaseFileLock:
    """A mutex: while it is held, no other build uses the folder for this purpose. A folder may serve two
    purposes."""
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(folder.with_name(f".{folder.name}.{role}.lock"))


@contextmanager
def part_of(dist: Path) -> Iterator[Path]:
    """A folder to prepare a build in, beside `dist` and under its mutex. Leftovers of a killed build are
    removed."""
    part = dist.with_name(f".{dist.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def replace_build(part: Path, dist: Path) -> None:
    """Replace the last build, of whichever stage.

    The manifest is removed first and written last. Each file is replaced in one step, so a running program
    keeps the files that it has open."""
    (dist / MANIFEST).unlink(missing_ok=True)
    places = sorted(path.relative_to(part) for path in part.rglob("*") if path.is_file())
    for place in sorted(places, key=lambda path: path.name == MANIFEST):
        (dist / place).parent.mkdir(parents=True, exist_ok=True)
        (part / place).replace(dist / place)
    for name in OURS:
        _remove_others(dist / name, {dist / place for place in places})


def digests_below(dist: Path, folders: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of the files in some folders of dist/, by path."""
    return {
        str(path.relative_to(dist)): hash_file(path)
        for folder in folders
        for path in sorted((dist / folder).glob("*"))
        if path.is_file()
    }


def _remove_others(path: Path, wanted: set[Path]) -> None:
    """Remove files below `path` that are not in `wanted`, and folders that become empty."""
    if path.is_dir() and not path.is_symlink():
        for entry in path.iterdir():
            _remove_others(entry, wanted)
        if not any(path.iterdir()):
            path.rmdir()
    elif path not in wanted:
        path.unlink(missing_ok=True)


def _holds(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists() or path.is_symlink()
