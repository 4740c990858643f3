"""Read ELF files: `read` gives the facts that a loader reads, `layout` the headers that a signature covers.

Facts come from the headers and the dynamic segment, never from sections: a library of 100 MB costs a few
kilobytes of reading. Section headers may be garbled or gone: loaders do not look at them. The file may be
hostile, so every number is checked against the file before it is followed, and the work is bounded.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from provisioning.base.errors import CheckFailed
from provisioning.base.files import open_regular

Bytes: TypeAlias = "bytes | bytearray | memoryview"
Fetch: TypeAlias = "Callable[[int, int], Bytes]"
"""(offset, size) → the bytes there, fewer at the end of the file."""

MAGIC = b"\x7fELF"
HEXAGON = "EM_QDSP6"
X86_64 = "EM_X86_64"
AARCH64 = "EM_AARCH64"
MACHINES = {62: X86_64, 183: AARCH64, 164: HEXAGON, 3: "EM_386", 40: "EM_ARM", 8: "EM_MIPS", 243: "EM_RISCV"}

_NAMES = {X86_64: "x86-64", AARCH64: "AArch64", HEXAGON: "Hexagon", "EM_386": "x86"}
_HEXAGON_ARCH_MASK = 0x3FF
MOST_SEGMENTS = 512
"""Linkers write about ten."""
# libnss3.so needs 191, the most of 1,809 libraries.
_MOST_READS = 1 << 12
_MOST_STRING = 4096
# Linkers let a name be the end of another, which twice the table covers.
_MOST_SHARING = 8
# Only the beginning is read, and a comment may be longer. A library never begins with a comment.
_SCRIPT = re.compile(rb"\s*(?:/\*|(?:INPUT|GROUP|OUTPUT_FORMAT)\b)")

PT_NULL, PT_LOAD = 0, 1
_PT_DYNAMIC, _PT_INTERP, _PT_NOTE, _PT_GNU_STACK = 2, 3, 4, 0x6474E551
_PF_X = 0x1
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH = 0, 1, 5, 10, 14, 15
_DT_TEXTREL, _DT_RUNPATH, _DT_FLAGS = 22, 29, 30
_DT_VERDEF, _DT_VERDEFNUM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_DF_TEXTREL = 0x4
_NT_GNU_BUILD_ID = 3
_LONG_ANDROID_NOTE = 4 + 64 + 64
_VER_FLG_WEAK = 0x2
_STACK_EXECUTABLE_UNLESS_STATED = frozenset({X86_64, AARCH64, "EM_386", "EM_ARM"})


class Malformed(CheckFailed):
    """Numbers that contradict the file or each other. `part` names where."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"{part}: {reason}")
        self.part = part
        self.reason = reason


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
class Format:
    """The structures of one ELF class and byte order."""

    bits: int
    order: str
    header: struct.Struct
    segment: struct.Struct
    section: struct.Struct
    segment_fields: tuple[str, ...]
    """The fields of Segment, in the file's order."""

    @property
    def most(self) -> int:
        """The largest address or offset."""
        return (1 << self.bits) - 1


def _format(bits: int, order: str) -> Format:
    word, segment, section, fields = {
        32: ("I", "8I", "10I", "type offset vaddr paddr filesz memsz flags align"),
        64: ("Q", "IIQQQQQQ", "IIQQQQIIQQ", "type flags offset vaddr paddr filesz memsz align"),
    }[bits]
    header = struct.Struct(f"{order}16sHHI3{word}I6H")
    of_segment, of_section = struct.Struct(order + segment), struct.Struct(order + section)
    return Format(bits, order, header, of_segment, of_section, tuple(fields.split()))


_FORMATS = {
    bytes((bits // 32, place)): _format(bits, order)
    for bits in (32, 64)
    for place, order in enumerate("<>", start=1)
}
ELF32 = _FORMATS[b"\1\1"]
"""Little-endian, as Hexagon's libraries are."""


@dataclass(frozen=True, slots=True)
class Header:
    ident: bytes
    type: int
    machine: int
    version: int
    entry: int
    phoff: int
    shoff: int
    flags: int
    ehsize: int
    phentsize: int
    phnum: int
    shentsize: int
    shnum: int
    shstrndx: int


@dataclass(frozen=True, slots=True)
class Segment:
    type: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    flags: int
    align: int

    @property
    def end(self) -> int:
        return self.offset + self.filesz

    def moved(self, by: int) -> Segment:
        return replace(self, offset=self.offset + by)


@dataclass(frozen=True, slots=True)
class Layout:
    """The ELF header and the program headers, which are inside the file; their segments may not be."""

    format: Format
    header: Header
    segments: tuple[Segment, ...]
    size: int

    @property
    def head_size(self) -> int:
        """Bytes of ELF header and program headers, if the latter follow the former."""
        return self.format.header.size + len(self.segments) * self.format.segment.size

    @property
    def machine(self) -> str:
        return MACHINES.get(self.header.machine, f"EM_{self.header.machine}")

    @property
    def arch(self) -> int | None:
        return _arch(self.machine, self.header.flags)

    @property
    def sections(self) -> range:
        """Where each section header begins; empty if there are none. Raises Malformed."""
        header, size = self.header, self.format.section.size
        if header.shoff == 0:
            return range(0)
        if header.shnum == 0:
            raise Malformed("section headers", "their number is not in the ELF header (extended numbering)")
        if header.shentsize != size:
            raise Malformed("ELF header", f"e_shentsize: expected {size}, found {header.shentsize}")
        end = header.shoff + header.shnum * size
        if end > self.size:
            raise Malformed(
                "section headers", f"at bytes {header.shoff}..{end} of a file of {self.size} bytes"
            )
        return range(header.shoff, end, size)


def _arch(machine: str, flags: int) -> int | None:
    """The Hexagon arch, 75 for V75; None for other machines or when e_flags name none."""
    digits = f"{flags & _HEXAGON_ARCH_MASK:x}"
    return int(digits) if machine == HEXAGON and digits.isdecimal() and digits != "0" else None


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
    gnu_build_id: str = ""
    """The build id in hexadecimal digits, when the linker wrote one."""

    @property
    def arch(self) -> int | None:
        return _arch(self.machine, self.flags)

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
        with open_regular(path) as stream:
            head = stream.read(20)
    except OSError:
        return None
    if len(head) < 20 or head[:4] != MAGIC or head[4] not in (1, 2):
        return None
    return 32 * head[4], struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)[0]


def layout(data: Bytes) -> Layout:
    """Raises Malformed for what is no ELF file or has not all of its headers."""
    if data[:4] != MAGIC:
        raise Malformed("file", "not an ELF file" if len(data) else "it is empty")
    return _File(lambda at, size: data[at : at + size], len(data)).layout


def read(path: Path) -> Elf:
    """Raises NotElf or BrokenElf for bad content, OSError for what cannot be opened, nothing else."""
    with open_regular(path) as stream:
        return read_stream(stream, path)


def read_stream(stream: BinaryIO, path: Path) -> Elf:
    """Read a file that is open, as `read` does; `path` only names the file in errors."""
    head = stream.read(256)
    if head[:4] != MAGIC:
        raise NotElf(path, _looks_like(head))

    def fetch(at: int, size: int) -> bytes:
        stream.seek(at)
        return stream.read(size)

    try:
        return _File(fetch, stream.seek(0, os.SEEK_END)).facts()
    except (Malformed, UnicodeDecodeError) as damage:
        raise BrokenElf(path, str(damage)[:200]) from None


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


class _Notes(NamedTuple):
    android_api: int | None = None
    ndk: tuple[str, str] | None = None
    gnu_build_id: str = ""


class _File:
    """One ELF file. Reading stops after _MOST_READS structures: entries may name each other in circles."""

    def __init__(self, fetch: Fetch, size: int) -> None:
        self.fetch = fetch
        self.size = size
        self.reads = 0
        kind = bytes(fetch(4, 2))
        form = _FORMATS.get(kind)
        if form is None:
            raise Malformed("ELF header", f"class and byte order: expected 1 or 2, found {kind.hex(' ')}")
        self.format = form
        header = Header(*self.unpack(0, form.header, "ELF header"))
        self.layout = Layout(form, header, tuple(self._segments(header)), size)

    def unpack(self, at: int, form: struct.Struct, part: str) -> tuple[Any, ...]:
        self.reads += 1
        if self.reads > _MOST_READS:
            raise Malformed(part, f"there are too many (limit {_MOST_READS})")
        if at + form.size > self.size:
            raise Malformed(part, f"truncated at byte {self.size}, expected {at + form.size}")
        return form.unpack(self.fetch(at, form.size))

    def numbers(self, at: int, fields: str, part: str) -> tuple[int, ...]:
        return self.unpack(at, struct.Struct(self.format.order + fields), part)

    def _segments(self, header: Header) -> Iterator[Segment]:
        form = self.format
        if header.phnum > MOST_SEGMENTS:
            raise Malformed("program headers", f"{header.phnum} of them (limit {MOST_SEGMENTS})")
        if header.phnum and header.phentsize != form.segment.size:
            expected = f"expected {form.segment.size}, found {header.phentsize}"
            raise Malformed("ELF header", f"e_phentsize: {expected}")
        whole = struct.Struct(f"{header.phnum * form.segment.size}s")
        (table,) = self.unpack(header.phoff, whole, "program headers")
        for fields in form.segment.iter_unpack(table):
            yield Segment(**dict(zip(form.segment_fields, fields, strict=True)))

    def facts(self) -> Elf:
        header, segments, machine = self.layout.header, self.layout.segments, self.layout.machine
        loads = [segment for segment in segments if segment.type == PT_LOAD]
        for load in loads:
            if load.end > self.size:
                raise Malformed("program headers", f"a segment ends at byte {load.end} of {self.size}")
        of_type = {segment.type: segment for segment in reversed(segments)}
        stack = of_type.get(_PT_GNU_STACK)
        dynamic = list(self._dynamic(of_type.get(_PT_DYNAMIC)))
        tags = dict(reversed(dynamic))
        names = _Names(self, loads, tags)
        sections_end = header.shoff + header.shnum * header.shentsize
        return Elf(
            bits=self.format.bits,
            machine=machine,
            flags=header.flags,
            soname=(*names.of(dynamic, _DT_SONAME), "")[0],
            needed=names.of(dynamic, _DT_NEEDED),
            rpath=_entries(names.of(dynamic, _DT_RPATH)),
            runpath=_entries(names.of(dynamic, _DT_RUNPATH)),
            interpreter=self._interpreter(of_type.get(_PT_INTERP)),
            versions=tuple(self._versions_needed(loads, tags, names)),
            provides=tuple(self._versions_defined(loads, tags, names)),
            alignments=tuple(load.align for load in loads),
            textrel=_DT_TEXTREL in tags or bool(tags.get(_DT_FLAGS, 0) & _DF_TEXTREL),
            execstack=bool(stack.flags & _PF_X) if stack else machine in _STACK_EXECUTABLE_UNLESS_STATED,
            states_stack=stack is not None,
            beyond_end=(
                f"they end at byte {sections_end} of {self.size}"
                if header.shoff and sections_end > self.size
                else ""
            ),
            **self._notes(segments)._asdict(),
        )

    def _interpreter(self, segment: Segment | None) -> str:
        if segment is None or segment.offset > self.size:
            return ""
        text = bytes(self.fetch(segment.offset, min(segment.filesz, _MOST_STRING)))
        return text.split(b"\0")[0].decode()

    def _dynamic(self, segment: Segment | None) -> Iterator[tuple[int, int]]:
        if segment is None:
            return
        entry = struct.Struct(self.format.order + ("QQ" if self.format.bits == 64 else "II"))
        for at in range(segment.offset, segment.end - entry.size + 1, entry.size):
            tag, value = self.unpack(at, entry, "the dynamic segment")
            if tag == _DT_NULL:
                return
            yield tag, value

    def _versions_needed(
        self, loads: Sequence[Segment], tags: dict[int, int], names: _Names
    ) -> Iterator[tuple[str, str]]:
        if _DT_VERNEED not in tags:
            return
        at = _offset_of(tags[_DT_VERNEED], loads)
        for _ in range(tags.get(_DT_VERNEEDNUM, 0)):
            _, count, library, first, following = self.numbers(at, "HHIII", "the needed versions")
            version_at = at + first
            for _ in range(count):
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
        self, loads: Sequence[Segment], tags: dict[int, int], names: _Names
    ) -> Iterator[str]:
        if _DT_VERDEF not in tags:
            return
        at = _offset_of(tags[_DT_VERDEF], loads)
        for _ in range(tags.get(_DT_VERDEFNUM, 0)):
            _, _, _, count, _, first, following = self.numbers(at, "HHHHIII", "the defined versions")
            # The first auxiliary entry is the version's own name, further ones are its ancestors.
            if count:
                yield names.at(self.numbers(at + first, "II", "the defined versions")[0])
            if not following:
                return
            at += following

    def _notes(self, segments: Sequence[Segment]) -> _Notes:
        """The first of each kind counts."""
        notes = _Notes()
        for segment in segments:
            if segment.type != _PT_NOTE:
                continue
            at, end = segment.offset, min(segment.end, self.size)
            while at + 12 <= end:
                name_size, size, kind = self.numbers(at, "III", "the notes")
                content = at + 12 + _aligned(name_size)
                name = self.fetch(at + 12, min(name_size, 8))
                if name == b"Android\0" and size >= 4 and notes.android_api is None:
                    (api,) = self.numbers(content, "I", "the notes")
                    notes = notes._replace(android_api=api, ndk=self._ndk(content, size))
                elif name == b"GNU\0" and kind == _NT_GNU_BUILD_ID and not notes.gnu_build_id:
                    notes = notes._replace(gnu_build_id=self.fetch(content, min(size, _MOST_STRING)).hex())
                at = content + _aligned(size)
        return notes

    def _ndk(self, content: int, size: int) -> tuple[str, str] | None:
        """Two texts of 64 bytes after the API level; notes of old NDKs end with the level."""
        if size < _LONG_ANDROID_NOTE:
            return None
        release, build = self.unpack(content + 4, struct.Struct("64s64s"), "the notes")
        return _until_nul(release), _until_nul(build)


class _Names:
    """The dynamic string table. Names may share their letters, so what is read is counted."""

    def __init__(self, file: _File, loads: Sequence[Segment], tags: dict[int, int]) -> None:
        self._fetch = file.fetch
        self._start = _offset_of(tags[_DT_STRTAB], loads) if _DT_STRTAB in tags else None
        self._size = min(tags.get(_DT_STRSZ, 0), file.size)
        self._known: dict[int, str] = {}
        self._letters = 0

    def of(self, dynamic: Sequence[tuple[int, int]], tag: int) -> tuple[str, ...]:
        return tuple(self.at(value) for name, value in dynamic if name == tag)

    def at(self, index: int) -> str:
        if self._start is None:
            raise Malformed("the dynamic segment", "it has names and no string table")
        if index in self._known:
            return self._known[index]
        if index >= self._size:
            raise Malformed("the string table", f"name {index:#x} is beyond its {self._size:#x} bytes")
        text = bytes(self._fetch(self._start + index, min(_MOST_STRING, self._size - index)))
        raw, end, _ = text.partition(b"\0")
        if not end:
            raise Malformed("the string table", f"name {index:#x} has no end")
        self._letters += len(raw)
        if self._letters > _MOST_SHARING * self._size:
            raise Malformed("the string table", f"its names have more than {_MOST_SHARING} times its letters")
        self._known[index] = raw.decode()
        return self._known[index]


def _offset_of(address: int, loads: Sequence[Segment]) -> int:
    for load in loads:
        if load.vaddr <= address < load.vaddr + load.filesz:
            return address - load.vaddr + load.offset
    raise Malformed("the dynamic segment", f"address {address:#x} is in no loaded segment")


def _until_nul(text: bytes) -> str:
    return text.partition(b"\0")[0].decode()


def _aligned(size: int) -> int:
    return (size + 3) & ~3


def _entries(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(part for value in values if value for part in value.split(":"))
