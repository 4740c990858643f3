"""Compute the SHA-256 of files and keep it with their stamps, so that only changed files are read. Also
describe what is installed in this interpreter, which is part of every key, by what its installers recorded.

A distribution counts by its name, its version and its RECORD; a file that differs from its row in the RECORD,
or that no RECORD names, counts by its bytes. Each file is read once, and again when its stamp differs: its
age says nothing, as `cp -a` and `chown -R` write a RECORD after the files or before them."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import json
import marshal
import os
import site
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from provisioning.base.files import hash_file, replace_text
from provisioning.base.settings import ROOT

__all__ = ["LOCKED", "Digests", "known_folders"]

Stamp = tuple[int, int, int, int]
"""Size, mtime, ctime (nanoseconds) and inode: a file with the same stamp is assumed to be unchanged."""

MOUNTS = Path("/proc/self/mountinfo")
YOUNG_SECONDS = 2.0
"""A file that changed more recently than this can change again with the same stamp."""

IMAGES = ("squashfs", "erofs", "iso9660", "udf", "cramfs", "romfs", "fuse")
"""In these file systems another file may have the stamp of an earlier one, because an image was built
again."""

MOST_DIGESTS = 50_000


def stamp_of(info: os.stat_result) -> Stamp:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def images_in(mounts: str) -> tuple[str, ...]:
    """Where file systems of IMAGES are mounted, according to the text of /proc/self/mountinfo; each path ends
    in a slash."""
    folders = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith(IMAGES):
            folder = before.split(" ")[4].encode().decode("unicode_escape")
            folders.append(f"{folder.rstrip('/')}/")
    return tuple(folders)


def _images() -> tuple[str, ...]:
    return images_in(MOUNTS.read_text(encoding="utf-8", errors="surrogateescape"))


def is_too_recent(stamp: Stamp) -> bool:
    # True of a stamp in the future as well.
    return max(stamp[1], stamp[2]) / 1e9 > time.time() - YOUNG_SECONDS


class Digests:
    """Keeps the SHA-256 of files. Bytes are read again only if the file's stamp differs or is too recent, or
    if the file is in a mounted image."""

    def __init__(self, store: Path) -> None:
        self._path = store / "cache" / "results" / "digests.json"
        self._entries: dict[str, list[object]] = {}
        with contextlib.suppress(OSError, ValueError):
            self._entries.update(json.loads(self._path.read_text(encoding="utf-8")))
        self._is_changed = False
        self._images = _images()

    def of(self, path: Path) -> str:
        """Return the digest of a file. Raises OSError for anything that is not a readable file."""
        name, stamp = str(path), stamp_of(path.stat())
        on_image = bool(self._images) and os.path.realpath(path).startswith(self._images)
        is_settled, entry = not (is_too_recent(stamp) or on_image), self._entries.get(name)
        if is_settled and entry and entry[:4] == [*stamp]:
            return str(entry[4])
        digest = hash_file(path)
        if is_settled:
            # Moved to the end, as the most recently used.
            self._entries.pop(name, None)
            self._entries[name] = [*stamp, digest]
            self._is_changed = True
        return digest

    def save(self) -> None:
        if self._is_changed:
            newest = [*self._entries.items()][-MOST_DIGESTS:]
            # Not being able to write only means that bytes are read again, so this is no error.
            with contextlib.suppress(OSError):
                replace_text(self._path, json.dumps(dict(newest)))
                self._is_changed = False


OF_INSTALLERS = (
    *("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"),
    "RECORD.jws",
)
"""Files of a .dist-info that say how it was installed; they contain paths of this machine."""
STARTUP = (".pth", "sitecustomize.py", "usercustomize.py")
"""Files that Python runs when it starts: they count by their bytes, whether recorded or not."""


@dataclass(frozen=True, slots=True)
class FolderContent:
    """The content of a folder of distributions."""

    distributions: Mapping[str, str]
    strays: Mapping[str, str]
    """The digests of files that differ from their RECORD or are in none, by path."""
    startup_files: tuple[str, ...]


LOCKED = "QNN_CI_LOCKED_PACKAGES"
"""The variable names the folder of the locked packages, where an environment of own packages also looks."""


@cache
def known_folders() -> tuple[str, ...]:
    """The folders of this Python and of its packages, which every key describes; each path ends in a
    slash."""
    folders = (*site_folders(), os.environ.get(LOCKED, ""), str(Path(os.__file__).parent))
    return tuple({f"{os.path.realpath(folder)}/" for folder in folders if folder})


def site_folders(packages: Path | str | None = None) -> tuple[str, ...]:
    """The folders where this interpreter has its distributions; those of `packages`, an environment beside
    it, come first."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    own = sorted(map(str, Path(packages).glob("lib/python*/site-packages"))) if packages else []
    return tuple(folder for folder in (*own, *site.getsitepackages(), *user) if Path(folder).is_dir())


def digests_of_installed(
    folders: tuple[str, ...], search: list[str], store: Path, projects: tuple[Path, ...] = ()
) -> dict[str, str]:
    """The part of every key that describes these folders of distributions and the folders of PYTHONPATH.
    `projects` are installed editable: their location does not count, and their code counts by what it
    builds."""
    places = {str(ROOT): "{toolkit}", **{str(project): "{project}" for project in projects}}
    versions: dict[str, str] = {}
    loose: list[list[str]] = []
    for number, folder in enumerate(folders):
        content = content_of(folder, store)
        versions |= {name: version for name, version in content.distributions.items() if name not in versions}
        loose += [[str(number), *row] for row in content.strays.items()]
        loose += [[str(number), name, _text(Path(folder, name), places)] for name in content.startup_files]
    for number, folder in enumerate(search):
        for name in STARTUP[1:]:
            if (path := Path(folder, name)).exists():
                loose.append([f"PYTHONPATH {number}", name, _text(path, places)])
    # No distribution has this name.
    return {**versions, "(files)": _digest(json.dumps(sorted(loose)))}


contents: dict[str, FolderContent] = {}
"""Maps a folder to what it held when this process first looked."""


def content_of(folder: str, store: Path) -> FolderContent:
    """Return what a folder of distributions holds. Its files are read only if their stamps differ from those
    that were kept, in its environment or in the store."""
    if folder not in contents:
        known = KnownFiles(folder, store)
        contents[folder] = known.content or known.read_content()
    return contents[folder]


KNOWN = "qnn-ci.digests.json"
"""An environment has the digests of its own files in this file, beside its pyvenv.cfg: they are the same for
all stores. The store has those of other folders, and of environments that cannot be written to."""


BATCH = 500
"""A thread reads this many files before it returns: an environment has some 40,000 small ones."""
BLOCK = 1 << 18


def hash_whole(path: str) -> str:
    """Hash a file, with as few calls as a small file needs."""
    digest, descriptor = hashlib.sha256(), os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while block := os.read(descriptor, BLOCK):
            digest.update(block)
            if len(block) < BLOCK:
                break
    finally:
        os.close(descriptor)
    return digest.hexdigest()


class KnownFiles:
    """Knows the digests of a folder's files by their stamps. The first line of its file says what the folder
    holds if no stamp has changed; the second line has the digest of each file."""

    def __init__(self, folder: str, store: Path) -> None:
        environment = Path(folder).parents[2] if len(Path(folder).parents) > 2 else Path(folder)
        name = f"installed-{_digest(folder)[:16]}.json"
        is_own = (environment / "pyvenv.cfg").is_file() and os.access(environment, os.W_OK)
        self._path = environment / KNOWN if is_own else store / "cache" / "results" / name
        self._folder, self.files = folder, files_in(folder)
        rows = sorted((name, tuple(stamp)) for name, stamp in self.files.items())
        self._state = hashlib.sha256(marshal.dumps([folder, rows], 2)).hexdigest()
        on_image = os.path.realpath(folder).startswith(_images()) if _images() else False
        self._is_settled = not on_image and not any(map(is_too_recent, self.files.values()))
        self.content: FolderContent | None = None
        self._digests: dict[str, list[object]] = {}
        if on_image:
            return
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), self._path.open("rb") as stream:
            head = json.loads(stream.readline())
            if self._is_settled and head["state"] == self._state:
                self.content = FolderContent(**head["content"])
            else:
                self._digests = dict(json.loads(stream.readline()))

    def read(self) -> dict[str, str]:
        """Return the digest of each file that can be read."""
        unknown = [
            name
            for name, stamp in self.files.items()
            if is_too_recent(stamp) or self._digests.get(name, [])[:4] != [*stamp]
        ]
        batches = [unknown[start : start + BATCH] for start in range(0, len(unknown), BATCH)]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for digests in pool.map(self._hashed, batches):
                self._digests |= digests
        return {name: str(self._digests[name][4]) for name in self.files if self._digests[name][4]}

    def _hashed(self, names: Sequence[str]) -> dict[str, list[object]]:
        """The rows of these files; a file that cannot be read has no digest."""
        rows = {}
        for name in names:
            try:
                digest = hash_whole(f"{self._folder}/{name}")
            except OSError:
                digest = ""
            rows[name] = [*self.files[name], digest]
        return rows

    def read_content(self) -> FolderContent:
        """Read what differs from the digests that were kept, and keep them for the next process."""
        content = _compare_with_records(self._folder, self.files, self.read())
        if self._is_settled:
            head = json.dumps({"state": self._state, "content": asdict(content)})
            rows = json.dumps({name: self._digests[name] for name in self.files})
            # Not being able to write only means that bytes are read again, so this is no error.
            with contextlib.suppress(OSError):
                replace_text(self._path, f"{head}\n{rows}\n")
        return content


def _compare_with_records(
    folder: str, files: Mapping[str, Stamp], digests: Mapping[str, str]
) -> FolderContent:
    """Compare the files of a folder with the RECORD of each distribution in it."""
    distributions: dict[str, str] = {}
    strays: dict[str, str] = {}
    recorded: set[str] = set()
    for record in files:
        if not (record.endswith(".dist-info/RECORD") and record.count("/") == 1):
            continue
        rows = list(_rows(f"{folder}/{record}"))
        recorded.update(row.name for row in rows)
        counted = [row for row in rows if _counts_by_record(row.name)]
        for row in counted:
            if row.name not in files:
                strays[row.name] = "absent"
            elif not row.is_digest(digests.get(row.name, "")):
                strays[row.name] = digests.get(row.name, "unreadable")
        title, _, version = record.partition(".dist-info")[0].rpartition("-")
        text = "\n".join(sorted(f"{row.name} {row.algorithm} {row.digest}" for row in counted))
        distributions[title.lower().replace("_", "-")] = f"{version} {_digest(text)[:12]}"
    for name in digests.keys() - recorded:
        if _counts_by_record(name) and not name.endswith(".pyc"):
            strays[name] = digests[name]
    startup_files = [name for name in files if "/" not in name and name.endswith(STARTUP)]
    return FolderContent(distributions, strays, tuple(sorted(startup_files)))


def _counts_by_record(name: str) -> bool:
    """Whether a file counts by its row in a RECORD, or as a stray: not what installers write about
    themselves, and not what Python runs when it starts, whose text counts."""
    return not name.endswith(STARTUP) and name.rpartition("/")[2] not in OF_INSTALLERS


@cache
def files_in(folder: str) -> Mapping[str, Stamp]:
    """Every file below a folder except bytecode, with its stamp. The folder is read once in a process."""
    files: dict[str, Stamp] = {}
    queue = [""]
    while queue:
        inside = queue.pop()
        with contextlib.suppress(OSError), os.scandir(f"{folder}/{inside}") as entries:
            for entry in entries:
                if not entry.is_dir():
                    files[inside + entry.name] = _entry_stamp(entry)
                elif entry.name != "__pycache__":
                    queue.append(f"{inside}{entry.name}/")
    return files


def _entry_stamp(entry: os.DirEntry[str]) -> Stamp:
    try:
        return stamp_of(entry.stat())
    except OSError:  # a link to nothing
        return 0, 0, 0, 0


class RecordRow(NamedTuple):
    """A file in a RECORD, with the digest that it had when it was installed."""

    name: str
    algorithm: str
    digest: str

    def is_digest(self, digest: str) -> bool:
        """Whether this is the file's digest in hexadecimal."""
        encoded = base64.urlsafe_b64encode(bytes.fromhex(digest)).decode().rstrip("=")
        return self.algorithm == "sha256" and encoded == self.digest


def _rows(record: str) -> Iterator[RecordRow]:
    """Yield a row for each file in this folder of which a RECORD has a digest."""
    with Path(record).open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
        for row in csv.reader(stream):
            if len(row) == 3 and row[1] and not row[0].startswith(("/", "../")):
                algorithm, _, digest = row[1].partition("=")
                yield RecordRow(row[0], algorithm, digest)


def _text(path: Path, places: Mapping[str, str]) -> str:
    """The digest of a file's text, with each place replaced by its name: files that Python runs when it
    starts may contain such paths."""
    try:
        text = os.fsdecode(path.read_bytes())
    except OSError as error:
        return error.strerror or "unreadable"
    for place, name in places.items():
        text = text.replace(place, name)
    return _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
