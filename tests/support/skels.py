"""Small Hexagon libraries with what signing must keep: load segments, dynamic segment, symbols, sections."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from tests.support.elves import HEXAGON, elf_header, program_header

PAGE = 0x1000
SEGMENTS = 5


@dataclass(frozen=True)
class Skel:
    bits: int = 32
    arch: int = 75
    content: bytes = b"code of the skel "
    sections: bool = True
    section_table_inside: bool = False

    def encode(self) -> bytes:
        """Text and data to load, a dynamic and a relro segment inside them, an empty one."""
        wide = self.bits == 64
        start = 64 + SEGMENTS * 56 if wide else 52 + SEGMENTS * 32
        text = self.content * 40
        text_end = start + len(text)
        data_at = -(-text_end // PAGE) * PAGE
        dynamic = struct.pack("<QQQQ" if wide else "<IIII", 14, 1, 0, 0)
        body = bytearray(bytes(start) + text + bytes(data_at - text_end) + dynamic + bytes(range(256)) * 3)
        end = len(body)
        headers = (
            program_header(1, 0, text_end, 5, PAGE, wide=wide)
            + program_header(1, data_at, end - data_at, 6, PAGE, wide=wide, zeros=64)
            + program_header(2, data_at, len(dynamic), 6, 4, wide=wide)
            + program_header(0x6474E552, data_at, 64, 4, 8, wide=wide)
            + program_header(7, end, 0, 4, 8, wide=wide, zeros=24)
        )
        table, count = self._add_sections(body, data_at, text_end, wide) if self.sections else (0, 0)
        flags = int(str(self.arch), 16)
        head = elf_header(HEXAGON, flags, SEGMENTS, wide=wide, sections=count, table=table) + headers
        body[: len(head)] = head
        return bytes(body)

    def _add_sections(self, body: bytearray, data_at: int, text_end: int, wide: bool) -> tuple[int, int]:
        """Where the table of sections is, and how many it has."""
        strings = b"\0libQnnTest.so\0skel_open\0"
        names = b"\0.text\0.data\0.bss\0.strtab\0.shstrtab\0"
        end = len(body)
        body += strings + names
        body += bytes(-len(body) % 8)
        table = data_at + 64 if self.section_table_inside else len(body)
        sections = [
            (0, 0, 0, 0, 0, 0),
            (1, 1, 6, text_end - 64, text_end - 64, 64),
            (7, 1, 3, data_at, data_at, end - data_at),
            (13, 8, 3, end, end, 64),
            (18, 3, 0, 0, end, len(strings)),
            (26, 3, 0, 0, end + len(strings), len(names)),
        ]
        form = "<IIQQQQIIQQ" if wide else "<10I"
        packed = b"".join(struct.pack(form, *section, 0, 0, 1, 0) for section in sections)
        body[table : table + len(packed)] = packed
        return table, len(sections)

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.encode())
        return path
