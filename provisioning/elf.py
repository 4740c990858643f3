"""Facts about one ELF file, read from its headers and dynamic segment alone, as the loader would.

Sections are never walked: a library of 100 MB costs a few kilobytes of reading.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from provisioning.base.errors import CheckFailed

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

MAGIC = b"\x7fELF"
HEXAGON = "EM_QDSP6"
X86_64 = "EM_X86_64"
AARCH64 = "EM_AARCH64"

_HEXAGON_ARCH_MASK = 0x3FF
_MACHINES = {X86_64: "x86-64", AARCH64: "AArch64", HEXAGON: "Hexagon", "EM_386": "x86", "EM_ARM": "ARM"}
# Far above anything a linker writes; only damaged files come near.
_MOST_ENTRIES = 4096
_MOST_NOTES = 64 << 10
_MOST_STRING = 4096
_DF_TEXTREL = 0x4
# A comment may be longer than what is looked at; a library never begins with one.
_SCRIPT = re.compile(rb"\s*(?:/\*|(?:INPUT|GROUP|OUTPUT_FORMAT)\b)")
_PF_X = 0x1


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
    """What the loader, and a reviewer of libraries, wants to know of one file."""

    bits: int
    machine: str
    """pyelftools' name of e_machine: `EM_X86_64`, `EM_AARCH64`, `EM_QDSP6`."""
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
    android_api: int | None = None

    @property
    def arch(self) -> int | None:
        """The Hexagon arch, 75 for V75; None for other machines or when e_flags name none."""
        digits = f"{self.flags & _HEXAGON_ARCH_MASK:x}"
        return int(digits) if self.machine == HEXAGON and digits.isdecimal() and digits != "0" else None

    @property
    def machine_name(self) -> str:
        return _MACHINES.get(self.machine, self.machine.removeprefix("EM_"))

    def highest(self, family: str) -> str | None:
        """The highest version needed of `GLIBC`, `GLIBCXX` or `CXXABI`, as `2.34`."""
        return highest_version((version for _, version in self.versions), family)


def highest_version(names: Iterator[str] | tuple[str, ...], family: str) -> str | None:
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
    from elftools.elf.elffile import ELFFile

    try:
        return _parse(ELFFile(stream))
    except _Damage as damage:
        raise BrokenElf(path, str(damage)) from None
    except Exception as error:
        # pyelftools meets damaged bytes with whatever its parsing happens to raise: KeyError,
        # UnicodeDecodeError, OverflowError, its own errors. All say one thing about the file.
        raise BrokenElf(path, f"{type(error).__name__}: {error}"[:200]) from error


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


def _parse(elf: ELFFile) -> Elf:
    header = elf.header
    bits = elf.elfclass
    size = elf.stream_len
    _whole(header, size)
    segments = [elf.get_segment(index) for index in range(min(header["e_phnum"], _MOST_ENTRIES))]
    loads = [segment for segment in segments if segment["p_type"] == "PT_LOAD"]
    for load in loads:
        if load["p_offset"] + load["p_filesz"] > size:
            raise _Damage(
                f"truncated: a segment ends at byte {load['p_offset'] + load['p_filesz']} of {size}"
            )
    interpreter = ""
    execstack = False
    android_api = None
    dynamic: list[tuple[Any, int]] = []
    for segment in segments:
        kind = segment["p_type"]
        if kind == "PT_INTERP":
            elf.stream.seek(segment["p_offset"])
            interpreter = elf.stream.read(min(segment["p_filesz"], _MOST_STRING)).split(b"\0")[0].decode()
        elif kind == "PT_GNU_STACK":
            execstack = bool(segment["p_flags"] & _PF_X)
        elif kind == "PT_DYNAMIC":
            dynamic = list(_dynamic(elf, segment["p_offset"], segment["p_filesz"]))
        elif kind == "PT_NOTE" and segment["p_filesz"] <= _MOST_NOTES and android_api is None:
            android_api = _android_api(elf, segment)

    tags = dict(reversed(dynamic))
    strings = _Strings(elf, loads, tags)
    named = {
        tag: tuple(strings.at(value) for name, value in dynamic if name == tag)
        for tag in ("DT_NEEDED", "DT_SONAME", "DT_RPATH", "DT_RUNPATH")
    }
    return Elf(
        bits=bits,
        machine=str(header["e_machine"]),
        flags=header["e_flags"],
        soname=(*named["DT_SONAME"], "")[0],
        needed=named["DT_NEEDED"],
        rpath=_paths(named["DT_RPATH"]),
        runpath=_paths(named["DT_RUNPATH"]),
        interpreter=interpreter,
        versions=tuple(_versions_needed(elf, loads, tags, strings)),
        provides=tuple(_versions_defined(elf, loads, tags, strings)),
        alignments=tuple(load["p_align"] for load in loads),
        textrel="DT_TEXTREL" in tags or bool(tags.get("DT_FLAGS", 0) & _DF_TEXTREL),
        execstack=execstack,
        android_api=android_api,
    )


def _whole(header: Any, size: int) -> None:
    for what, offset, count, entry in (
        ("program headers", "e_phoff", "e_phnum", "e_phentsize"),
        ("section headers", "e_shoff", "e_shnum", "e_shentsize"),
    ):
        end = header[offset] + header[count] * header[entry]
        if header[offset] and end > size:
            raise _Damage(f"truncated: the {what} end at byte {end} of {size}")


def _dynamic(elf: ELFFile, offset: int, size: int) -> Iterator[tuple[Any, int]]:
    entry = elf.structs.Elf_Dyn
    for index in range(min(size // entry.sizeof(), _MOST_ENTRIES)):
        parsed = _at(elf, entry, offset + index * entry.sizeof())
        if parsed["d_tag"] == "DT_NULL":
            return
        yield parsed["d_tag"], parsed["d_val"]


def _at(elf: ELFFile, struct_: Any, offset: int) -> Any:
    from elftools.common.utils import struct_parse

    return struct_parse(struct_, elf.stream, stream_pos=offset)


def _offset_of(address: int, loads: list[Any]) -> int:
    for load in loads:
        if load["p_vaddr"] <= address < load["p_vaddr"] + load["p_filesz"]:
            return int(address - load["p_vaddr"] + load["p_offset"])
    raise _Damage(f"address {address:#x} of the dynamic segment is in no loaded segment")


class _Strings:
    """The dynamic string table."""

    def __init__(self, elf: ELFFile, loads: list[Any], tags: dict[Any, int]) -> None:
        self._stream = elf.stream
        self._start = _offset_of(tags["DT_STRTAB"], loads) if "DT_STRTAB" in tags else None
        self._size = tags.get("DT_STRSZ", 0)

    def at(self, index: int) -> str:
        if self._start is None:
            raise _Damage("the dynamic segment has names and no string table")
        if index >= self._size:
            raise _Damage(f"name {index:#x} is beyond the string table of {self._size:#x} bytes")
        self._stream.seek(self._start + index)
        raw, end, _ = self._stream.read(min(_MOST_STRING, self._size - index)).partition(b"\0")
        if not end:
            raise _Damage(f"name {index:#x} has no end")
        return str(raw, "utf-8")


def _paths(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for value in values if value for part in value.split(":"))


def _chain(elf: ELFFile, struct_: Any, offset: int, count: int, next_: str) -> Iterator[tuple[int, Any]]:
    for _ in range(min(count, _MOST_ENTRIES)):
        entry = _at(elf, struct_, offset)
        yield offset, entry
        if not entry[next_]:
            return
        offset += entry[next_]


def _versions_needed(
    elf: ELFFile, loads: list[Any], tags: dict[Any, int], strings: _Strings
) -> Iterator[tuple[str, str]]:
    if "DT_VERNEED" not in tags:
        return
    start = _offset_of(tags["DT_VERNEED"], loads)
    structs = elf.structs
    for offset, need in _chain(elf, structs.Elf_Verneed, start, tags.get("DT_VERNEEDNUM", 0), "vn_next"):
        library = strings.at(need["vn_file"])
        first = offset + need["vn_aux"]
        for _, aux in _chain(elf, structs.Elf_Vernaux, first, need["vn_cnt"], "vna_next"):
            yield library, strings.at(aux["vna_name"])


def _versions_defined(
    elf: ELFFile, loads: list[Any], tags: dict[Any, int], strings: _Strings
) -> Iterator[str]:
    if "DT_VERDEF" not in tags:
        return
    start = _offset_of(tags["DT_VERDEF"], loads)
    structs = elf.structs
    for offset, entry in _chain(elf, structs.Elf_Verdef, start, tags.get("DT_VERDEFNUM", 0), "vd_next"):
        # The first auxiliary entry is the version's own name, further ones are its ancestors.
        if entry["vd_cnt"]:
            yield strings.at(_at(elf, structs.Elf_Verdaux, offset + entry["vd_aux"])["vda_name"])


def _android_api(elf: ELFFile, segment: Any) -> int | None:
    from elftools.elf.notes import iter_notes

    for note in iter_notes(elf, segment["p_offset"], segment["p_filesz"]):
        if note["n_name"] == "Android" and len(note["n_descdata"]) >= 4:
            return int.from_bytes(note["n_descdata"][:4], "little" if elf.little_endian else "big")
    return None
