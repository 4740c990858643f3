"""Zip files made by hand, so that each field can lie."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

FILE, PROGRAM, FOLDER, LINK = 0o100644, 0o100755, 0o040755, 0o120777
STORED, DEFLATED = 0, 8


def deflated(data: bytes) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(data) + deflate.flush()


@dataclass(frozen=True)
class Item:
    """One member. What is None is computed truthfully; what is given is written as it is.

    `local` overrides fields in the local header only, `descriptor` the bytes after the data."""

    name: str | bytes
    data: bytes = b"content"
    mode: int = FILE
    method: int = DEFLATED
    flags: int = 0
    made_by: int = 3
    size: int | None = None
    compressed_size: int | None = None
    crc: int | None = None
    raw: bytes | None = None
    extra: bytes = b""
    offset: int | None = None
    disk: int = 0
    descriptor: bytes = b""
    local: dict[str, int | bytes] = field(default_factory=dict)

    def described(self, layout: str = "<4s3L") -> Item:
        """The same member as a writer to a pipe makes it: sizes follow the data."""
        raw = self._raw()
        values = (self._crc(), len(raw), len(self.data))
        after = struct.pack(layout, *((b"PK\7\x08",) if "4s" in layout else ()), *values)
        return replace(
            self, flags=self.flags | 8, descriptor=after, local={"crc": 0, "compressed_size": 0, "size": 0}
        )

    def _raw(self) -> bytes:
        if self.raw is not None:
            return self.raw
        return self.data if self.method == STORED else deflated(self.data)

    def _crc(self) -> int:
        return zlib.crc32(self.data) if self.crc is None else self.crc


def link(name: str, target: str) -> Item:
    return Item(name, target.encode(), mode=LINK, method=STORED)


def folder(name: str) -> Item:
    return Item(name, b"", mode=FOLDER, method=STORED)


def build(*items: Item, comment: bytes = b"", zip64: bool = False, **end: int) -> bytes:
    """The archive's bytes. `end` overrides fields of the end record: count, here, disk, size, start."""
    out = bytearray()
    directory = bytearray()
    for item in items:
        raw = item._raw()
        name = item.name.encode() if isinstance(item.name, str) else item.name
        fields: dict[str, int | bytes] = {
            "signature": b"PK\3\4",
            "flags": item.flags,
            "method": item.method,
            "crc": item._crc(),
            "compressed_size": len(raw) if item.compressed_size is None else item.compressed_size,
            "size": len(item.data) if item.size is None else item.size,
            "name": name,
            "extra": b"",
        }
        here = {**fields, **item.local}
        local_name, local_extra = bytes(here["name"]), bytes(here["extra"])
        offset = len(out) if item.offset is None else item.offset
        out += struct.pack(
            "<4s5H3L2H", here["signature"], 20, here["flags"], here["method"], 0, 33,
            here["crc"], here["compressed_size"], here["size"], len(local_name), len(local_extra),
        )  # fmt: skip
        out += local_name + local_extra + raw + item.descriptor
        directory += struct.pack(
            "<4s2B5H3L5H2L", b"PK\1\2", 20, item.made_by, 20, fields["flags"], fields["method"], 0, 33,
            fields["crc"], fields["compressed_size"], fields["size"], len(name), len(item.extra), 0,
            item.disk, 0, (item.mode << 16) & 0xFFFFFFFF, offset,
        )  # fmt: skip
        directory += name + item.extra
    values = {"disk": 0, "count": len(items), "size": len(directory), "start": len(out), **end}
    values.setdefault("here", values["count"])
    out += directory
    order = (values["here"], values["count"], values["size"], values["start"])
    if zip64:
        record = len(out)
        out += struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, *order)
        out += struct.pack("<4sLQL", b"PK\6\7", 0, record, 1)
        order = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    out += struct.pack("<4s4H2LH", b"PK\5\6", values["disk"], 0, *order, len(comment)) + comment
    return bytes(out)


def save(path: Path, *items: Item, **options: Any) -> Path:
    path.write_bytes(build(*items, **options))
    return path


def tree(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Everything below a directory: path to kind, permission bits and content or link target."""
    entries: dict[str, tuple[str, int, bytes]] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            entries[name] = ("link", 0o777, str(path.readlink()).encode())
        elif path.is_dir():
            entries[name] = ("directory", path.stat().st_mode & 0o7777, b"")
        else:
            entries[name] = ("file", path.stat().st_mode & 0o7777, path.read_bytes())
    return entries
