"""Names in native libraries that may be environment variables, which C code reads unseen."""

from __future__ import annotations

import contextlib
import mmap
import re
from functools import cache
from pathlib import Path

from provisioning.base.files import replace_text

_NAME = re.compile(rb"\0([A-Z][A-Z0-9_]{3,63})(?=\0)")


def is_native(path: str) -> bool:
    if path.endswith((".py", ".pyc", ".json", ".txt", ".raw")):
        return False
    with contextlib.suppress(OSError), Path(path).open("rb") as stream:
        return stream.read(4) == b"\x7fELF"
    return False


def names_in(path: str, digest: str, kept: Path) -> frozenset[str]:
    """The candidate names in a library with this digest; `folder` caches them."""
    file = kept / digest[:2] / f"{digest}.json"
    with contextlib.suppress(OSError):
        return frozenset(file.read_text(encoding="ascii").split())
    names = _search(path, digest)
    with contextlib.suppress(OSError):
        replace_text(file, " ".join(sorted(names)))
    return names


@cache
def _search(path: str, digest: str) -> frozenset[str]:
    with Path(path).open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as content:
        return frozenset(name.decode("ascii") for name in _NAME.findall(content))
