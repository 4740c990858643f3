"""SHA-256 of files, kept with their stamps, so that only what has changed is read; and of what is installed
in this interpreter, which is part of every key, by what installers recorded of it.

A distribution counts by its name, its version and its RECORD. A file is read only if it may differ from
its row: another size, or changed after the RECORD was written. Files that no RECORD names count by their
bytes."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import itertools
import json
import marshal
import os
import site
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
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


OF_INSTALLERS = (
    *("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"),
    "RECORD.jws",
)
"""Files of a .dist-info that say how it was installed; they have paths of this machine."""
STARTED = (".pth", "sitecustomize.py", "usercustomize.py")
"""Files that Python runs when it starts: they count by their bytes, recorded or not."""


@dataclass(frozen=True)
class Sweep:
    """The content of one folder, and when it was looked at."""

    distributions: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    """The digests of files that are not as a RECORD says, by path."""
    started: tuple[str, ...] = ()
    time: int = 0


def stamp_of_installed(info: os.stat_result) -> Stamp:
    """Without its ctime if it has several names: an installer links the files of its cache into each
    environment that it makes, which sets that for all of them. An edit of such a file is not seen if its size
    stays and its time is put back."""
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns if info.st_nlink == 1 else 0, info.st_ino


def site_folders(packages: Path | str | None = None) -> tuple[str, ...]:
    """Where this interpreter has its distributions; those of `packages`, an environment beside it, first."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    own = sorted(map(str, Path(packages).glob("lib/python*/site-packages"))) if packages else []
    return tuple(folder for folder in (*own, *site.getsitepackages(), *user) if Path(folder).is_dir())


def installed(
    folders: tuple[str, ...], search: list[str], store: Path | None, named: Callable[[str], str]
) -> dict[str, str]:
    """What every key has of these folders of distributions, and of the folders of PYTHONPATH.

    `named` gives a text a name for each root, since files that Python starts name places."""
    found: dict[str, str] = {}
    others: list[list[str]] = []
    for number, folder in enumerate(folders):
        sweep = swept(folder, store)
        found |= {name: version for name, version in sweep.distributions.items() if name not in found}
        others += [[str(number), *row] for row in sweep.others.items()]
        others += [[str(number), name, _text(Path(folder, name), named)] for name in sweep.started]
    for number, folder in enumerate(search):
        for name in STARTED[1:]:
            if (path := Path(folder, name)).exists():
                others.append([f"PYTHONPATH {number}", name, _text(path, named)])
    # No distribution has this name.
    return {**found, "(files)": _digest(json.dumps(sorted(others)))}


@cache
def swept(folder: str, store: Path | None) -> Sweep:
    """Once in a process; from the store if no file's stamp has changed."""
    stamps, began = stamps_of(folder)
    name = _digest(folder)
    kept = store / "cache" / "results" / "installed" / name[:2] / f"{name}.json" if store else None
    if kept:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(kept.read_text(encoding="utf-8"))
            if known["stamps"] == stamps:
                os.utime(kept)
                return Sweep(known["distributions"], known["others"], tuple(known["started"]), began)
    files = files_in(folder)
    sweep = files.sweep
    if kept:
        document = {"stamps": files.digest, "distributions": sweep.distributions, "others": sweep.others}
        with contextlib.suppress(OSError):
            replace_text(kept, json.dumps({**document, "started": sweep.started}))
    return sweep


@dataclass(frozen=True)
class FolderFiles:
    """Every file below a folder without bytecode, with its stamp, and the digest of all of that."""

    folder: str
    stamps: Mapping[str, Stamp]
    digest: str
    time: int
    """When the stamps were about to be read."""

    @cached_property
    def sweep(self) -> Sweep:
        folder, files = self.folder, self.stamps
        distributions, others, recorded = {}, {}, set()
        for record in (name for name in files if name.endswith(".dist-info/RECORD") and name.count("/") == 1):
            written, rows = files[record][2] or files[record][1], []
            for name, algorithm, digest, size in _rows(f"{folder}/{record}"):
                recorded.add(name)
                if name.endswith(STARTED) or name.rpartition("/")[2] in OF_INSTALLERS:
                    continue
                rows.append(f"{name} {algorithm} {digest}")
                stat = files.get(name)
                if stat is None:
                    others[name] = "absent"
                elif (size and stat[0] != int(size)) or max(stat[1], stat[2]) > written:
                    found = hash_file(Path(folder, name))
                    if algorithm != "sha256" or _as_in_records(found) != digest:
                        others[name] = found
            title, _, version = record.partition(".dist-info")[0].rpartition("-")
            distributions[title.lower().replace("_", "-")] = (
                f"{version} {_digest(chr(10).join(sorted(rows)))[:12]}"
            )
        for name in files.keys() - recorded:
            if not name.endswith((*STARTED, ".pyc")) and name.rpartition("/")[2] not in OF_INSTALLERS:
                with contextlib.suppress(OSError):
                    others[name] = hash_file(Path(folder, name))
        started = tuple(sorted(name for name in files if "/" not in name and name.endswith(STARTED)))
        return Sweep(distributions, others, started, self.time)


class Ahead:
    """Computes something in a process of its own while this one goes on, for example with its imports.

    Begins at once. Where no process can be forked, nothing is computed: threads may hold locks, which a
    fork would wait for."""

    def __init__(self, compute: Callable[[], str]) -> None:
        self._process = 0
        if threading.active_count() > 1:
            return
        self._receive, send = os.pipe()
        with contextlib.suppress(OSError):
            self._process = os.fork()
            if not self._process:
                with contextlib.suppress(BaseException):
                    os.write(send, compute().encode())
                os._exit(0)
        os.close(send)
        if not self._process:
            os.close(self._receive)

    def result(self) -> str:
        """What it computed, which is given once; empty if that failed."""
        if not self._process:
            return ""
        with os.fdopen(self._receive) as stream:
            text = stream.read()
        os.waitpid(self._process, 0)
        self._process = 0
        return text


_ahead: dict[str, Ahead] = {}


def look_ahead() -> None:
    """Let processes of their own look at this interpreter's folders while this one imports."""
    for folder in site_folders():
        if folder in _ahead:
            # Of an earlier command in this process: files may have changed since.
            _ahead[folder].result()
        _ahead[folder] = Ahead(partial(_state_of, folder))


@cache
def stamps_of(folder: str) -> tuple[str, int]:
    """The digest of the stamps below a folder, and when they were about to be read. Once in a process."""
    text = _ahead.pop(folder).result() if folder in _ahead else ""
    digest, began = (text or _state_of(folder)).split()
    return digest, int(began)


def _state_of(folder: str) -> str:
    files = files_in(folder)
    return f"{files.digest} {files.time}"


@cache
def files_in(folder: str) -> FolderFiles:
    """Once in a process, whatever stores it uses."""
    began = time.time_ns()
    files: dict[str, Stamp] = {}
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        with contextlib.suppress(OSError):
            # By its number: the system looks up a name in it, and not the whole path for each file.
            number = os.open(f"{folder}/{inside}", os.O_RDONLY | os.O_DIRECTORY)
            try:
                with os.scandir(number) as entries:
                    for entry in entries:
                        name = entry.name
                        if entry.is_dir():
                            if name != "__pycache__":
                                waiting.append(f"{inside}{name}/")
                        else:
                            files[inside + name] = _seen(entry)
            finally:
                os.close(number)
    return FolderFiles(folder, files, hashlib.sha256(marshal.dumps(files, 2)).hexdigest(), began)


def _seen(entry: os.DirEntry[str]) -> Stamp:
    try:
        return stamp_of_installed(entry.stat())
    except OSError:  # a link to nothing
        return 0, 0, 0, 0


def _rows(record: str) -> Iterator[tuple[str, str, str, str]]:
    """Name, algorithm, digest and size of each file in this folder that a RECORD has a digest of."""
    with Path(record).open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
        for row in csv.reader(stream):
            if len(row) == 3 and row[1] and not row[0].startswith(("/", "../")):
                algorithm, _, digest = row[1].partition("=")
                yield row[0], algorithm, digest, row[2]


def _as_in_records(digest: str) -> str:
    return base64.urlsafe_b64encode(bytes.fromhex(digest)).decode().rstrip("=")


def _text(path: Path, named: Callable[[str], str]) -> str:
    try:
        return _digest(named(os.fsdecode(path.read_bytes())))
    except OSError as error:
        return error.strerror or "unreadable"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
