"""Files of the user's or the repository's that we write anew."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """In one step: who reads, is killed or has no room finds the old text or the new, and nothing beside it.

    A link stays one, and a file keeps its mode."""
    real = Path(os.path.realpath(path))
    real.parent.mkdir(parents=True, exist_ok=True)
    part = real.with_name(f".{real.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        with suppress(FileNotFoundError):
            part.chmod(real.stat().st_mode & 0o7777)
        part.replace(real)
    finally:
        part.unlink(missing_ok=True)
