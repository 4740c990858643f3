"""MBN containers, the content of a signed ELF's hash segment: versions 6 and 7 are read, 6 is written.

Older ones are of chips before Hexagon V68, which QNN's HTP does not run on.
All numbers are little-endian u32. Layout: docs/signing.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from ci.signing.elf_headers import BadLibrary

ABSENT = 0xFFFFFFFF
METADATA_SIZE = 120
V6_HEADER_SIZE = 4 * 12
V7_COMMON_SIZE = 24
V7_METADATA = struct.Struct("<18I8Q5I64sI")
V7_METADATA_VERSION = 2
NEWEST_V6_METADATA = 1
PRODUCTION_STATE = 0xD << 32
"""The life cycle of devices that people buy, in metadata of version 7."""

HEADER = "MBN header"
COMMON = "common metadata"
QTI_METADATA = "QTI metadata"
METADATA = "metadata"
HASHES = "hash table"
QTI_SIGNATURE = "QTI signature"
QTI_CERTIFICATES = "QTI certificates"
SIGNATURE = "signature"
CERTIFICATES = "certificates"
TRAILING = "trailing bytes"

_V6_FIELDS = (
    "image_id version qti_signature_size qti_certificates_size total_size hashes_size signature_address "
    "signature_size certificates_address certificates_size qti_metadata_size metadata_size"
)
_V7_FIELDS = (
    "image_id version common_size qti_metadata_size metadata_size hashes_size "
    "qti_signature_size qti_certificates_size signature_size certificates_size"
)
_FIELDS: Mapping[int, tuple[str, ...]] = {6: tuple(_V6_FIELDS.split()), 7: tuple(_V7_FIELDS.split())}
_V6_PARTS = (
    (QTI_METADATA, "qti_metadata_size"),
    (METADATA, "metadata_size"),
    (HASHES, "hashes_size"),
    (QTI_SIGNATURE, "qti_signature_size"),
    (QTI_CERTIFICATES, "qti_certificates_size"),
    (SIGNATURE, "signature_size"),
    (CERTIFICATES, "certificates_size"),
)
_PARTS: Mapping[int, tuple[tuple[str, str], ...]] = {6: _V6_PARTS, 7: ((COMMON, "common_size"), *_V6_PARTS)}
_COMMON_FIELDS = ("major", "minor", "software_id", "secondary_id", "hash_algorithm", "measurement_register")
_V7_DIGESTS = {3: "sha384"}


@dataclass(frozen=True, slots=True)
class FlagLayout:
    """The flags word of a metadata version, as mbn-rs describes it: Qualcomm does not."""

    offset: int
    """Where the word begins in the metadata."""
    off: int
    """The bits that say that a flag is off."""
    single_device: int
    """The bits that bind a signature to the serial numbers of devices."""
    names: tuple[str, ...]
    """A flag's name for each bit, from the lowest."""


FLAGS: Mapping[int, FlagLayout] = {
    6: FlagLayout(
        offset=28,
        off=0,
        single_device=1 << 2 | 1 << 5 | 1 << 7,
        names=(
            *("rot_en", "use_soc_hw_version", "use_serial_number", "oem_id_independent"),
            *("root_revoke_activate_enable",) * 2,
            *("uie_key_switch_enable",) * 2,
            *("debug",) * 2,
            *("use_hw_id", "model_id_independent"),
        ),
    ),
    7: FlagLayout(
        offset=220,
        off=0x155555,
        single_device=1 << 7,
        names=tuple(
            name
            for name in (
                *("use_soc_hw_version", "use_feature_id", "use_hw_id", "use_serial_number", "use_oem_id"),
                *("use_model_id", "use_soc_lifecycle_state", "use_oem_lifecycle_state"),
                *("use_oem_root_cert_hash", "debug", "rot_en"),
            )
            for _ in range(2)
        ),
    ),
}


def flag_names(version: int, flags: int) -> str:
    """The set bits of a flags word, each by its value and its name."""
    names = FLAGS[version].names
    bits = (bit for bit in range(32) if flags >> bit & 1)
    return ", ".join(
        f"{1 << bit:#x} ({names[bit] if bit < len(names) else 'no public name'})" for bit in bits
    )


def _single_devices(version: int, serials: tuple[int, ...], flags: int) -> str:
    """Say which single devices metadata binds a signature to; empty for none."""
    if serials:
        return f"it is bound to single devices ({', '.join(map(hex, serials))})"
    binding = flags & FLAGS[version].single_device
    return f"it is bound to single devices by its flags {flag_names(version, binding)}" if binding else ""


@dataclass(frozen=True, slots=True)
class MbnPart:
    name: str
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the signature is for (version 6)."""

    major: int = 0
    minor: int = 0
    software_id: int = 0
    hardware_id: int = 0
    oem_id: int = 0
    model_id: int = 0
    app_id: int = 0
    flags: int = 0
    soc_versions: tuple[int, ...] = ()
    serials: tuple[int, ...] = ()
    root_index: int = 0
    anti_rollback: int = 0
    note: str = ""
    """Text after the public 120 bytes. A rehearsal writes its statement there."""

    @property
    def restriction(self) -> str:
        """Say why it is not for all devices that people buy; empty if it may be."""
        return _single_devices(6, self.serials, self.flags)

    def pack(self) -> bytes:
        if len(self.soc_versions) > 12 or len(self.serials) > 8:
            raise ValueError("metadata holds at most 12 SoC versions and 8 serials")
        ids = (self.software_id, self.hardware_id, self.oem_id, self.model_id, self.app_id)
        versions = (*self.soc_versions, *(0,) * (12 - len(self.soc_versions)))
        serials = (*self.serials, *(0,) * (8 - len(self.serials)))
        last = (self.root_index, self.anti_rollback)
        fixed = struct.pack("<30I", self.major, self.minor, *ids, self.flags, *versions, *serials, *last)
        note = self.note.encode("ascii")
        return fixed + note + b"\0" * (-len(note) % 4)


@dataclass(frozen=True, slots=True)
class Container:
    version: int
    fields: Mapping[str, int]
    parts: tuple[MbnPart, ...]
    problems: tuple[str, ...]
    """Sizes that contradict each other, and bytes that belong to no part."""
    common: Mapping[str, int]
    """Common metadata (version 7); empty in other versions."""

    def part(self, name: str) -> MbnPart:
        return next((p for p in self.parts if p.name == name), MbnPart(name, 0, 0))

    @property
    def digest(self) -> str | None:
        """hashlib's name for the hash table's algorithm; None if the public format does not define it."""
        if self.version == 7:
            return _V7_DIGESTS.get(self.common.get("hash_algorithm", 0))
        return "sha384"

    @property
    def signed_end(self) -> int:
        """Where the hash table ends. A signature covers header, metadata and hash table."""
        return self.part(HASHES).end


def parse(segment: bytes) -> Container:
    """Parse a hash segment. Raises BadLibrary for an unknown version or parts that do not fit the segment."""
    if len(segment) < 8:
        raise BadLibrary(HEADER, f"the hash segment has only {len(segment)} bytes")
    version = struct.unpack_from("<I", segment, 4)[0]
    if version not in _FIELDS:
        raise BadLibrary(HEADER, f"version: expected 6 or 7, found {version}")
    names = _FIELDS[version]
    start = 4 * len(names)
    if len(segment) < start:
        raise BadLibrary(
            HEADER, f"version {version} needs {start} bytes, the hash segment has {len(segment)}"
        )
    fields = dict(zip(names, struct.unpack_from(f"<{len(names)}I", segment), strict=True))
    parts = [MbnPart(HEADER, 0, start)]
    at = start
    for name, size in _PARTS[version]:
        end = at + fields[size]
        if end > len(segment):
            raise BadLibrary(name, f"ends at byte {end} of a hash segment of {len(segment)} bytes")
        parts.append(MbnPart(name, at, end))
        at = end
    problems = []
    if "total_size" in fields and fields["total_size"] != at - start:
        problems.append(f"the header says {fields['total_size']} bytes in all, its parts have {at - start}")
    if at < len(segment):
        parts.append(MbnPart(TRAILING, at, len(segment)))
        problems.append(f"{len(segment) - at} bytes after the last part belong to nothing")
    common: dict[str, int] = {}
    if version == 7:
        if fields["common_size"] < V7_COMMON_SIZE:
            raise BadLibrary(COMMON, f"expected {V7_COMMON_SIZE} bytes, found {fields['common_size']}")
        common = dict(zip(_COMMON_FIELDS, struct.unpack_from("<6I", segment, start), strict=True))
    return Container(version, fields, tuple(parts), tuple(problems), common)


def known_metadata(version: int, data: bytes) -> Metadata | V7Metadata | None:
    """Read what a metadata part binds a signature to; None for a layout that is not public."""
    if version == 7:
        return parse_v7_metadata(data)
    if len(data) < METADATA_SIZE:
        return None
    metadata = parse_metadata(data)
    return metadata if metadata.major <= NEWEST_V6_METADATA else None


def parse_metadata(data: bytes) -> Metadata:
    """Read version 6's metadata, from either metadata part."""
    if len(data) < METADATA_SIZE:
        raise BadLibrary(METADATA, f"expected at least {METADATA_SIZE} bytes, found {len(data)}")
    numbers = struct.unpack_from("<30I", data)
    major, minor, software, hardware, oem, model, app, flags = numbers[:8]
    return Metadata(
        major,
        minor,
        software,
        hardware,
        oem,
        model,
        app,
        flags,
        soc_versions=tuple(n for n in numbers[8:20] if n),
        serials=tuple(n for n in numbers[20:28] if n),
        root_index=numbers[28],
        anti_rollback=numbers[29],
        note=printable(data[METADATA_SIZE:].rstrip(b"\0").decode("ascii", "backslashreplace")),
    )


@dataclass(frozen=True, slots=True)
class V7Metadata:
    """What a signature of version 7 is for, as far as verification asks for it."""

    anti_rollback: int
    serials: tuple[int, ...]
    oem_id: int
    model_id: int
    life_cycle: int
    """The state of the devices that it is for; 0 if it names none."""
    flags: int

    @property
    def restriction(self) -> str:
        """Say why it is not for all devices that people buy; empty if it may be."""
        if self.life_cycle not in (0, PRODUCTION_STATE):
            return f"it is for devices of life cycle {self.life_cycle:#x}, not for those in production"
        return _single_devices(7, self.serials, self.flags)


def parse_v7_metadata(data: bytes) -> V7Metadata | None:
    """The OEM's metadata of version 7; None for a layout that is not public."""
    if len(data) != V7_METADATA.size:
        return None
    fields = V7_METADATA.unpack(data)
    if fields[0] != V7_METADATA_VERSION:
        return None
    serials = tuple(number for number in fields[18:26] if number)
    return V7Metadata(
        anti_rollback=fields[2],
        serials=serials,
        oem_id=fields[26],
        model_id=fields[27],
        life_cycle=fields[28] | fields[29] << 32,
        flags=fields[32],
    )


def v6_signed_part(metadata: bytes, hashes: bytes, signature_size: int, certificates_size: int) -> bytes:
    """Header, metadata and hash table: the part that is signed. Signature and certificates follow it."""
    total = len(metadata) + len(hashes) + signature_size + certificates_size
    sizes = (0, 0, total, len(hashes), ABSENT, signature_size, ABSENT, certificates_size, 0, len(metadata))
    return struct.pack("<12I", 0, 6, *sizes) + metadata + hashes


def printable(text: str) -> str:
    """The text with control characters escaped, so that it cannot steer a terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
