"""Hashes that manifests record: of components whose vendor publishes none, and of the files in wheels, by
which a tree is proved once its wheel is gone."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.lock.files import write
from provisioning.base.errors import UnknownName
from provisioning.base.files import TreeFile
from provisioning.base.progress import for_stream
from provisioning.base.settings import MANIFESTS
from provisioning.manifest import Component, every_component, load_profile
from provisioning.sources import Archive, Wheel
from provisioning.store import Store, Tree, inventory
from provisioning.store.inventory import Listed, Lists, OfficialFile, OfficialTree

MOST_FILES = 200
"""Wheels with more are proved by the download itself."""


def record_components(
    store: Store, profiles: Sequence[str], names: Sequence[str], accept: Mapping[str, str]
) -> None:
    """Provision these components, and put into their profiles which bytes they are."""
    known = {name for profile in profiles for name in load_profile(profile).components}
    for name in names:
        if name not in known:
            raise UnknownName(f"no component {name!r} in {', '.join(profiles)}", name, known)
    for profile in profiles:
        path = MANIFESTS / "profiles" / f"{profile}.toml"
        for name, component in load_profile(profile).pins.items():
            if name not in names:
                continue
            tree = store.provision(
                name, component, trust_first_download=True, accept=accept, progress=for_stream()
            )
            record_tree(tree, component)
            git = {part.name for part in component.parts if part.source.type == "git"}
            for origin in tree.inventory.origins:
                keys: dict[str, str | int] = {"sha256": origin.sha256, "size": origin.size}
                if origin.part in git:
                    keys = {"commit": origin.sha256}
                write(path, add_source_keys(path, name, origin.part, keys))


def record_tree(tree: Tree, component: Component) -> None:
    """Record each file of a vendor's archive, by which trees and users' own installations are compared."""
    (part, *others) = component.parts
    if others or not isinstance(part.source, Archive) or any(rule.to for rule in part.place):
        return
    files = {item.path: _official(item) for item in tree.inventory.items if item.part == part.name}
    official = OfficialTree(schema=1, archive=tree.inventory.origins[0].sha256, files=files)
    data = official.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    place = inventory.official_place(tree.component, tree.version)
    place.parent.mkdir(exist_ok=True)
    write(place, json.dumps(data, indent=1, sort_keys=True) + "\n")
    inventory.load_official.cache_clear()


def _official(item: TreeFile) -> OfficialFile:
    is_program = item.kind == "file" and bool(item.mode & 0o111)
    return OfficialFile(sha256=item.sha256, size=item.size, executable=is_program, link=item.link)


def add_source_keys(path: Path, component: str, part: str, keys: Mapping[str, str | int]) -> str:
    """The text of the profile at `path` with `keys` in the source of one part.

    What is there already stays: a pin is changed by hand, with the reason in the commit."""
    import tomlkit

    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    parts = document["components"][component]["parts"]
    source = next(row["source"] for row in parts if row["name"] == part)
    for key, value in keys.items():
        source.setdefault(key, value)
    return document.as_string()


def record_wheels(downloads: Path) -> None:
    """Record the hash of each file in the profiles' wheels, by which a tree is proved without its wheel."""
    lists: dict[str, dict[str, Listed]] = {}
    before = inventory.load_lists(inventory.LISTS).wheels
    sources = {part.source for _, component in every_component() for part in component.parts}
    for source in sorted(sources, key=lambda source: source.name):
        if not isinstance(source, Wheel) or source.pin is None:
            continue
        if source.pin in before:
            lists[source.pin] = before[source.pin]
        elif (wheel := source.landing_place(downloads)).is_file():
            source.fetch(downloads)  # proves its hash
            files = files_in(wheel)
            lists |= {source.pin: files} if len(files) <= MOST_FILES else {}
        else:
            sys.stdout.write(
                f"note: the files of {source.name} are not recorded, because it was never fetched here\n"
            )
    data = {"schema": 1, **Lists(wheels=lists).model_dump(mode="json", exclude_defaults=True)}
    write(inventory.LISTS, json.dumps(data, indent=1, sort_keys=True) + "\n")
    inventory.load_lists.cache_clear()


def files_in(wheel: Path) -> dict[str, Listed]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            member.filename: Listed(
                sha256=hashlib.sha256(archive.read(member)).hexdigest(),
                size=member.file_size,
                executable=bool(member.external_attr >> 16 & 0o111),
            )
            for member in archive.infolist()
            if not member.is_dir()
        }


def strangers() -> list[str]:
    """Lists of wheels that no profile names any more."""
    known = {part.source.pin for _, component in every_component() for part in component.parts}
    others = sorted(inventory.load_lists(inventory.LISTS).wheels.keys() - known)
    return [f"{inventory.LISTS.name}: no profile has a wheel of sha256 {pin}" for pin in others]
