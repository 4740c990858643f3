"""A small writer of shared libraries, so that no binary needs to be committed.

What it writes has what the loader reads: headers, program headers, a dynamic segment with its string
table, version needs and definitions, notes. It has no sections and no code.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

X86_64, AARCH64, HEXAGON = 62, 183, 164

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_NOTE, _PT_GNU_STACK = 1, 2, 3, 4, 0x6474E551
_NEEDED, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _TEXTREL, _RUNPATH = 1, 5, 6, 10, 14, 15, 22, 29
_VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF


@dataclass(frozen=True)
class Library:
    machine: int = X86_64
    flags: int = 0
    soname: str = ""
    needed: Sequence[str] = ()
    rpath: str = ""
    runpath: str = ""
    interpreter: str = ""
    versions: Mapping[str, Sequence[str]] | None = None
    """Library → symbol versions needed of it."""
    provides: Sequence[str] = ()
    alignment: int = 0x1000
    textrel: bool = False
    execstack: bool = False
    writable_code: bool = False
    android_api: int | None = None
    ndk: tuple[str, str] = ("r26c", "11394342")
    """In the Android note; empty texts leave only the API level there, as old NDKs do."""
    program: bool = False
    """Whether it is of type EXEC."""
    content: bytes = b""
    """Bytes that the loaded segment also holds: a build id, for one."""

    @property
    def wide(self) -> bool:
        return self.machine != HEXAGON

    def encode(self) -> bytes:
        return _Writer(self).encode()

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.encode())
        return path


def skel(arch: int, build_id: str = "", **more: object) -> Library:
    """The Hexagon half of the HTP backend."""
    return Library(
        machine=HEXAGON,
        flags=int(str(arch), 16),
        soname=f"libQnnHtpV{arch}Skel.so",
        content=build_id.encode() + b"\0",
        **more,  # type: ignore[arg-type]
    )


class _Writer:
    def __init__(self, library: Library) -> None:
        self.library = library
        self.names = b"\0"

    def name(self, text: str) -> int:
        at = len(self.names)
        self.names += text.encode() + b"\0"
        return at

    def encode(self) -> bytes:
        library = self.library
        wide = library.wide
        word = "<QQ" if wide else "<II"
        entries: list[tuple[int, int]] = [(_NEEDED, self.name(name)) for name in library.needed]
        for tag, text in (
            (_SONAME, library.soname),
            (_RPATH, library.rpath),
            (_RUNPATH, library.runpath),
        ):
            if text:
                entries.append((tag, self.name(text)))
        if library.textrel:
            entries.append((_TEXTREL, 0))
        needs = self._needs()
        defines = self._defines()
        interpreter = library.interpreter.encode() + b"\0" if library.interpreter else b""
        note = b""
        if library.android_api is not None:
            texts = b"".join(text.encode().ljust(64, b"\0") for text in library.ndk if text)
            level = struct.pack("<I", library.android_api)
            note = struct.pack("<III8s", 8, 4 + len(texts), 1, b"Android") + level + texts

        kinds = [_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK]
        kinds += [_PT_INTERP] * bool(interpreter) + [_PT_NOTE] * bool(note)
        at = (64 if wide else 52) + len(kinds) * (56 if wide else 32)
        body = b""
        places: dict[str, int] = {}
        for key, blob in (
            ("interpreter", interpreter),
            ("note", note),
            ("needs", needs),
            ("defines", defines),
            ("names", self.names),
            ("content", library.content),
        ):
            body += b"\0" * (-(at + len(body)) % 8)
            places[key] = at + len(body)
            body += blob
        body += b"\0" * (-(at + len(body)) % 8)
        entries += [(_STRTAB, places["names"]), (_STRSZ, len(self.names)), (_SYMTAB, 0)]
        if needs:
            entries += [(_VERNEED, places["needs"]), (_VERNEEDNUM, len(library.versions or {}))]
        if defines:
            entries += [(_VERDEF, places["defines"]), (_VERDEFNUM, len(library.provides))]
        dynamic = b"".join(struct.pack(word, *entry) for entry in [*entries, (0, 0)])
        dynamic_at = at + len(body)
        body += dynamic
        size = at + len(body)

        spans = {
            # Writable: the loader puts addresses into the dynamic segment.
            _PT_LOAD: (0, size, 7 if library.writable_code else 6, library.alignment),
            _PT_DYNAMIC: (dynamic_at, len(dynamic), 6, 8),
            _PT_GNU_STACK: (0, 0, 7 if library.execstack else 6, 16),
            _PT_INTERP: (places["interpreter"], len(interpreter), 4, 1),
            _PT_NOTE: (places["note"], len(note), 4, 4),
        }
        headers = b"".join(program_header(kind, *spans[kind], wide=wide) for kind in kinds)
        kind = 2 if library.program else 3
        return elf_header(library.machine, library.flags, len(kinds), wide=wide, kind=kind) + headers + body

    def _needs(self) -> bytes:
        versions = self.library.versions or {}
        out = b""
        for index, (library, names) in enumerate(versions.items()):
            following = 16 + 16 * len(names) if index + 1 < len(versions) else 0
            out += struct.pack("<HHIII", 1, len(names), self.name(library), 16, following)
            for place, name in enumerate(names):
                more = 16 if place + 1 < len(names) else 0
                out += struct.pack("<IHHII", _hashed(name), 0, place + 2, self.name(name), more)
        return out

    def _defines(self) -> bytes:
        out = b""
        for index, name in enumerate(self.library.provides):
            following = 28 if index + 1 < len(self.library.provides) else 0
            out += struct.pack("<HHHHIII", 1, 0, index + 1, 1, _hashed(name), 20, following)
            out += struct.pack("<II", self.name(name), 0)
        return out


def _hashed(name: str) -> int:
    """As ELF's tables of symbols and versions do."""
    value = 0
    for letter in name.encode():
        value = (value << 4) + letter
        high = value & 0xF000_0000
        value = (value ^ high >> 24) & ~high
    return value


def elf_header(
    machine: int, flags: int, segments: int, *, wide: bool, sections: int = 0, table: int = 0, kind: int = 3
) -> bytes:
    """`table`: where the section headers begin."""
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1, 1]) + b"\0" * 9
    size, segment, section = (64, 56, 64) if wide else (52, 32, 40)
    shape = (section, sections, sections - 1) if sections else (0, 0, 0)
    return ident + struct.pack(
        "<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH",
        *(kind, machine, 1, 0, size, table, flags, size, segment, segments, *shape),
    )


def program_header(
    kind: int, offset: int, size: int, flags: int, align: int, *, wide: bool, zeros: int = 0
) -> bytes:
    """`zeros`: how many bytes the segment has in memory beyond those of the file."""
    if wide:
        return struct.pack("<IIQQQQQQ", kind, flags, offset, offset, offset, size, size + zeros, align)
    return struct.pack("<IIIIIIII", kind, offset, offset, offset, size, size + zeros, flags, align)
