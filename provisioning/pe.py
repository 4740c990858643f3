"""What a Windows library (PE) says of itself: its machine, its version resource, what it imports."""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pefile

ARM64 = 0xAA64
MACHINES = {ARM64: "Arm64", 0x8664: "x86-64", 0x14C: "x86", 0xA641: "Arm64EC"}
SUFFIX = ".dll"
_VERSION_INFO = "VS_VERSION_INFO\0".encode("utf-16-le")
_LONGEST_VERSION_INFO = 1 << 14
_EXPORT_NAME, _LONGEST_NAME = 12, 256


class BrokenPe(Exception):
    """The file is no whole PE file; `reason` says why."""

    @property
    def reason(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Pe:
    machine: int
    version: str = ""
    """The file's version, or the product's where that is the longer one: 2.49.40.260810104044."""
    needed: tuple[str, ...] = ()
    signed: bool = False
    """Whether it holds an Authenticode signature. Whether that holds is not checked."""
    own_name: str = ""
    """The name that its export directory says."""

    @property
    def machine_name(self) -> str:
        return MACHINES.get(self.machine, f"machine {self.machine:#x}")


def read(path: Path) -> Pe:
    """Raises BrokenPe, and OSError."""
    import pefile

    size = path.stat().st_size
    if size == 0:
        raise BrokenPe("it is empty")
    try:
        # Not opened by pefile, whose close() collects the garbage of the whole process.
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            pe = pefile.PE(data=data, fast_load=True)
            for section in pe.sections:
                end = section.PointerToRawData + section.SizeOfRawData
                if end > size:
                    raise BrokenPe(f"truncated: a section ends at byte {end} of {size}")
            security = pe.OPTIONAL_HEADER.DATA_DIRECTORY[4]
            if security.VirtualAddress + security.Size > size:
                raise BrokenPe(f"truncated: its signature ends beyond byte {size}")
            names = ("IMPORT", "DELAY_IMPORT")
            wanted = [pefile.DIRECTORY_ENTRY[f"IMAGE_DIRECTORY_ENTRY_{name}"] for name in names]
            pe.parse_data_directories(directories=wanted)
            imports = [
                *getattr(pe, "DIRECTORY_ENTRY_IMPORT", ()),
                *getattr(pe, "DIRECTORY_ENTRY_DELAY_IMPORT", ()),
            ]
            return Pe(
                pe.FILE_HEADER.Machine,
                _version(data),
                tuple(sorted({entry.dll.decode("ascii", "replace") for entry in imports})),
                security.Size > 0,
                _own_name(pe),
            )
    except (pefile.PEFormatError, AttributeError, IndexError) as error:
        raise BrokenPe(str(error) or type(error).__name__) from error


def _own_name(pe: pefile.PE) -> str:
    exports = pe.OPTIONAL_HEADER.DATA_DIRECTORY[0].VirtualAddress
    place = pe.get_dword_at_rva(exports + _EXPORT_NAME) if exports else None
    return pe.get_string_at_rva(place, _LONGEST_NAME).decode("ascii", "replace") if place else ""


def _version(data: mmap.mmap) -> str:
    """From the strings of the version resource, by their names: pefile reads every resource for them."""
    begin = data.find(_VERSION_INFO)
    strings = data[begin : begin + _LONGEST_VERSION_INFO] if begin >= 0 else b""
    versions = [_text_after(strings, name) for name in ("ProductVersion", "FileVersion")]
    return max((version for version in versions if re.fullmatch(r"[\d._]+", version)), key=len, default="")


def _text_after(strings: bytes, name: str) -> str:
    rest = strings.partition(f"{name}\0".encode("utf-16-le"))[2]
    return rest[: len(rest) & ~1].decode("utf-16-le", "replace").lstrip("\0").partition("\0")[0].strip()
