"""Which files of a component make a tree, by its definition and its targets; and what the tree must hold by
the pins in git, whatever its own inventory says.

The hash of a wheel says nothing of a tree once the wheel is gone. So `manifests/wheels.json` has the hash of
each file in the profiles' wheels; `nox -s lock` writes it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from provisioning.base.documents import Model
from provisioning.base.errors import IntegrityError
from provisioning.base.settings import MANIFESTS
from provisioning.components import QNN_SDK
from provisioning.manifest import Component, Part, Placement
from provisioning.sources import Sha256
from provisioning.store.inventory import SCHEMA, Inventory, Item, Origin

READ_ONLY, READ_ONLY_EXECUTABLE = 0o444, 0o555

GENERATED = "(composed)"
"""The part of files that we write; no part can have this name."""

EVERYTHING = frozenset[str]()
"""The targets of who names none: all."""

LISTS = MANIFESTS / "wheels.json"


def targets_in(component: Component, targets: Set[str]) -> frozenset[str]:
    """Those of the targets that the component has files for, beside files for all. Everything below is about
    such a set; an empty one is no target then."""
    known = {target for part in component.parts for rule in part.place for target in rule.targets}
    return frozenset(known & targets if targets else known)


def parts_for(component: Component, targets: Set[str]) -> list[Part]:
    """The parts with files for one of the targets, or for all. The others are not even fetched."""

    def serves(part: Part) -> bool:
        with_targets = [rule for rule in part.place if rule.targets]
        return not with_targets or any(not targets.isdisjoint(rule.targets) for rule in with_targets)

    return [part for part in component.parts if serves(part)]


def definition_of(name: str, component: Component) -> str:
    """A digest of what the component is, whatever its targets and wherever its bytes are fetched."""
    parts = []
    for part in component.parts:
        source = part.source.model_dump(mode="json", exclude={"size"})
        if source.get("sha256"):
            source.pop("url", None)
        parts.append([part.name, source, [place.model_dump(mode="json") for place in part.place]])
    return _digest([SCHEMA, name, component.version, component.build_id, parts])


def tree_key(definition: str, targets: Set[str]) -> str:
    return _digest([definition, sorted(targets)])


class Placing:
    """Where each member of a part goes."""

    def __init__(self, part: Part, targets: Set[str]) -> None:
        self._targets = targets
        self._strip = part.source.prefix
        self._rules = [(re.compile(rule.match), rule) for rule in part.place]
        self._fitted = 0

    def __call__(self, member: str) -> str | None:
        # Directories are created with the files that they hold.
        if member.endswith("/") or not member.startswith(self._strip):
            return None
        path = member[len(self._strip) :]
        if not self._rules:
            self._fitted += 1
            return path
        for pattern, rule in self._rules:
            if match := pattern.fullmatch(path):
                self._fitted += 1
                return self._destination(path, match, rule)
        return None

    def check(self, name: str) -> None:
        """Raise if no member fitted: the manifest was written for another archive."""
        if not self._fitted:
            expected = f"members below {self._strip!r}" if self._strip else "a member that a place rule fits"
            raise IntegrityError(
                f"{name}: expected {expected}, found none",
                fix="correct `strip` or `place` of this part in the manifest, if this is the right archive",
            )

    def _destination(self, path: str, match: re.Match[str], rule: Placement) -> str | None:
        if rule.targets and self._targets.isdisjoint(rule.targets):
            return None
        return rule.to.format(**match.groupdict(default="")) if rule.to else path


def composed(parts: Iterable[Sequence[Item]]) -> list[Item]:
    """The files of all parts as one tree; two parts may place the same path only if it is the same file."""
    items_by_path: dict[str, Item] = {}
    for items in parts:
        for item in items:
            other = items_by_path.setdefault(item.path, item)
            same = (other.kind, other.sha256, other.link) == (item.kind, item.sha256, item.link)
            if other is not item and not same:
                raise IntegrityError(
                    f"{item.path}: expected one file, found two: from part {other.part} "
                    f"({_described(other)}) and from part {item.part} ({_described(item)})",
                    fix="let a place rule of one of the parts leave it out",
                )
    return list(items_by_path.values())


def sdk_yaml(name: str, component: Component, origins: Sequence[Origin], items: Iterable[Item]) -> str:
    """The sdk.yaml of an SDK that is composed of several files, in the style of the official one; empty where
    one of the files has it, and for other components."""
    if name != QNN_SDK or any(item.path == "sdk.yaml" for item in items):
        return ""
    lines = ["product: QAIRT", f"version: {component.version}"]
    lines += [f"build_id: {component.build_id}"] if component.build_id else []
    lines.append("composed_from:")
    for origin in origins:
        lines += [f"  {origin.part}:", f"    file: {origin.name}", f"    sha256: {origin.sha256}"]
    return "\n".join(lines) + "\n"


def inventory_of(
    name: str, component: Component, targets: Set[str], origins: Sequence[Origin], items: Sequence[Item]
) -> Inventory:
    """Of the tree that these files make; with the sdk.yaml, if it has one of ours."""
    if text := sdk_yaml(name, component, origins, items).encode():
        digest = hashlib.sha256(text).hexdigest()
        items = [*items, Item("sdk.yaml", "file", len(text), digest, READ_ONLY, "", GENERATED)]
    definition = definition_of(name, component)
    return Inventory(
        component=name,
        version=component.version,
        build_id=component.build_id or "",
        key=tree_key(definition, targets),
        definition=definition,
        targets=tuple(sorted(targets)),
        origins=tuple(origins),
        items=tuple(sorted(items, key=lambda item: item.path)),
    )


class Listed(Model):
    sha256: Sha256
    size: int
    executable: bool = False


class Lists(Model):
    schema_: Literal[1] = Field(default=1, alias="schema")
    wheels: dict[Sha256, dict[str, Listed]]
    """The files of each wheel, by its hash and their paths."""


@cache
def load_lists(path: Path) -> Lists:
    return Lists.model_validate_json(path.read_text(encoding="utf-8") if path.is_file() else '{"wheels": {}}')


def pinned_inventory(name: str, component: Component, targets: Set[str]) -> Inventory | None:
    """The inventory of a tree by the pins in git; None if a part has no list."""
    origins, parts = [], []
    for part in parts_for(component, targets):
        source = part.source
        if source.pin is None or (files := load_lists(LISTS).wheels.get(source.pin)) is None:
            return None
        origins.append(Origin(part.name, source.name, source.pin, getattr(source, "size", None) or 0, True))
        parts.append(_items(part, files, targets))
    return inventory_of(name, component, targets, origins, composed(parts)) if parts else None


def _items(part: Part, files: Mapping[str, Listed], targets: Set[str]) -> list[Item]:
    placing, items = Placing(part, targets), []
    for member, file in files.items():
        if (path := placing(member)) is not None:
            mode = READ_ONLY_EXECUTABLE if file.executable else READ_ONLY
            items.append(Item(path, "file", file.size, file.sha256, mode, "", part.name))
    return items


def _digest(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _described(item: Item) -> str:
    return f"sha256 {item.sha256[:12]}…" if item.kind == "file" else f"a link to {item.link}"
