"""Which files of a component make a tree, by its definition and what is wanted; and what it must hold by the
pins in git, whatever its own inventory says.

The hash of a wheel says nothing of a tree once the wheel is gone. So `manifests/wheels.json` has the hash of
each file in the profiles' wheels; `nox -s lock` writes it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from provisioning.base.documents import Model
from provisioning.base.errors import IntegrityError
from provisioning.base.settings import MANIFESTS, TARGETS
from provisioning.components import QNN_SDK
from provisioning.manifest import Component, Part, Placement
from provisioning.sources import Sha256
from provisioning.store.inventory import SCHEMA, Inventory, Item, Origin

READ_ONLY, READ_ONLY_EXECUTABLE = 0o444, 0o555

GENERATED = "(composed)"
"""The part of files that we write; no part can have this name."""


@dataclass(frozen=True, slots=True)
class FileSelection:
    """A selection of a component's files: for these targets and the Hexagon arches of the chosen SoCs.

    Empty means everything.
    """

    targets: frozenset[str] = frozenset()
    arches: frozenset[int] = frozenset()


EVERYTHING = FileSelection()


def selection_of(component: Component, want: FileSelection) -> dict[str, tuple[str, ...]]:
    """The rules of each part that `want` takes: `2` all of rule 2, `1:75` rule 1 for arch 75 only.

    `*` is a part without rules, taken whole. A part that is not needed has none, and is not even fetched.
    """
    targets = frozenset[str]() if want.targets >= set(TARGETS) else want.targets
    return {part.name: _atoms(part, targets, want.arches) for part in component.parts}


def covers(has: Mapping[str, Sequence[str]], wants: Mapping[str, Sequence[str]]) -> bool:
    """Whether a tree of the selection `has` holds all of the selection `wants`."""
    return all(
        atom in have or atom.partition(":")[0] in have
        for part, atoms in wants.items()
        for have in (set(has.get(part, ())),)
        for atom in atoms
    )


def definition_of(name: str, component: Component) -> str:
    """A digest of what the component is, whatever is selected of it and wherever its bytes are fetched."""
    parts = []
    for part in component.parts:
        source = part.source.model_dump(mode="json", exclude={"size"})
        if source.get("sha256"):
            source.pop("url", None)
        parts.append([part.name, source, [place.model_dump(mode="json") for place in part.place]])
    return _digest([SCHEMA, name, component.version, component.build_id, parts])


def tree_key(definition: str, selection: Mapping[str, Sequence[str]]) -> str:
    return _digest([definition, sorted((part, list(atoms)) for part, atoms in selection.items())])


class Placing:
    """Where each member of a part goes. Remembers the members, to explain why nothing fits."""

    def __init__(self, part: Part, want: FileSelection) -> None:
        self._want = want
        self._strip = part.source.prefix
        self._rules = [(re.compile(rule.match), rule) for rule in part.place]
        self._tops: dict[str, None] = {}
        self._fitted = 0

    def __call__(self, member: str) -> str | None:
        self._tops[member.partition("/")[0] + ("/" if "/" in member else "")] = None
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
        if self._fitted:
            return
        tops = list(self._tops)
        listing = ", ".join(tops[:8]) + (", …" if len(tops) > 8 else "") if tops else "nothing"
        expected = f"members below {self._strip!r}" if self._strip else "a member that a place rule fits"
        raise IntegrityError(
            f"{name}: expected {expected}, found at the top level: {listing}",
            fix="correct `strip` or `place` of this part in the manifest, if this is the right archive",
        )

    def _destination(self, path: str, match: re.Match[str], rule: Placement) -> str | None:
        if rule.targets and self._want.targets and not self._want.targets & set(rule.targets):
            return None
        groups = match.groupdict(default="")
        if self._want.arches and "arch" in groups and int(groups["arch"]) not in self._want.arches:
            return None
        return rule.to.format(**groups) if rule.to else path


def composed(parts: Iterable[Sequence[Item]]) -> list[Item]:
    """The files of all parts as one tree; two parts may place the same path only if it is the same file."""
    taken: dict[str, Item] = {}
    for items in parts:
        for item in items:
            other = taken.setdefault(item.path, item)
            same = (other.kind, other.sha256, other.link) == (item.kind, item.sha256, item.link)
            if other is not item and not same:
                raise IntegrityError(
                    f"{item.path}: expected one file, found two: from part {other.part} "
                    f"({_described(other)}) and from part {item.part} ({_described(item)})",
                    fix="let a place rule of one of the parts leave it out",
                )
    return sorted(taken.values(), key=lambda item: item.path)


def sdk_yaml(component: Component, origins: Sequence[Origin], items: Iterable[Item]) -> str:
    """The sdk.yaml of an SDK composed from several files, in the style of the official one."""
    build_id = f"build_id: {component.build_id}\n" if component.build_id else ""
    lines = [f"product: QAIRT\nversion: {component.version}\n{build_id}composed_from:"]
    for origin in origins:
        lines += [f"  {origin.part}:", f"    file: {origin.name}", f"    sha256: {origin.sha256}"]
    lines.append("files:")
    for item in items:
        lines += [f"  {_scalar(item.path)}:", f"    from: {item.part}"]
        lines.append(
            f"    sha256: {item.sha256}" if item.kind == "file" else f"    link: {_scalar(item.link)}"
        )
    return "\n".join(lines) + "\n"


def _atoms(part: Part, targets: frozenset[str], arches: frozenset[int]) -> tuple[str, ...]:
    if not part.place:
        return ("*",)
    applying = [
        (number, rule)
        for number, rule in enumerate(part.place)
        if not rule.targets or not targets or targets & set(rule.targets)
    ]
    targeted = any(rule.targets for rule in part.place)
    if targeted and not any(rule.targets for _, rule in applying):
        return ()
    atoms: list[str] = []
    for number, rule in applying:
        if arches and "arch" in re.compile(rule.match).groupindex:
            atoms += [f"{number}:{arch}" for arch in sorted(arches)]
        else:
            atoms.append(f"{number}")
    return tuple(atoms)


def _digest(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _described(item: Item) -> str:
    return f"sha256 {item.sha256[:12]}…" if item.kind == "file" else f"a link to {item.link}"


def _scalar(text: str) -> str:
    """The text as a YAML scalar: plain if that is safe, else quoted."""
    return text if re.fullmatch(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*", text) else json.dumps(text)


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
