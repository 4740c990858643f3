"""What a tree must hold by the pins in git, whatever its own inventory says.

The hash of a wheel says nothing of a tree once the wheel is gone. So `manifests/wheels.json` has the hash of
each file in the profiles' wheels; `nox -s lock` writes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from provisioning.base.documents import Model
from provisioning.base.settings import MANIFESTS
from provisioning.components import QNN_SDK
from provisioning.manifest import Component, Part
from provisioning.sources import Sha256
from provisioning.store.inventory import Inventory, Item, Origin
from provisioning.store.tree_plan import (
    GENERATED,
    READ_ONLY,
    READ_ONLY_EXECUTABLE,
    FileSelection,
    Placing,
    composed,
    definition_of,
    sdk_yaml,
    selection_of,
    tree_key,
)

LISTS = MANIFESTS / "wheels.json"


class Listed(Model):
    sha256: Sha256
    size: int
    executable: bool = False


class Lists(Model):
    schema_: Literal[1] = Field(default=1, alias="schema")
    wheels: dict[Sha256, dict[str, Listed]]
    """The files of each wheel, by its hash and their paths."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a tree is by its pins."""

    definition: str
    key: str
    selection: Mapping[str, tuple[str, ...]]
    items: tuple[Item, ...]

    @classmethod
    def of(cls, inventory: Inventory) -> Pinned:
        return cls(inventory.definition, inventory.key, inventory.selection, inventory.items)


def pinned_tree(name: str, component: Component, want: FileSelection) -> Pinned | None:
    """None if a part has no list."""
    selection = selection_of(component, want)
    parts = [part for part in component.parts if selection[part.name]]
    listed = {part.name: load_lists(LISTS).wheels.get(part.source.pin or "") for part in parts}
    of_parts = [_items(part, files, want) for part in parts if (files := listed[part.name]) is not None]
    if not parts or len(of_parts) < len(parts):
        return None
    items = composed(of_parts)
    if name == QNN_SDK and not any(item.path == "sdk.yaml" for item in items):
        origins = [
            Origin(part.name, part.source.name, part.source.pin or "", getattr(part.source, "size", 0), True)
            for part in parts
        ]
        text = sdk_yaml(component, origins, items).encode()
        digest = hashlib.sha256(text).hexdigest()
        items.append(Item("sdk.yaml", "file", len(text), digest, READ_ONLY, "", GENERATED))
    definition = definition_of(name, component)
    ordered = tuple(sorted(items, key=lambda item: item.path))
    return Pinned(definition, tree_key(definition, selection), selection, ordered)


def _items(part: Part, files: Mapping[str, Listed], want: FileSelection) -> list[Item]:
    placing, items = Placing(part, want), []
    for member, file in files.items():
        if (path := placing(member)) is not None:
            mode = READ_ONLY_EXECUTABLE if file.executable else READ_ONLY
            items.append(Item(path, "file", file.size, file.sha256, mode, "", part.name))
    return items


@cache
def load_lists(path: Path) -> Lists:
    return Lists.model_validate_json(path.read_text(encoding="utf-8") if path.is_file() else '{"wheels": {}}')
