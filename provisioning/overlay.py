"""The overlay that `build_x86` makes for PYTHONPATH, and the file in it that names its source tree."""

from __future__ import annotations

import json
from pathlib import Path

from provisioning.base.files import replace_text
from provisioning.base.settings import DEFAULT_TARGET, dist_path

FOLDER = "overlay"
"""The overlay's name below dist/<target>/."""
DESCRIPTION = "overlay.json"
"""`{"schema": 1, "tree": "/path"}`: the ExecuTorch tree that the overlay links to, the only one that it may
be on PYTHONPATH for."""
OVERLAY = dist_path() / DEFAULT_TARGET / FOLDER


def describe(folder: Path, tree: Path) -> None:
    """Write the description into an overlay."""
    replace_text(folder / DESCRIPTION, json.dumps({"schema": 1, "tree": str(tree)}, indent=2) + "\n")


def tree_of(folder: Path) -> Path | None:
    """The tree that an overlay was made of; None where there is no overlay or its description is damaged."""
    try:
        data = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    known = isinstance(data, dict) and data.get("schema") == 1 and isinstance(data.get("tree"), str)
    return Path(data["tree"]) if known else None
