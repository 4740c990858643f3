"""Small Hexagon libraries with what signing must keep: load segments, dynamic segment, symbols, sections."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

PAGE = 0x1000
HEXAGON = 164


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
        header_size, phdr_size, shdr_size = (64, 56, 64) if wide else (52, 32, 40)
        count = 5
        text_end = header_size + count * phdr_size + 40 * len(self.content)
        text = bytearray(text_end)
        text[header_size + count * phdr_size :] = self.content * 40
        data_at = -(-text_end // PAGE) * PAGE
        data = bytes(range(256)) * 3
        dynamic = struct.pack("<QQQQ" if wide else "<IIII", 14, 1, 0, 0)
        strings = b"\0libQnnTest.so\0skel_open\0"
        names = b"\0.text\0.data\0.bss\0.strtab\0.shstrtab\0"
        body = bytearray(text + bytes(data_at - text_end) + dynamic + data)
        end = len(body)
        loads = [
            (1, 0, 0, text_end, text_end, 5, PAGE),
            (1, data_at, data_at, end - data_at, end - data_at + 64, 6, PAGE),
            (2, data_at, data_at, len(dynamic), len(dynamic), 6, 4),
            (0x6474E552, data_at, data_at, 64, 64, 4, 8),
            (7, end, end, 0, 24, 4, 8),
        ]
        for index, (kind, offset, address, filesz, memsz, flags, align) in enumerate(loads):
            packed = (
                struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, filesz, memsz, align)
                if wide
                else struct.pack("<8I", kind, offset, address, address, filesz, memsz, flags, align)
            )
            at = header_size + index * phdr_size
            body[at : at + phdr_size] = packed
        table = 0
        shnum = 0
        if self.sections:
            strings_at = len(body)
            body += strings
            names_at = len(body)
            body += names
            body += bytes(-len(body) % 8)
            table = data_at + 64 if self.section_table_inside else len(body)
            headers = [
                (0, 0, 0, 0, 0, 0),
                (1, 1, 6, text_end - 64, text_end - 64, 64),
                (7, 1, 3, data_at, data_at, end - data_at),
                (13, 8, 3, end, end, 64),
                (18, 3, 0, 0, strings_at, len(strings)),
                (26, 3, 0, 0, names_at, len(names)),
            ]
            shnum = len(headers)
            packed_table = b"".join(
                struct.pack("<IIQQQQIIQQ" if wide else "<10I", name, kind, flags, addr, off, size, 0, 0, 1, 0)
                for name, kind, flags, addr, off, size in headers
            )
            body[table : table + len(packed_table)] = packed_table
        ident = b"\x7fELF" + bytes([2 if wide else 1, 1, 1]) + bytes(9)
        head = struct.pack(
            "<16sHHIQQQIHHHHHH" if wide else "<16sHHIIIIIHHHHHH",
            ident,
            3,
            HEXAGON,
            1,
            0,
            header_size,
            table,
            int(str(self.arch), 16),
            header_size,
            phdr_size,
            count,
            shdr_size if shnum else 0,
            shnum,
            max(0, shnum - 1),
        )
        body[: len(head)] = head
        return bytes(body)

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.encode())
        return path
