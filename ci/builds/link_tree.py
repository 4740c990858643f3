"""Shows an ExecuTorch tree in another folder by links, so that nothing is ever written into the tree itself.

CMake gets such a folder, with copies of the folders that its own build writes into: flatcc's project puts its
library into its source folder, which fails in a read-only tree, and the next target would link it.

Python gets one too: an overlay with our adaptors and schemas, and PYTHONPATH names the folder above its
executorch/. It must show the whole tree, because otherwise an installed wheel would hide the folders without
an __init__.py.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from ci.builds.tree import OWN_NAME, SourceTree
from provisioning.overlay import REPOSITORY, BuiltFrom, describe

ADAPTORS = "Py*.so"
STALE = (ADAPTORS, "*.fbs")
"""Files that an earlier build may have left in the tree. An overlay takes only our own."""
VERSION = "version.py"


def link_with_copies(tree: Path, copies: Collection[str], into: Path, folders: Collection[str] = ()) -> None:
    """Update `into`: links to the tree, and copies of some folders. Unchanged files keep their time.

    `folders` are made and not linked, with their parents: `..` in a path through them stays in `into`."""
    own_folders = _with_parents([*copies, *folders]) - set(copies)
    _link(tree, into, own_folders, lambda place: place in copies)
    for folder in copies:
        for path in _files(tree / folder):
            _copy(path, into / path.relative_to(tree))


def make_overlay(tree: SourceTree, files: Mapping[str, Path], into: Path, profile: str) -> None:
    """`files`: place in the tree → the file to copy there, also instead of one of the tree."""
    part = into.with_name(f".{into.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    parents = {str(PurePosixPath(place).parent) for place in files}
    folders = _with_parents(parents)
    ours = {*files, VERSION}
    _link(tree.root, part / OWN_NAME, folders, lambda place: place in ours or _is_stale(place, parents))
    for folder in folders - {"."}:
        if not (tree.root / folder / "__init__.py").is_file():
            (part / OWN_NAME / folder / "__init__.py").touch()
    for place, path in files.items():
        shutil.copy(path, part / OWN_NAME / place)
    # As ExecuTorch's setup.py does: else Python would find the version of an installed wheel.
    local = ".".join(filter(None, [tree.commit[:7], "changed" if tree.changed else ""]))
    version = "+".join(filter(None, [tree.version, local]))
    stated = f"__version__ = {version!r}\ngit_version = {tree.commit!r}\n"
    (part / OWN_NAME / VERSION).write_text(stated, encoding="utf-8")
    metadata = part / f"{OWN_NAME}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {OWN_NAME}\nVersion: {version}\n", encoding="utf-8")
    describe(part, BuiltFrom(tree.root, profile, tree.state))
    shutil.rmtree(into, ignore_errors=True)
    part.replace(into)


def install(tree: Path, files: Mapping[str, Path]) -> None:
    """Copy into the tree itself, and remove adaptors of earlier builds."""
    for folder in {(tree / place).parent for place in files}:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(ADAPTORS):
            path.unlink()
    for place, path in files.items():
        shutil.copy(path, tree / place)


def changed_since(tree: Path, when: float, but: Collection[Path] = ()) -> list[str]:
    """Files of the tree that were created or written after that moment, except in the folders in `but`."""
    changed = []
    for folder, folders, files in os.walk(tree):
        folders[:] = sorted(name for name in folders if name != REPOSITORY and Path(folder, name) not in but)
        for name in sorted(files):
            path = Path(folder, name)
            if _time_of(path) > when:
                changed.append(str(path.relative_to(tree)))
    return changed


def _link(tree: Path, into: Path, folders: Iterable[str], without: Callable[[str], bool]) -> None:
    """Create these folders, and link everything else that they contain in the tree."""
    for folder in sorted(folders):
        (into / folder).mkdir(parents=True, exist_ok=True)
        there = (tree / folder).iterdir() if (tree / folder).is_dir() else ()
        places = {str(path.relative_to(tree)) for path in there if path.name != REPOSITORY}
        wanted = {place for place in places if place not in folders and not without(place)}
        for path in (into / folder).iterdir():
            if path.is_symlink() and str(path.relative_to(into)) not in wanted:
                path.unlink()
        for place in wanted:
            link = into / place
            if not link.is_symlink() or link.readlink() != tree / place:
                _remove(link)
                link.symlink_to(tree / place)


def _with_parents(folders: Iterable[str]) -> set[str]:
    """These folders and all their parents; `.` is the tree."""
    return {".", *folders}.union(*(map(str, PurePosixPath(folder).parents) for folder in folders))


def _is_stale(place: str, parents: Collection[str]) -> bool:
    path = PurePosixPath(place)
    return str(path.parent) in parents and any(fnmatch.fnmatch(path.name, pattern) for pattern in STALE)


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name == REPOSITORY:
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
    # Files of the store are read-only, but the build replaces some of them.
    to.chmod(0o644 | (status.st_mode & 0o111))


def _time_of(path: Path) -> float:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return 0.0
    return max(status.st_mtime, status.st_ctime)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
