"""DLC files: QNN graphs before compilation, as libQnnIr.so writes them, and flexible contexts.

A DLC is a zip whose members are stored uncompressed. The writer leaves their checksums zero, so damage shows
only if a part cannot be read.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.errors import CheckFailed
from provisioning.build_id import BUILD_ID

MARK = b"PK\x03\x04"
MODEL = "model"
_MODEL_MARK, _PARAMETERS_MARK = b"NETD", b"NETP"
_MARK_AT = 12
_MOST_JSON = 1 << 24
_CACHE = re.compile(r"htp\.cache\.([a-z0-9]{1,32})\.\d{1,3}")


@dataclass(frozen=True, slots=True)
class Dlc:
    size: int
    members: dict[str, int]
    """Name → bytes."""
    tool: str
    """The tool that wrote it."""
    qnn: str
    """The QNN build of that tool; empty if not stated."""
    written: str
    chips: tuple[str, ...] = ()
    """The chips of a flexible context; none for an uncompiled graph."""


def contexts_by_chip(content: bytes) -> dict[str, bytes]:
    """The context of each chip in a flexible context, by the chip's name in lower case; empty for any other
    DLC.

    Raises ValueError for a damaged one."""
    if not content.startswith(MARK):
        return {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            caches = {_CACHE.fullmatch(each.filename): _member(content, each) for each in archive.infolist()}
    except (zipfile.BadZipFile, struct.error, RuntimeError) as error:
        raise ValueError(f"a DLC that cannot be read: {error}") from error
    return {cache[1]: data for cache, data in caches.items() if cache}


def read_dlc(path: Path) -> Dlc:
    """Raises CheckFailed for a damaged file or another kind of file."""
    try:
        return _read(path)
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, struct.error, RuntimeError) as error:
        raise CheckFailed(
            f"{path}: expected a DLC, found {error or type(error).__name__}",
            fix="write it again: python -m ci to-dlc MODEL.onnx -o model.dlc",
        ) from error


def _read(path: Path) -> Dlc:
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        members = {each.filename: _member(content, each) for each in archive.infolist()}
    chips = tuple(cache[1].upper() for member in members if (cache := _CACHE.fullmatch(member)))
    model = members.get(MODEL)
    if model is None and not chips:
        raise ValueError(f"no member `{MODEL}` in it: {', '.join(members) or 'it is empty'}")
    marks = {MODEL: _MODEL_MARK, "model.params": _PARAMETERS_MARK}
    for name, mark in marks.items():
        if name in members and members[name][_MARK_AT : _MARK_AT + 4] != mark:
            raise ValueError(f"`{name}` does not begin as one does: {members[name][:16].hex(' ')}")
    history = next((data for name, data in members.items() if name.startswith("dlc.metadata.history")), b"{}")
    written = json.loads(history[:_MOST_JSON])
    steps = written.get("dlcGenerationInfo") or [{}]
    command = steps[-1].get("converterCommand", {})
    return Dlc(
        len(content),
        {name: len(data) for name, data in members.items()},
        str(command.get("tool", "")),
        str(command.get("converterVersion", ""))
        or ", ".join(sorted({build_id.decode() for build_id in BUILD_ID.findall(content)})),
        str(written.get("header", {}).get("timestamp", "")),
        chips,
    )


def _member(content: bytes, info: zipfile.ZipInfo) -> bytes:
    """Read it here: zipfile would refuse it because its checksum is zero."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"`{info.filename}` is compressed")
    name, extra = struct.unpack_from("<HH", content, info.header_offset + 26)
    start = info.header_offset + 30 + name + extra
    if start + info.file_size > len(content):
        raise ValueError(f"`{info.filename}` ends at byte {start + info.file_size} of {len(content)}")
    return content[start : start + info.file_size]
