"""What an order says of its work, for both sides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

WRITTEN = ("into", "folder", "scratch")
"""The folders in an order that its work writes to."""
WRITTEN_FILES = ("path", "log")


def folders_of(order: Mapping[str, Any]) -> list[Path]:
    """The folders that an order names for its work to write to."""
    given = {name: Path(value) for name, value in order.items() if value and isinstance(value, str)}
    folders = [given[name] for name in WRITTEN if name in given]
    return [*folders, *(given[name].parent for name in WRITTEN_FILES if name in given)]
