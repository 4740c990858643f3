"""Unpack zip archives (also .whl, .aar, .jar) on every core: zlib releases the interpreter's lock.

An archive's own hash is checked before it comes here; names, sizes and checksums are checked all the same.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipInfo

from provisioning.base.commands import Fix, quoted, session
from provisioning.base.errors import ArchiveError, EnvironmentLacking
from provisioning.base.files import (
    ANOTHER_STORE,
    FULL,
    IN_THE_WAY,
    TreeFile,
    disk_error,
    disk_errors,
    write_all,
)
from provisioning.base.progress import SILENT, Progress

MOST_BYTES = 64 << 30
MOST_MEMBERS = 200_000
MOST_WORKERS = 8
LONGEST_NAME, LONGEST_TARGET = 255, 1024
BLOCK = 256 << 10
ENCRYPTED, NAME_IN_UTF8 = 0x1, 0x800
UNIX_SYSTEMS = (3, 19)

DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OverflowError)
"""What zipfile raises for an archive that contradicts itself."""


def extract(
    archive: Path,
    into: Path,
    place: Callable[[str], str | None],
    *,
    workers: int | None = None,
    progress: Progress = SILENT,
    name: str = "",
    most_bytes: int = MOST_BYTES,
    most_members: int = MOST_MEMBERS,
) -> list[TreeFile]:
    """Unpack the members that `place` gives a destination below `into`; returns what was written.

    `place` is called with each member's name, directories with a slash at their end; None leaves a member
    out. `name` is what progress calls the archive: downloads are named by their hash.
    Files become 0644, or 0755 where any exec bit is set; directories 0755; symbolic links are made last.
    `into` is the caller's private staging directory, created if it is not there. After an error the caller
    removes it, whatever it holds. Raises ArchiveError for a bad archive, EnvironmentLacking where writing
    fails.
    """
    with _Source(archive) as source:
        if len(source.members) > most_members:
            raise source.error("", f"at most {most_members} members", f"{len(source.members)}")
        for member in source.members:
            _check(source, member)
        placed = [(member, to) for member in source.members if (to := place(member.filename))]
        for member, to in placed:
            if reason := unsafe(to.removesuffix("/")):
                raise source.error(member.filename, "a plain relative destination", f"{reason} in {to!r}")
        files = [(member, to) for member, to in placed if _kind(member) == stat.S_IFREG]
        links = [(member, to) for member, to in placed if _kind(member) == stat.S_IFLNK]
        total = sum(member.file_size for member, _ in files)
        if total > most_bytes:
            raise source.error("", f"at most {most_bytes} bytes unpacked", f"{total}")
        into.mkdir(parents=True, exist_ok=True)
        _require_room(into, files)
        progress.start(f"unpack {name or archive.name}", total)
        try:
            for folder in _folders_of(placed):
                with _writing(source, into, folder):
                    (into / folder).mkdir(exist_ok=True)
                    (into / folder).chmod(0o755)
            entries = _write_files(source, into, files, workers or _default_workers(), progress)
            entries += [_make_link(source, into, member, to) for member, to in links]
        finally:
            progress.finish()
        for member, to in links:
            # As the kernel follows it, through others of these links too.
            if not Path(os.path.realpath(into / to)).is_relative_to(os.path.realpath(into)):
                target = os.readlink(into / to)  # noqa: PTH115  a Path would normalise the text
                raise source.error(member.filename, "a link that stays inside the tree", f"target {target!r}")
    return sorted(entries, key=lambda entry: entry.path)


class _Source:
    """An open archive, which threads may read at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise EnvironmentLacking(
                f"{path}: expected an archive, found {error.strerror}", fix=session("provision")
            ) from error
        try:
            self._zip = zipfile.ZipFile(self._file)
            self.members = self._zip.infolist()
            for member in self.members:
                member.filename = _whole_name(member)
        except (*DAMAGE, OSError) as error:
            self._file.close()
            raise self.error("", "a zip archive", str(error)) from error

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def error(self, member: str, expected: str, found: str) -> ArchiveError:
        where = f"{self.path.name}: member {member!r}" if member else self.path.name
        again = Fix("{} && {}", quoted("rm", self.path), session("provision"))
        fix = Fix("{}; if this stays, the published archive is bad", again)
        return ArchiveError(f"{where}: expected {expected}, found {found}", fix=fix)

    def blocks(self, member: ZipInfo) -> Iterator[bytes]:
        """The member's content, cut at its declared size; ends well only if so many bytes are there, with the
        declared checksum and behind the declared name. What a compressed member holds beyond is not read."""
        try:
            with self._zip.open(member) as stream:
                while block := stream.read(BLOCK):
                    yield block
                if stream.tell() != member.file_size:
                    found = str(stream.tell())
                    raise self.error(member.filename, f"{member.file_size} bytes as declared", found)
        except DAMAGE as error:
            raise self.error(member.filename, "what is declared of it", str(error)) from error


def _whole_name(member: ZipInfo) -> str:
    """zipfile ends a name at a NUL, and takes it for cp437 where nothing says that it is UTF-8. Raises
    UnicodeDecodeError, which is a ValueError."""
    name = member.orig_filename
    return name if member.flag_bits & NAME_IN_UTF8 else name.encode("cp437").decode("utf-8")


def _check(source: _Source, member: ZipInfo) -> None:
    """Refuse what none of our archives has, also in members that are left out."""
    if reason := unsafe(member.filename.removesuffix("/")):
        raise source.error(member.filename, "a plain relative name", reason)
    if member.header_offset < 0:
        raise source.error(member.filename, "data in this file", f"offset {member.header_offset}")
    if _kind(member) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        raise source.error(member.filename, "a file, directory or symbolic link", "a special file")
    if member.flag_bits & ENCRYPTED or member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        found = f"method {member.compress_type}, flags {member.flag_bits:#06x}"
        raise source.error(member.filename, "a stored or deflated member", found)


def unsafe(path: str) -> str:
    """Why a relative path with `/` between its parts may not be used; empty if it may."""
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        return "an absolute path"
    if "\\" in path:
        return "a backslash, which some tools take for a separator"
    if any(unicodedata.category(letter) == "Cc" for letter in path):
        return "a control character"
    parts = path.split("/")
    if "" in parts:
        return "an empty part"
    if "." in parts or ".." in parts:
        return "a part of dots"
    if any(len(part.encode()) > LONGEST_NAME for part in parts):
        return f"a part longer than {LONGEST_NAME} bytes"
    return ""


def _mode(member: ZipInfo) -> int:
    """The Unix mode; 0 where the archive has none."""
    return member.external_attr >> 16 if member.create_system in UNIX_SYSTEMS else 0


def _kind(member: ZipInfo) -> int:
    kind = stat.S_IFMT(_mode(member)) or stat.S_IFREG
    return stat.S_IFDIR if kind == stat.S_IFREG and member.filename.endswith("/") else kind


def _folders_of(placed: Sequence[tuple[ZipInfo, str]]) -> list[str]:
    """Each after its parent."""
    folders: set[str] = set()
    for member, to in placed:
        path = to.removesuffix("/") if _kind(member) == stat.S_IFDIR else to.rpartition("/")[0]
        while path and path not in folders:
            folders.add(path)
            path = path.rpartition("/")[0]
    return sorted(folders)


def _require_room(into: Path, files: Sequence[tuple[ZipInfo, str]]) -> None:
    space = os.statvfs(into)
    # Files take whole blocks.
    needed = sum(-(-member.file_size // space.f_frsize) * space.f_frsize for member, _ in files)
    if needed > space.f_bavail * space.f_frsize:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise disk_error(full, ANOTHER_STORE, into, needed) or full


@contextmanager
def _writing(source: _Source, into: Path, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (*IN_THE_WAY, errno.ELOOP):
            # Two members of one path, or of one path but for case where the file system tells none apart.
            raise source.error(path, f"nothing in its way in {into}", f"{error.strerror}") from error
        where = into if error.errno in FULL else into / path
        with disk_errors(ANOTHER_STORE, where):
            raise


def _default_workers() -> int:
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))


def _write_files(
    source: _Source, into: Path, files: Sequence[tuple[ZipInfo, str]], workers: int, progress: Progress
) -> list[TreeFile]:
    # The largest first, so that no core is left alone with a large one at the end.
    largest_first = sorted(files, key=lambda file: file[0].file_size, reverse=True)
    with ThreadPoolExecutor(workers, "unpack") as pool:
        writing = [pool.submit(_write_file, source, into, member, to) for member, to in largest_first]
        try:
            for written in as_completed(writing):
                progress.advance(written.result().size)
        except BaseException:
            # Nobody removes the tree before the threads have ended.
            pool.shutdown(cancel_futures=True)
            raise
    return [written.result() for written in writing]


def _write_file(source: _Source, into: Path, member: ZipInfo, to: str) -> TreeFile:
    mode, digest = 0o755 if _mode(member) & 0o111 else 0o644, hashlib.sha256()
    with _writing(source, into, to):
        out = os.open(into / to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            for block in source.blocks(member):
                write_all(out, block)
                digest.update(block)
            os.fchmod(out, mode)
        finally:
            os.close(out)
    return TreeFile(to, "file", member.file_size, digest.hexdigest(), mode)


def _make_link(source: _Source, into: Path, member: ZipInfo, to: str) -> TreeFile:
    raw = b"".join(source.blocks(member)) if member.file_size <= LONGEST_TARGET else b""
    target = raw.decode("utf-8", errors="replace")
    if not target.isprintable() or not target or target.startswith("/") or "\\" in target:
        raise source.error(member.filename, "a relative link target", repr(raw))
    with _writing(source, into, to):
        (into / to).symlink_to(target)
    return TreeFile(to, "link", len(raw), "", 0o777, target)
