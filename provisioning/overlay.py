"""The overlay that `build_x86` makes for PYTHONPATH, and the file in it that names its source tree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from provisioning.base.documents import Model
from provisioning.base.files import replace_text
from provisioning.base.settings import DEFAULT_TARGET, ROOT

FOLDER = "overlay"
"""Its name below dist/<target>/."""
DESCRIPTION = "overlay.json"
OVERLAY = ROOT / "dist" / DEFAULT_TARGET / FOLDER


class Overlay(Model):
    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    tree: str
    """The ExecuTorch tree that the overlay links to: it may be on PYTHONPATH for this tree alone."""


def describe(folder: Path, tree: Path) -> None:
    """Write the description into an overlay."""
    text = Overlay.model_validate({"schema": 1, "tree": str(tree)}).model_dump_json(by_alias=True, indent=2)
    replace_text(folder / DESCRIPTION, f"{text}\n")


def tree_of(folder: Path) -> Path | None:
    """The tree that an overlay was made of; None where there is no overlay or its description is damaged."""
    try:
        text = (folder / DESCRIPTION).read_text(encoding="utf-8")
        return Path(Overlay.model_validate_json(text).tree)
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None
