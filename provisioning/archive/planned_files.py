"""The files that an archive would create, checked before anything is written."""

from __future__ import annotations

import re
import stat
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from provisioning.archive.reader import Member, Zip

GIB = 1 << 30
LONGEST_NAME = 255
LONGEST_PATH = 2048
LONGEST_TARGET = 1024
MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of what an archive may hold.

    Names that differ only by case are refused unless `case_sensitive`. A manifest sets it for archives that
    have such names on purpose (kernel headers in the Android NDK); the destination must then support them.
    """

    members: int = 200_000
    total: int = 64 * GIB
    """Bytes that would be written."""
    ratio: int = 300
    """Unpacked size to packed size, for each member and for all together. Sizes below `ratio_floor` pass."""
    ratio_floor: int = 16 << 20
    case_sensitive: bool = False


DEFAULT = Limits()


DIRECTORY, FILE, LINK = "a directory", "a file", "a symbolic link"


@dataclass(frozen=True, slots=True)
class PlannedFile:
    member: Member
    to: str
    start: int
    """Where its data begins in the archive."""
    mode: int


@dataclass(frozen=True, slots=True)
class PlannedLink:
    member: Member
    to: str
    target: str


@dataclass
class PlannedFiles:
    directories: list[str] = field(default_factory=list)
    """Each after its parent."""
    files: list[PlannedFile] = field(default_factory=list)
    links: list[PlannedLink] = field(default_factory=list)
    case_clash: tuple[str, str] | None = None
    """Two paths that only a case-sensitive destination keeps apart."""

    @property
    def total(self) -> int:
        return sum(file.member.size for file in self.files)


def unsafe(path: str) -> str | None:
    """Why a relative path with `/` between its parts may not be used, or None if it may."""
    if not path:
        return "an empty name"
    if path[0] == "/":
        return "an absolute path"
    if re.match(r"[A-Za-z]:", path):
        return "a drive letter"
    if "\\" in path:
        return "a backslash, which some tools take for a separator"
    if not path.isprintable() and any(unicodedata.category(letter) == "Cc" for letter in path):
        return "a control character"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"the part {part!r}" if part else "an empty part"
        if len(part) > LONGEST_NAME // 4 and len(part.encode()) > LONGEST_NAME:
            return f"a part longer than {LONGEST_NAME} bytes"
    if len(path) > LONGEST_PATH // 4 and len(path.encode()) > LONGEST_PATH:
        return f"more than {LONGEST_PATH} bytes"
    return None


def plan_files(zip_file: Zip, place: Callable[[str], str | None], limits: Limits) -> PlannedFiles:
    """Check the whole archive, and plan the members for which `place` returns a destination.

    The name, kind and position of every member are checked; destination, size and local header only of those
    that are planned.
    """
    _check_members(zip_file)
    tree = _Tree(zip_file, limits)
    for member in zip_file.members:
        to = place(member.name)
        if to is not None:
            tree.add(member, to)
    tree.check_sizes()
    tree.check_links()
    return tree.plan


def _check_members(zip_file: Zip) -> None:
    seen: set[str] = set()
    for member in zip_file.members:
        name = member.name[:-1] if member.name.endswith("/") else member.name
        if reason := unsafe(name):
            raise zip_file.error(member.name, "a plain relative name", reason)
        if name in seen:
            raise zip_file.error(member.name, "each name once", "a second member of this name")
        seen.add(name)
        kind = stat.S_IFMT(member.mode)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            raise zip_file.error(
                member.name, "a file, directory or symbolic link", f"a special file (mode {member.mode:o})"
            )
        if member.is_link and member.name.endswith("/"):
            raise zip_file.error(member.name, "a directory, as its name says", "a symbolic link")
        if member.is_dir and member.size:
            raise zip_file.error(member.name, "a directory without content", f"{member.size} bytes")
    _check_positions(zip_file)


def _check_positions(zip_file: Zip) -> None:
    end, before = 0, ""
    for member in sorted(zip_file.members, key=lambda member: member.offset):
        if member.offset < end:
            raise zip_file.error(
                member.name, "data of its own", f"an overlap with {before!r} at offset {member.offset}"
            )
        # At least this long. For planned members data_start checks the exact place.
        end, before = member.offset + 30 + len(member.raw_name) + member.compressed_size, member.name
    if end > zip_file.directory_start:
        raise zip_file.error(before, "data before the directory", f"data up to offset {end}")


class _Tree:
    """The destination while it is planned."""

    def __init__(self, zip_file: Zip, limits: Limits) -> None:
        self.plan = PlannedFiles()
        self._zip = zip_file
        self._limits = limits
        self._kinds = {"": DIRECTORY}
        self._spelled: dict[str, str] = {}
        offsets = [*sorted(member.offset for member in zip_file.members), zip_file.directory_start]
        self._next = dict(pairwise(offsets))

    def add(self, member: Member, to: str) -> None:
        start = self._zip.data_start(member)
        if start + member.compressed_size > self._next[member.offset]:
            raise self._zip.error(member.name, "data of its own", "an overlap with the next member")
        to = to.rstrip("/") if member.is_dir else to
        if member.is_dir and not to:
            return
        if reason := unsafe(to):
            raise self._zip.error(member.name, "a plain relative destination", f"{reason} in {to!r}")
        if member.is_dir:
            self._add_directory(member, to)
            return
        if (there := self._kinds.get(to)) is not None:
            raise self._zip.error(member.name, f"nothing else at {to!r}", there)
        self._add_directory(member, to.rpartition("/")[0])
        self._note(member, to, LINK if member.is_link else FILE)
        if member.is_link:
            self.plan.links.append(PlannedLink(member, to, self._target(member, start)))
        else:
            self.plan.files.append(PlannedFile(member, to, start, 0o755 if member.mode & 0o111 else 0o644))

    def check_sizes(self) -> None:
        limits, total, packed = self._limits, 0, 0
        for file in self.plan.files:
            size, compressed = file.member.size, file.member.compressed_size
            if size > limits.ratio_floor and size > limits.ratio * compressed:
                raise self._zip.error(
                    file.member.name,
                    f"at most {limits.ratio} times its packed size",
                    f"{size} bytes from {compressed}: a bomb",
                )
            total += size
            packed += compressed
        if total > limits.total:
            raise self._zip.error("", f"at most {limits.total} bytes unpacked", f"{total}: a bomb")
        if total > limits.ratio_floor and total > limits.ratio * packed:
            raise self._zip.error(
                "", f"at most {limits.ratio} times its packed size", f"{total} bytes from {packed}: a bomb"
            )

    def check_links(self) -> None:
        targets = {self._key(link.to): link.target for link in self.plan.links}
        for link in self.plan.links:
            self._resolve(link, targets)

    def _resolve(self, link: PlannedLink, targets: dict[str, str]) -> None:
        """Follow a link in the planned tree as the kernel does. It may dangle, but not leave the tree."""
        here: list[str] = link.to.split("/")[:-1]
        todo = link.target.split("/")[::-1]
        followed = 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not here:
                    raise self._zip.error(
                        link.member.name, "a link that stays inside the tree", f"target {link.target!r}"
                    )
                here.pop()
                continue
            here.append(part)
            target = targets.get(self._key("/".join(here)))
            if target is not None:
                followed += 1
                if followed > MOST_LINKS:
                    raise self._zip.error(
                        link.member.name, "a link that leads somewhere", f"a circle by target {link.target!r}"
                    )
                here.pop()
                todo.extend(target.split("/")[::-1])

    def _target(self, member: Member, start: int) -> str:
        if not 0 < member.size <= LONGEST_TARGET:
            raise self._zip.error(
                member.name, f"a link target of 1 to {LONGEST_TARGET} bytes", f"{member.size}"
            )
        raw = b"".join(self._zip.blocks(member, start))
        try:
            target = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._zip.error(member.name, "a link target in UTF-8", repr(raw)) from None
        if target.startswith("/"):
            raise self._zip.error(member.name, "a relative link target", f"the absolute {target!r}")
        if "\\" in target or any(unicodedata.category(letter) == "Cc" for letter in target):
            raise self._zip.error(
                member.name, "a link target without backslashes and control characters", repr(target)
            )
        return target

    def _add_directory(self, member: Member, path: str) -> None:
        there = self._kinds.get(path)
        if there == DIRECTORY:
            return
        if there is not None:
            raise self._zip.error(member.name, f"a directory at {path!r}", there)
        self._add_directory(member, path.rpartition("/")[0])
        self._note(member, path, DIRECTORY)
        self.plan.directories.append(path)

    def _note(self, member: Member, path: str, kind: str) -> None:
        other = self._spelled.setdefault(_folded(path), path)
        if other != path:
            expected, beside = "names that stay apart on every file system", f"{path!r} beside {other!r}"
            if unicodedata.normalize("NFC", other) == unicodedata.normalize("NFC", path):
                found = f"{beside}: the same letters, composed differently"
                raise self._zip.error(member.name, expected, found)
            if not self._limits.case_sensitive:
                fix = "if you want both, set `case_sensitive = true` for this source in its profile"
                raise self._zip.error(member.name, expected, f"{beside}: they differ only by case", fix)
            self.plan.case_clash = (other, path)
        self._kinds[path] = kind

    def _key(self, path: str) -> str:
        return path if self._limits.case_sensitive else _folded(path)


def _folded(path: str) -> str:
    return path.lower() if path.isascii() else unicodedata.normalize("NFC", path.casefold())
