"""The libraries of a tree, and what each says of itself.

Nothing is remembered between runs: reading the 31 libraries (422 MB) of a tree takes 0.4 s, and a record that
is out of date would be a wrong verdict.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from provisioning import elf as elves
from provisioning import pe
from provisioning.base.commands import quoted
from provisioning.build_id import build_ids, build_pieces
from provisioning.elf import LINKER_SCRIPT, NotElf
from provisioning.validation import tables
from provisioning.validation.context import Library

LIBRARY = re.compile(r".+\.so(?:\.\d[\w.]*)?|.+\.dll")


def read(path: Path, place: str) -> Library:
    try:
        dll = pe.read(path) if path.suffix == pe.SUFFIX else None
        elf = elves.read(path) if dll is None else None
        ids = build_ids(path)
        return Library(
            path, place, elf, build_ids=ids, build_pieces=() if ids else _pieces(path, dll), pe=dll
        )
    except (NotElf, pe.BrokenPe) as error:
        return Library(path, place, None, error.reason)
    except OSError as error:
        if path.is_symlink() and not path.exists():
            return Library(path, place, None, f"a link to {path.readlink()}, which is not there")
        return _not_read(path, place, error)


def _pieces(path: Path, dll: pe.Pe | None) -> tuple[str, ...]:
    """Of QNN's own libraries only: others have versions and dates of their own."""
    if not re.fullmatch(tables.libraries().own, path.name):
        return ()
    version = ".".join(dll.version.split(".")[:3]) if dll else ""
    return build_pieces(path) or tuple(filter(None, [version]))


def libraries(root: Path, read: Callable[[Path, str], Library] = read) -> list[Library]:
    """Every shared library below `root`, without linker scripts and without links to others of the tree.

    A folder that cannot be read stands for the libraries in it.
    """
    errors: list[OSError] = []
    candidates = [read(path, place) for path, place in _candidates(root, errors.append)]
    for error in errors:
        folder = Path(error.filename)
        candidates.append(_not_read(folder, folder.relative_to(root).as_posix(), error))
    return sorted(
        (library for library in candidates if library.unreadable != LINKER_SCRIPT), key=lambda f: f.place
    )


def _not_read(path: Path, place: str, error: OSError) -> Library:
    fix = quoted("chmod", "-R", "u+rX", path) if isinstance(error, PermissionError) else ""
    return Library(path, place, None, f"cannot be read: {error.strerror or error}", fix=fix)


def _candidates(root: Path, onerror: Callable[[OSError], None]) -> Iterator[tuple[Path, str]]:
    inside = os.path.realpath(root)
    walked: set[str] = set()
    for directory, directories, names in os.walk(root, onerror=onerror, followlinks=True):
        # A link to a directory may repeat a part of the tree, form a circle, or lead to a directory that
        # contains the tree.
        real = os.path.realpath(directory)
        if real in walked or (real != inside and _within(inside, real)):
            directories.clear()
            continue
        walked.add(real)
        directories.sort()
        for name in sorted(names):
            if not LIBRARY.fullmatch(name):
                continue
            path = Path(directory, name)
            if path.is_symlink() and path.exists() and _within(os.path.realpath(path), inside):
                continue
            yield path, path.relative_to(root).as_posix()


def _within(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory
