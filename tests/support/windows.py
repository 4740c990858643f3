"""Windows libraries as small as they can be."""

from __future__ import annotations

import struct

from provisioning.qnn_libraries import ARM64


def dll(machine: int = ARM64, content: bytes = b"", name: str = "") -> bytes:
    """A PE32+ library without sections; with exports, if it has a name."""
    dos = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    file_header = struct.pack("<HHIIIHH", machine, 0, 0, 0, 0, 240, 0x2022)
    optional = struct.pack("<HBBIIIII", 0x20B, 14, 0, 0, 0, 0, 0, 0x1000)
    optional += struct.pack("<QII", 0x180000000, 0x1000, 0x200).ljust(84, b"\0")
    exports = len(dos) + 4 + len(file_header) + 240
    optional += struct.pack("<III", 16, exports if name else 0, 40 if name else 0) + bytes(120)
    table = struct.pack("<12xI24x", exports + 40) + name.encode() + b"\0" if name else b""
    return dos + b"PE\0\0" + file_header + optional.ljust(240, b"\0") + table + content
