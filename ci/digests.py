"""SHA-256 of files, kept with their stamps, so that only what has changed is read."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provisioning.base.files import hash_file, replace_text

Stamp = tuple[int, int, int, int]
"""Size, mtime, ctime (nanoseconds) and inode: while these are equal, the file is taken for unchanged."""

YOUNG_SECONDS = 2.0
"""A file that changed more recently than this can change again with the same stamp, so its bytes are
compared."""

MOST_DIGESTS = 50_000

READS = 5
"""How often a file is read that changes meanwhile."""

IMAGES = ("squashfs", "erofs", "iso9660", "udf", "cramfs", "romfs", "fuse")
"""File systems on which another file may have the stamp of an earlier one."""


def stamp_of(info: os.stat_result) -> Stamp:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def changed_too_recently(stamp: Stamp) -> bool:
    """Whether the stamp is too recent to be trusted; true of a stamp in the future as well."""
    return max(stamp[1], stamp[2]) / 1e9 > time.time() - YOUNG_SECONDS


def mounted_images() -> tuple[str, ...]:
    """Where file systems of IMAGES are mounted, each ending in a slash."""
    found = []
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith(IMAGES):
            folder = before.split(" ")[4].encode().decode("unicode_escape")
            found.append(f"{folder.rstrip('/')}/")
    return tuple(found)


_read_here: dict[tuple[str, Stamp], str] = {}
"""The digests of what this process has read, whatever stores it uses."""

_kept_here: dict[Path, tuple[Stamp, Mapping[str, list[Any]]]] = {}
"""What this process has read of the memories of digests, which have thousands of rows each."""


def _kept_in(path: Path) -> Mapping[str, list[Any]]:
    """The rows of a memory. It is always replaced as a whole, so that the next one has another stamp."""
    with contextlib.suppress(OSError, ValueError), path.open(encoding="utf-8") as file:
        stamp = stamp_of(os.fstat(file.fileno()))
        if path not in _kept_here or _kept_here[path][0] != stamp:
            read = json.load(file)
            rows = read.items() if isinstance(read, dict) else ()
            kept = {name: row for name, row in rows if isinstance(row, list) and len(row) == 5}
            _kept_here[path] = stamp, kept
        return _kept_here[path][1]
    return {}


class Digests:
    """SHA-256 of files. Bytes are read again only if the file's stamp differs or is too recent."""

    def __init__(self, store: Path) -> None:
        self._path = store / "cache" / "results" / "digests.json"
        self._known = dict(_kept_in(self._path))
        self._changed = False
        self._reading = threading.Lock()
        self._images = mounted_images()

    def of(self, path: str) -> tuple[str, Stamp]:
        """Raises OSError for anything that is not a readable file."""
        for _ in range(READS):
            stamp = stamp_of(os.stat(path))
            if digest := self._of(path, stamp):
                return digest, stamp
            # Two workers that end at the same time have read the same libraries.
            with self._reading:
                if digest := self._of(path, stamp) or self._read(path, stamp):
                    return digest, stamp
        raise OSError(f"{path} changed each time it was read")

    def _of(self, path: str, stamp: Stamp) -> str:
        if self._on_image(path):
            return ""
        known = self._known.get(path)
        return str(known[4]) if known and known[:4] == list(stamp) and not changed_too_recently(stamp) else ""

    def _on_image(self, path: str) -> bool:
        return bool(self._images) and os.path.realpath(path).startswith(self._images)

    def _read(self, path: str, stamp: Stamp) -> str:
        """Empty if it changed meanwhile. A hard link to it, as a backup makes one, also changes its stamp."""
        settled = not (self._on_image(path) or changed_too_recently(stamp))
        digest = (_read_here.get((path, stamp), "") if settled else "") or hash_file(Path(path))
        if stamp_of(os.stat(path)) != stamp:
            return ""
        if settled:
            _read_here[path, stamp] = digest
            # Moved to the end, as the most recently used.
            self._known.pop(path, None)
            self._known[path] = [*stamp, digest]
            self._changed = True
        return digest

    def save(self) -> None:
        if not self._changed:
            return
        newest = dict(itertools.islice(reversed(self._known.items()), MOST_DIGESTS))
        # Not being able to write only means that bytes are read again, so this is no error.
        with contextlib.suppress(OSError):
            replace_text(self._path, json.dumps(dict(reversed(newest.items()))))
            self._changed = False
