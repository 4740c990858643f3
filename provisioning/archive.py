"""Unpack zip archives (also .whl, .aar, .jar) on every core: zlib releases the interpreter's lock.

All but one are pinned by their hash before they come here; a package that somebody posted is not. So names,
links, sizes and checksums are checked, and nothing else: zipfile refuses what it cannot read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from provisioning.base.commands import Fix, quote_command, session
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

MOST_BYTES, MOST_MEMBERS = 64 << 30, 200_000
MOST_WORKERS = 8
LONGEST_TARGET = 1024
DEEPEST = 100
"""Folders in each other. Twenty are in the deepest SDK."""
BLOCK = 256 << 10
METHODS = (ZIP_STORED, ZIP_DEFLATED)
"""What zipfile reads besides takes any memory, and raises errors of its own."""

DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error),
    *(EOFError, RuntimeError, ValueError, OverflowError),
)
"""What zipfile raises for an archive that contradicts itself, is encrypted, or packed in another way than it
knows."""


def extract(
    archive: Path,
    into: Path,
    place: Callable[[str], str | None],
    *,
    progress: Progress = SILENT,
    name: str = "",
    most_bytes: int = MOST_BYTES,
) -> list[TreeFile]:
    """Unpack the members that `place` gives a destination below `into`; returns what was written.

    `place` is called with each member's name, directories with a slash at their end; None leaves a member
    out. `name` is what progress calls the archive: downloads are named by their hash.
    Files become 0644, or 0755 where any exec bit is set; directories 0755; symbolic links are made last.
    `into` is the caller's private staging directory, created if it is not there. After an error the caller
    removes it, whatever it holds. Raises ArchiveError for a bad archive, EnvironmentLacking where writing
    fails.
    """
    with _open_zip(archive) as source:
        members = source.infolist()
        if len(members) > MOST_MEMBERS:
            raise bad(archive, "", f"at most {MOST_MEMBERS} members", len(members))
        places = [(member, to) for member in members if (to := _destination(archive, member, place))]
        files = [(member, to) for member, to in places if not member.is_dir() and not _is_link(member)]
        links = [(member, to) for member, to in places if _is_link(member)]
        total = sum(member.file_size for member, _ in files)
        if total > most_bytes:
            raise bad(archive, "", f"at most {most_bytes} bytes unpacked", total)
        into.mkdir(parents=True, exist_ok=True)
        _require_room(into, files)
        progress.start(f"unpack {name or archive.name}", total)
        try:
            for folder in _folders_of(places):
                with _writing(archive, into, folder):
                    (into / folder).mkdir(exist_ok=True)
                    (into / folder).chmod(0o755)
            entries = _write_files(source, into, files, progress)
            entries += [_make_link(source, into, member, to) for member, to in links]
        finally:
            progress.finish()
    for member, to in links:
        _require_inside(archive, member, into, into / to)
    return sorted(entries, key=lambda entry: entry.path)


def _open_zip(archive: Path) -> ZipFile:
    try:
        return ZipFile(archive)
    except OSError as error:
        message = f"{archive}: expected an archive, found {error.strerror or error}"
        raise EnvironmentLacking(message, fix=session("provision")) from error
    except DAMAGE as error:
        raise bad(archive, "", "a zip archive", error) from error


def _require_inside(archive: Path, member: ZipInfo, into: Path, link: Path) -> None:
    """Refuse a link that leads out of the tree, as the kernel follows it: through other links of the archive,
    too."""
    if not Path(os.path.realpath(link)).is_relative_to(os.path.realpath(into)):
        target = os.readlink(link)  # noqa: PTH115  a Path would normalise the text
        raise bad(archive, member.filename, "a link that stays inside the tree", f"target {target!r}")


def bad(archive: Path, member: str, expected: str, found: object) -> ArchiveError:
    where = f"{archive.name}: member {member!r}" if member else archive.name
    again = Fix("{} && {}", quote_command("rm", archive), session("provision"))
    fix = Fix("{}; if this stays, the published archive is bad", again)
    return ArchiveError(f"{where}: expected {expected}, found {found}", fix=fix)


def _destination(archive: Path, member: ZipInfo, place: Callable[[str], str | None]) -> str | None:
    """Return where a member goes; None if it is left out. Even then it is checked."""
    # zipfile ends a name at a NUL.
    for name in (member.orig_filename, member.filename):
        if reason := unsafe(name.removesuffix("/")):
            raise bad(archive, name, "a plain relative name", reason)
    if member.compress_type not in METHODS:
        raise bad(archive, member.filename, "a stored or deflated member", f"method {member.compress_type}")
    to = place(member.filename)
    depth = member.filename.count("/")
    if depth > DEEPEST:
        raise bad(archive, member.filename[:80], f"at most {DEEPEST} folders in each other", depth)
    if to and (reason := unsafe(to.removesuffix("/"))):
        raise bad(archive, member.filename, "a plain relative destination", f"{reason} in {to!r}")
    return to


def unsafe(path: str) -> str:
    """Say why a relative path with `/` between its parts may not be used; empty if it may."""
    if path.startswith("/"):
        return "an absolute path"
    if re.search(r"[\0-\x1f\x7f-\x9f\\]", path):
        return "a control character or a backslash, which some tools take for a separator"
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        return "a part that is empty or of dots"
    return ""


def _is_link(member: ZipInfo) -> bool:
    return stat.S_ISLNK(member.external_attr >> 16)


def _folders_of(places: Sequence[tuple[ZipInfo, str]]) -> list[str]:
    """List the folders to create, each after its parent."""
    folders: set[str] = set()
    for member, to in places:
        path = to.removesuffix("/") if member.is_dir() else to.rpartition("/")[0]
        while path and path not in folders:
            folders.add(path)
            path = path.rpartition("/")[0]
    return sorted(folders)


def _require_room(into: Path, files: Sequence[tuple[ZipInfo, str]]) -> None:
    space = os.statvfs(into)
    # Files take whole blocks.
    size = sum(-(-member.file_size // space.f_frsize) * space.f_frsize for member, _ in files)
    if size > space.f_bavail * space.f_frsize:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise disk_error(full, ANOTHER_STORE, into, size) or full


@contextmanager
def _writing(archive: Path, into: Path, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (*IN_THE_WAY, errno.ELOOP, errno.ENAMETOOLONG):
            # Two members of one path, or of one path but for case where the file system tells none apart.
            raise bad(archive, path, f"nothing in its way in {into}", error.strerror) from error
        where = into if error.errno in FULL else into / path
        with disk_errors(ANOTHER_STORE, where):
            raise


def _write_files(
    source: ZipFile, into: Path, files: Sequence[tuple[ZipInfo, str]], progress: Progress
) -> list[TreeFile]:
    # Late, because readers of archives import this module for what they raise, and this takes 10 ms.
    from concurrent.futures import ThreadPoolExecutor, as_completed

    # The largest first, so that no core is left alone with a large one at the end.
    largest_first = sorted(files, key=lambda file: file[0].file_size, reverse=True)
    with ThreadPoolExecutor(min(MOST_WORKERS, len(os.sched_getaffinity(0)))) as pool:
        tasks = [pool.submit(_write_file, source, into, member, to) for member, to in largest_first]
        try:
            for task in as_completed(tasks):
                progress.advance(task.result().size)
        except BaseException:
            # Nobody removes the tree before the threads have ended.
            pool.shutdown(cancel_futures=True)
            raise
    return [task.result() for task in tasks]


def _write_file(source: ZipFile, into: Path, member: ZipInfo, to: str) -> TreeFile:
    mode, digest = 0o755 if member.external_attr >> 16 & 0o111 else 0o644, hashlib.sha256()
    with _writing(_path_of(source), into, to):
        out = os.open(into / to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            for block in _blocks(source, member):
                write_all(out, block)
                digest.update(block)
            os.fchmod(out, mode)
        finally:
            os.close(out)
    return TreeFile(to, "file", member.file_size, digest.hexdigest(), mode)


def _make_link(source: ZipFile, into: Path, member: ZipInfo, to: str) -> TreeFile:
    raw = b"".join(_blocks(source, member)) if member.file_size <= LONGEST_TARGET else b""
    target = raw.decode("utf-8", errors="replace")
    if not target.isprintable() or not target or target.startswith("/") or "\\" in target:
        raise bad(_path_of(source), member.filename, "a relative link target", repr(raw))
    with _writing(_path_of(source), into, to):
        (into / to).symlink_to(target)
    return TreeFile(to, "link", len(raw), "", 0o777, target)


def _path_of(source: ZipFile) -> Path:
    return Path(source.filename or "")


def _blocks(source: ZipFile, member: ZipInfo) -> Iterator[bytes]:
    """The member's content, cut at its declared size; ends well only if so many bytes are there, with the
    declared checksum and behind the declared name. What a compressed member holds beyond is not read."""
    try:
        with source.open(member) as stream:
            while block := stream.read(BLOCK):
                yield block
            if stream.tell() != member.file_size:
                raise EOFError(f"{stream.tell()} bytes instead of {member.file_size}")
    except (*DAMAGE, OSError) as error:
        raise bad(_path_of(source), member.filename, "what is declared of it", error) from error
