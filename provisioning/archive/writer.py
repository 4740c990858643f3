"""Write a plan to disk: inflate, check and hash on every core, and follow no symbolic link.

By threads, because igzip, hashlib and the system calls release the interpreter's lock: two threads take half
the time of one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from provisioning.archive.planned_files import PlannedFile, PlannedFiles, PlannedLink
from provisioning.archive.reader import Zip
from provisioning.base.disk import ANOTHER_STORE, FULL, IN_THE_WAY, disk_error
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.files import write_all

if TYPE_CHECKING:
    from provisioning.base.progress import Progress

MOST_WORKERS = 8
OPEN_DIRECTORIES = 48
DIRECTORY_MODE = 0o755
TELL_EVERY = 0.2


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that was written. `path` is relative to the tree; links have a `link` text and no hash."""

    path: str
    kind: Literal["file", "link"]
    size: int
    sha256: str
    mode: int
    link: str = ""


class Directories:
    """Opens directories below a root step by step, so that no symbolic link is ever followed.

    Not shared between threads. Keeps a few descriptors open, since files of one directory come together."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: dict[str, int] = {}

    def of(self, path: str) -> tuple[int, str]:
        """The open directory that holds `path`, and the last part of its name."""
        parent, _, name = path.rpartition("/")
        if len(self._open) > OPEN_DIRECTORIES:
            self.close()
        return self.open(parent), name

    def open(self, path: str) -> int:
        if not path:
            return self._root
        descriptor = self._open.get(path)
        if descriptor is None:
            parent, _, name = path.rpartition("/")
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = self._open[path] = os.open(name, flags, dir_fd=self.open(parent))
        return descriptor

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def unpack(
    zip_file: Zip, plan: PlannedFiles, into: Path, workers: int | None, progress: Progress, name: str
) -> list[Entry]:
    progress.start(f"unpack {name}", plan.total)
    try:
        root = os.open(into, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _Unpacking(zip_file, plan, into, root, progress).run(workers)
        finally:
            os.close(root)
    finally:
        progress.finish()


class _Unpacking:
    def __init__(self, zip_file: Zip, plan: PlannedFiles, into: Path, root: int, progress: Progress) -> None:
        self._zip = zip_file
        self._plan = plan
        self._into = into
        self._root = root
        self._progress = progress
        # The largest first, so that no core is left alone with a large one at the end.
        self._todo = deque(sorted(plan.files, key=lambda file: file.member.size, reverse=True))
        self._entries: list[Entry] = []
        self._lock = threading.Lock()
        self._untold = 0
        self._stopped = threading.Event()
        """Set when one worker has failed: the others need not go on."""

    def run(self, workers: int | None) -> list[Entry]:
        with contextlib.closing(Directories(self._root)) as directories:
            for path in self._plan.directories:
                self._make_directory(directories, path)
        self._write_files(workers or min(MOST_WORKERS, len(os.sched_getaffinity(0))))
        with contextlib.closing(Directories(self._root)) as directories:
            for link in self._plan.links:
                self._entries.append(self._make_link(directories, link))
        return sorted(self._entries, key=lambda entry: entry.path)

    def _write_files(self, workers: int) -> None:
        if not self._todo:
            return
        with ThreadPoolExecutor(min(workers, len(self._todo)), "unpack") as pool:
            working = [pool.submit(self._work) for _ in range(min(workers, len(self._todo)))]
            try:
                # Only this thread advances: a progress knows a piece of work by the thread that began it.
                while wait(working, TELL_EVERY).not_done:
                    self._tell()
                self._tell()
            finally:
                # After an interrupt the workers end before anybody removes what they write.
                self._stopped.set()
        for future in working:
            future.result()

    def _work(self) -> None:
        try:
            with contextlib.closing(Directories(self._root)) as directories:
                while not self._stopped.is_set():
                    try:
                        file = self._todo.popleft()
                    except IndexError:
                        return
                    entry = self._write_file(directories, file)
                    with self._lock:
                        self._entries.append(entry)
        except BaseException:
            self._stopped.set()
            raise

    def _write_file(self, directories: Directories, file: PlannedFile) -> Entry:
        digest = hashlib.sha256()
        try:
            directory, name = directories.of(file.to)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            out = os.open(name, flags, file.mode, dir_fd=directory)
            try:
                for block in self._zip.blocks(file.member, file.start):
                    write_all(out, block)
                    digest.update(block)
                    with self._lock:
                        self._untold += len(block)
                    if self._stopped.is_set():
                        break
                os.fchmod(out, file.mode)
            finally:
                os.close(out)
        except OSError as error:
            raise self._cannot_write(file.to, error) from error
        return Entry(file.to, "file", file.member.size, digest.hexdigest(), file.mode)

    def _make_directory(self, directories: Directories, path: str) -> None:
        try:
            parent, name = directories.of(path)
            # An earlier archive may have made it; opening it shows whether it is a directory.
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, DIRECTORY_MODE, dir_fd=parent)
            os.fchmod(directories.open(path), DIRECTORY_MODE)
        except OSError as error:
            raise self._cannot_write(path, error) from error

    def _make_link(self, directories: Directories, link: PlannedLink) -> Entry:
        try:
            directory, name = directories.of(link.to)
            os.symlink(link.target, name, dir_fd=directory)
        except OSError as error:
            raise self._cannot_write(link.to, error) from error
        return Entry(link.to, "link", len(link.target.encode()), "", 0o777, link.target)

    def _tell(self) -> None:
        with self._lock:
            count, self._untold = self._untold, 0
        if count:
            self._progress.advance(count)

    def _cannot_write(self, path: str, error: OSError) -> Exception:
        if error.errno in (*IN_THE_WAY, errno.ELOOP):
            return self._zip.error(path, f"nothing in its way in {self._into}", error.strerror or str(error))
        full = error.errno in FULL
        where = self._into if full else self._into / path
        other = EnvironmentLacking(f"{where}: {error.strerror or error}", fix=ANOTHER_STORE)
        return disk_error(error, ANOTHER_STORE, where, self._plan.total) or other
