"""Entries of the memory that are wrong, and whole: altered by hand so that all digests fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ci.engine.inputs import key_of
from provisioning.base.files import hash_file

Document = dict[str, Any]


def entries(store: Path, kind: str) -> list[Path]:
    return sorted((store / "cache/memo" / kind).glob("??/*/*.json"))


def alter(entry: Path, change: Callable[[Document], object]) -> None:
    """Change what an entry says."""
    document = json.loads(entry.read_text(encoding="utf-8"))["document"]
    change(document)
    entry.write_text(json.dumps({"digest": key_of(document), "document": document}), encoding="utf-8")


def alter_file(entry: Path, name: str, content: bytes) -> None:
    """Change a file of its result."""

    def change(document: Document) -> None:
        file = entry.parent / document["folder"] / name
        file.write_bytes(content)
        document["files"][name] = hash_file(file)

    alter(entry, change)
