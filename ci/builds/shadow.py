"""The tree as CMake is shown it: links, but for the folders that the tree's own build writes into.

    <build root>/tree/executorch/ → every entry of the tree; folders on the way to the written ones are real,
                                    and those are copies

flatcc's project, for one, puts its library into its source folder: a tree that is only read would fail there,
and of two builds of one tree the second would link what the first had made for another machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ci.builds.links import LEFT_OUT, links_of, on_the_way


@dataclass(frozen=True, slots=True)
class Layout:
    """What to make, link and copy, all relative to the tree."""

    folders: tuple[str, ...]
    links: tuple[str, ...]
    copies: tuple[str, ...]


def written_in(tree: Path, written: Iterable[str]) -> tuple[str, ...]:
    """Those of the folders that this tree has."""
    return tuple(sorted(folder for folder in written if (tree / folder).is_dir()))


def layout(tree: Path, copies: Iterable[str]) -> Layout:
    copied = set(copies)
    folders = set[str]().union(*map(on_the_way, copied))
    return Layout(tuple(sorted(folders)), links_of(tree, folders, copied.__contains__), tuple(sorted(copied)))


def sync(tree: Path, copies: Iterable[str], into: Path) -> None:
    """Make it, or bring it up to date: what is as it was keeps its time, so that nothing is compiled anew."""
    wanted = layout(tree, copies)
    for folder in wanted.folders:
        (into / folder).mkdir(parents=True, exist_ok=True)
        for path in (into / folder).iterdir():
            if path.is_symlink() and str(path.relative_to(into)) not in wanted.links:
                path.unlink()
    for link in wanted.links:
        place = into / link
        if not place.is_symlink() or place.readlink() != tree / link:
            _remove(place)
            place.symlink_to(tree / link)
    for folder in wanted.copies:
        for path in _files(tree / folder):
            _copy(path, into / path.relative_to(tree))


def changed_since(tree: Path, when: float, but: Collection[Path] = ()) -> list[str]:
    """Files of the tree that were made or written after that moment, outside of the folders in `but`."""
    found = []
    for folder, folders, files in os.walk(tree):
        folders[:] = sorted(name for name in folders if name != LEFT_OUT and Path(folder, name) not in but)
        for name in sorted(files):
            path = Path(folder, name)
            if _time_of(path) > when:
                found.append(str(path.relative_to(tree)))
    return found


def _time_of(path: Path) -> float:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return 0.0
    return max(status.st_mtime, status.st_ctime)


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name == LEFT_OUT:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        else:
            yield path


def _copy(path: Path, to: Path) -> None:
    if path.is_symlink():
        if not to.is_symlink() or to.readlink() != path.readlink():
            to.parent.mkdir(parents=True, exist_ok=True)
            _remove(to)
            to.symlink_to(path.readlink())
        return
    status = path.stat()
    if to.is_file() and not to.is_symlink():
        there = to.stat()
        if (there.st_size, there.st_mtime_ns) == (status.st_size, status.st_mtime_ns):
            return
    to.parent.mkdir(parents=True, exist_ok=True)
    _remove(to)
    shutil.copy2(path, to)
    # The store's are read-only, and so would be what the build puts in their place.
    to.chmod(0o644 | (status.st_mode & 0o111))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
