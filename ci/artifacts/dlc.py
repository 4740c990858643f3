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

from ci.artifacts.bounds import Budget
from provisioning.base.errors import CheckFailed
from provisioning.components import BUILD_ID

MARK = b"PK\x03\x04"
MODEL = "model"
_MODEL_MARK, _PARAMETERS_MARK = b"NETD", b"NETP"
_MARK_AT = 12
_MOST_JSON = 1 << 21
_ENTRY, _MOST_MEMBERS = b"PK\x01\x02", 1024
"""How an entry of the directory begins. Files of QNN have about ten."""
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
        members = _members(content)
    except (zipfile.BadZipFile, struct.error, RuntimeError) as error:
        raise ValueError(f"a DLC that cannot be read: {error}") from error
    return {cache[1]: bytes(data) for name, data in members.items() if (cache := _CACHE.fullmatch(name))}


def read_dlc(path: Path) -> Dlc:
    """Raises CheckFailed for a damaged file or another kind of file."""
    try:
        return _read(path)
    except (
        zipfile.BadZipFile,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        struct.error,
        RuntimeError,
    ) as error:
        raise CheckFailed(
            f"{path}: expected a DLC, found {error or type(error).__name__}",
            fix="copy it again, or write it again with the tool that wrote it",
        ) from error


def _read(path: Path) -> Dlc:
    content = path.read_bytes()
    members = _members(content)
    chips = tuple(cache[1].upper() for member in members if (cache := _CACHE.fullmatch(member)))
    model = members.get(MODEL)
    if model is None and not chips:
        raise ValueError(f"no member `{MODEL}` in it: {', '.join([*members][:10]) or 'it is empty'}")
    marks = {MODEL: _MODEL_MARK, "model.params": _PARAMETERS_MARK}
    for name, mark in marks.items():
        if name in members and members[name][_MARK_AT : _MARK_AT + 4] != mark:
            raise ValueError(f"`{name}` does not begin as one does: {members[name][:16].hex(' ')}")
    history = next((data for name, data in members.items() if name.startswith("dlc.metadata.history")), b"{}")
    written = json.loads(bytes(history[:_MOST_JSON]))
    steps = written.get("dlcGenerationInfo") or [{}]
    command = steps[-1].get("converterCommand", {})
    return Dlc(
        len(content),
        {name: len(data) for name, data in members.items()},
        str(command.get("tool", "")),
        str(command.get("converterVersion", ""))
        or ", ".join(sorted(raw.decode() for raw in Budget(len(content)).distinct(BUILD_ID, content))),
        str(written.get("header", {}).get("timestamp", "")),
        chips,
    )


def _members(content: bytes) -> dict[str, memoryview]:
    """Read them here: zipfile would refuse them because their checksums are zero."""
    if (count := content.count(_ENTRY)) > _MOST_MEMBERS:
        raise ValueError(f"{count:,} members")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    whole, end, places = memoryview(content), 0, {}
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"`{entry.filename}` is compressed")
        if entry.header_offset < end:
            raise ValueError(f"`{entry.filename}` begins inside another member, which ends at byte {end}")
        name, extra = struct.unpack_from("<HH", content, entry.header_offset + 26)
        start = entry.header_offset + 30 + name + extra
        end = start + entry.file_size
        if end > len(content):
            raise ValueError(f"`{entry.filename}` ends at byte {end} of {len(content)}")
        places[entry.filename] = whole[start:end]
    return {name: places[name] for name in archive.namelist()}
