"""Facts about one ELF file, read as the loader reads them: headers and the dynamic segment, never sections.

A library of 100 MB costs a few kilobytes of reading. Section headers may be garbled or gone: loaders do not
look at them, so neither does this.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from provisioning.base.errors import CheckFailed

MAGIC = b"\x7fELF"
HEXAGON = "EM_QDSP6"
X86_64 = "EM_X86_64"
AARCH64 = "EM_AARCH64"
MACHINES = {62: X86_64, 183: AARCH64, 164: HEXAGON, 3: "EM_386", 40: "EM_ARM", 8: "EM_MIPS", 243: "EM_RISCV"}

_NAMES = {X86_64: "x86-64", AARCH64: "AArch64", HEXAGON: "Hexagon", "EM_386": "x86"}
_HEXAGON_ARCH_MASK = 0x3FF
# Far more than any linker writes: only damaged files have so many.
_MOST_ENTRIES = 4096
_MOST_NOTES = 64 << 10
_MOST_STRING = 4096
# Only the beginning is read, and a comment may be longer. A library never begins with a comment.
_SCRIPT = re.compile(rb"\s*(?:/\*|(?:INPUT|GROUP|OUTPUT_FORMAT)\b)")

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_NOTE, _PT_GNU_STACK = 1, 2, 3, 4, 0x6474E551
_PF_X = 0x1
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH = 0, 1, 5, 10, 14, 15
_DT_TEXTREL, _DT_RUNPATH, _DT_FLAGS = 22, 29, 30
_DT_VERDEF, _DT_VERDEFNUM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_DF_TEXTREL = 0x4
_LONG_ANDROID_NOTE = 4 + 64 + 64
_VER_FLG_WEAK = 0x2
_STACK_EXECUTABLE_UNLESS_STATED = frozenset({X86_64, AARCH64, "EM_386", "EM_ARM"})


class NotElf(CheckFailed):
    """The file is something else; `reason` says what it looks like."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: not an ELF file: {reason}")
        self.path = path
        self.reason = reason


class BrokenElf(CheckFailed):
    """The file begins as ELF and cannot be one; `reason` says where it breaks."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: a damaged ELF file: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Elf:
    """The facts about one file that a loader, or a reviewer of libraries, needs."""

    bits: int
    machine: str
    """The name of e_machine: `EM_X86_64`, `EM_AARCH64`, `EM_QDSP6`; `EM_77` for one without a name here."""
    flags: int
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    interpreter: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    """Symbol versions that must be provided: (library, version), `("libc.so.6", "GLIBC_2.34")`."""
    provides: tuple[str, ...] = ()
    """Symbol versions that this file defines."""
    alignments: tuple[int, ...] = ()
    """p_align of each PT_LOAD."""
    textrel: bool = False
    execstack: bool = False
    """Whether loading it makes the stack executable: it requests that, or has no PT_GNU_STACK."""
    states_stack: bool = True
    """False without PT_GNU_STACK, which loaders of x86-64 and AArch64 take for an executable stack."""
    beyond_end: str = ""
    """Section headers outside the file: `they end at byte 4489792 of 1048576`. Loaders do not read them."""
    android_api: int | None = None
    ndk: tuple[str, str] | None = None
    """The NDK's release and build number, of the Android note: `("r27d", "13750724")`."""

    @property
    def arch(self) -> int | None:
        """The Hexagon arch, 75 for V75; None for other machines or when e_flags name none."""
        digits = f"{self.flags & _HEXAGON_ARCH_MASK:x}"
        return int(digits) if self.machine == HEXAGON and digits.isdecimal() and digits != "0" else None

    @property
    def machine_name(self) -> str:
        return _NAMES.get(self.machine, self.machine.removeprefix("EM_"))

    def highest(self, family: str) -> str | None:
        """The highest numbered version needed of `GLIBC`, `GLIBCXX` or `CXXABI`, as `2.34`.

        Versions without a number (GLIBC_ABI_DT_RELR) have no order: compare `versions` by name.
        """
        return highest_version((version for _, version in self.versions), family)


def highest_version(names: Iterable[str], family: str) -> str | None:
    """The highest `<family>_<number>`; private versions such as GLIBC_PRIVATE are no numbers."""
    numbers = [
        name[len(family) + 1 :]
        for name in names
        if name.startswith(f"{family}_") and name[len(family) + 1 :].replace(".", "").isdecimal()
    ]
    return max(numbers, key=version_key, default=None)


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)


def identity(path: Path) -> tuple[int, int] | None:
    """(class bits, e_machine) by the first 20 bytes; None for what is no ELF. For the loader's candidates."""
    try:
        with path.open("rb") as stream:
            head = stream.read(20)
    except OSError:
        return None
    if len(head) < 20 or head[:4] != MAGIC or head[4] not in (1, 2):
        return None
    return 32 * head[4], struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)[0]


def read(path: Path) -> Elf:
    """Raises NotElf or BrokenElf for bad content, OSError for what cannot be opened, nothing else."""
    with path.open("rb") as stream:
        return read_stream(stream, path)


def read_stream(stream: BinaryIO, path: Path) -> Elf:
    """As `read`; `path` only names the file in errors."""
    head = stream.read(256)
    if head[:4] != MAGIC:
        raise NotElf(path, _looks_like(head))
    try:
        return _File(stream, head).elf()
    except (_Damage, UnicodeDecodeError) as damage:
        raise BrokenElf(path, str(damage)[:200]) from None


class _Damage(Exception):
    pass


def _looks_like(head: bytes) -> str:
    if not head:
        return "it is empty"
    if _SCRIPT.match(head):
        return LINKER_SCRIPT
    if head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, the content was never fetched"
    if head.startswith(b"MZ"):
        return "it is a Windows library"
    if not head.strip(b"\0"):
        return "it begins with zeros"
    return f"it begins with {head[:12]!r}"


LINKER_SCRIPT = "it is a linker script"


class _Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    size: int
    align: int


class _AndroidNote(NamedTuple):
    api: int
    ndk: tuple[str, str] | None


class _File:
    """One open ELF file. Every number that it holds is checked against the file before it is followed."""

    def __init__(self, stream: BinaryIO, head: bytes) -> None:
        if head[4:5] not in (b"\1", b"\2") or head[5:6] not in (b"\1", b"\2"):
            raise _Damage(
                f"class {head[4:5].hex() or '?'} and byte order {head[5:6].hex() or '?'} are not ELF's"
            )
        self.wide = head[4] == 2
        self.order = "<" if head[5] == 1 else ">"
        self.stream = stream
        self.size = stream.seek(0, os.SEEK_END)
        header = self.numbers(16, "HHIQQQIHHHHHH" if self.wide else "HHIIIIIHHHHHH", "the header")
        _, self.machine, _, _, self.segments_at, self.sections_at, self.flags, *sizes = header
        _, self.segment_size, self.segments, self.section_size, self.sections, _ = sizes

    def numbers(self, offset: int, layout: str, what: str) -> tuple[int, ...]:
        structure = struct.Struct(self.order + layout)
        if offset + structure.size > self.size:
            raise _Damage(f"truncated: {what} end at byte {offset + structure.size} of {self.size}")
        self.stream.seek(offset)
        return structure.unpack(self.stream.read(structure.size))

    def elf(self) -> Elf:
        segments = list(self._segments())
        loads = [segment for segment in segments if segment.kind == _PT_LOAD]
        for load in loads:
            if (end := load.offset + load.size) > self.size:
                raise _Damage(f"truncated: a segment ends at byte {end} of {self.size}")
        of_kind = {segment.kind: segment for segment in reversed(segments)}
        stack = of_kind.get(_PT_GNU_STACK)
        dynamic = list(self._dynamic(of_kind.get(_PT_DYNAMIC)))
        tags = dict(reversed(dynamic))
        names = _Names(self, loads, tags)
        machine = MACHINES.get(self.machine, f"EM_{self.machine}")
        sections_end = self.sections_at + self.sections * self.section_size
        android = next(self._android_notes(segments), None)
        return Elf(
            bits=64 if self.wide else 32,
            machine=machine,
            flags=self.flags,
            soname=(*names.of(dynamic, _DT_SONAME), "")[0],
            needed=names.of(dynamic, _DT_NEEDED),
            rpath=_entries(names.of(dynamic, _DT_RPATH)),
            runpath=_entries(names.of(dynamic, _DT_RUNPATH)),
            interpreter=self._interpreter(of_kind.get(_PT_INTERP)),
            versions=tuple(self._versions_needed(loads, tags, names)),
            provides=tuple(self._versions_defined(loads, tags, names)),
            alignments=tuple(load.align for load in loads),
            textrel=_DT_TEXTREL in tags or bool(tags.get(_DT_FLAGS, 0) & _DF_TEXTREL),
            execstack=bool(stack.flags & _PF_X) if stack else machine in _STACK_EXECUTABLE_UNLESS_STATED,
            states_stack=stack is not None,
            android_api=android.api if android else None,
            ndk=android.ndk if android else None,
            beyond_end=(
                f"they end at byte {sections_end} of {self.size}"
                if self.sections_at and sections_end > self.size
                else ""
            ),
        )

    def _segments(self) -> Iterator[_Segment]:
        end = self.segments_at + self.segments * self.segment_size
        if end > self.size:
            raise _Damage(f"truncated: the program headers end at byte {end} of {self.size}")
        for index in range(min(self.segments, _MOST_ENTRIES)):
            at = self.segments_at + index * self.segment_size
            if self.wide:
                kind, flags, offset, address, _, size, _, align = self.numbers(at, "IIQQQQQQ", "the headers")
            else:
                kind, offset, address, _, size, _, flags, align = self.numbers(at, "IIIIIIII", "the headers")
            yield _Segment(kind, flags, offset, address, size, align)

    def _interpreter(self, segment: _Segment | None) -> str:
        if segment is None or segment.offset > self.size:
            return ""
        self.stream.seek(segment.offset)
        return self.stream.read(min(segment.size, _MOST_STRING)).split(b"\0")[0].decode()

    def _dynamic(self, segment: _Segment | None) -> Iterator[tuple[int, int]]:
        if segment is None:
            return
        layout = "QQ" if self.wide else "II"
        size = struct.calcsize(f"<{layout}")
        for index in range(min(segment.size // size, _MOST_ENTRIES)):
            tag, value = self.numbers(segment.offset + index * size, layout, "the dynamic segment")
            if tag == _DT_NULL:
                return
            yield tag, value

    def _versions_needed(
        self, loads: Sequence[_Segment], tags: dict[int, int], names: _Names
    ) -> Iterator[tuple[str, str]]:
        if _DT_VERNEED not in tags:
            return
        at = _offset_of(tags[_DT_VERNEED], loads)
        for _ in range(min(tags.get(_DT_VERNEEDNUM, 0), _MOST_ENTRIES)):
            _, count, library, first, following = self.numbers(at, "HHIII", "the needed versions")
            version_at = at + first
            for _ in range(min(count, _MOST_ENTRIES)):
                _, flags, _, name, next_ = self.numbers(version_at, "IHHII", "the needed versions")
                if not flags & _VER_FLG_WEAK:
                    yield names.at(library), names.at(name)
                if not next_:
                    break
                version_at += next_
            if not following:
                return
            at += following

    def _versions_defined(
        self, loads: Sequence[_Segment], tags: dict[int, int], names: _Names
    ) -> Iterator[str]:
        if _DT_VERDEF not in tags:
            return
        at = _offset_of(tags[_DT_VERDEF], loads)
        for _ in range(min(tags.get(_DT_VERDEFNUM, 0), _MOST_ENTRIES)):
            _, _, _, count, _, first, following = self.numbers(at, "HHHHIII", "the defined versions")
            # The first auxiliary entry is the version's own name, further ones are its ancestors.
            if count:
                yield names.at(self.numbers(at + first, "II", "the defined versions")[0])
            if not following:
                return
            at += following

    def _android_notes(self, segments: Sequence[_Segment]) -> Iterator[_AndroidNote]:
        for segment in segments:
            if segment.kind != _PT_NOTE or segment.size > _MOST_NOTES:
                continue
            at, end = segment.offset, min(segment.offset + segment.size, self.size)
            while at + 12 <= end:
                name_size, size, _ = self.numbers(at, "III", "the notes")
                content = at + 12 + _aligned(name_size)
                self.stream.seek(at + 12)
                if self.stream.read(min(name_size, 8)) == b"Android\0" and size >= 4:
                    yield _AndroidNote(self.numbers(content, "I", "the notes")[0], self._ndk(content, size))
                at = content + _aligned(size)

    def _ndk(self, content: int, size: int) -> tuple[str, str] | None:
        """Two texts of 64 bytes after the API level; notes of old NDKs end with the level."""
        if size < _LONG_ANDROID_NOTE:
            return None
        self.numbers(content + size, "", "the notes")
        self.stream.seek(content + 4)
        release, build = self.stream.read(64), self.stream.read(64)
        return _until_nul(release), _until_nul(build)


class _Names:
    """The dynamic string table."""

    def __init__(self, file: _File, loads: Sequence[_Segment], tags: dict[int, int]) -> None:
        self._stream = file.stream
        self._start = _offset_of(tags[_DT_STRTAB], loads) if _DT_STRTAB in tags else None
        self._size = tags.get(_DT_STRSZ, 0)

    def of(self, dynamic: Sequence[tuple[int, int]], tag: int) -> tuple[str, ...]:
        return tuple(self.at(value) for name, value in dynamic if name == tag)

    def at(self, index: int) -> str:
        if self._start is None:
            raise _Damage("the dynamic segment has names and no string table")
        if index >= self._size:
            raise _Damage(f"name {index:#x} is beyond the string table of {self._size:#x} bytes")
        self._stream.seek(self._start + index)
        raw, end, _ = self._stream.read(min(_MOST_STRING, self._size - index)).partition(b"\0")
        if not end:
            raise _Damage(f"name {index:#x} has no end")
        return raw.decode()


def _offset_of(address: int, loads: Sequence[_Segment]) -> int:
    for load in loads:
        if load.address <= address < load.address + load.size:
            return address - load.address + load.offset
    raise _Damage(f"address {address:#x} of the dynamic segment is in no loaded segment")


def _until_nul(text: bytes) -> str:
    return text.partition(b"\0")[0].decode()


def _aligned(size: int) -> int:
    return (size + 3) & ~3


def _entries(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(part for value in values if value for part in value.split(":"))
