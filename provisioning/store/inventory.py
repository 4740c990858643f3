"""The content of a tree: what its inventory records, how it differs from that now, which files a component's
definition and targets give it, and what it must hold by the pins in git whatever its inventory says.

The hash of a wheel says nothing of a tree once the wheel is gone. So `manifests/wheels.json` has the hash of
each file in the profiles' wheels; `nox -s lock` writes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from provisioning.base.documents import Model
from provisioning.base.errors import IntegrityError
from provisioning.base.files import TreeFile, hash_file
from provisioning.base.settings import MANIFESTS
from provisioning.components import QNN_SDK, metadata_text
from provisioning.manifest import Component, Part, Placement
from provisioning.sources import Sha256

SCHEMA = 2

READ_ONLY, READ_ONLY_EXECUTABLE = 0o444, 0o555

COMPOSED = "composed_from:"
"""The key of sdk.yaml under which an SDK of wheels names them."""

GENERATED = "(composed)"
"""The part of files that we write; no part can have this name."""

EVERYTHING = frozenset[str]()
"""The targets of a caller who names none, which means all."""

LISTS = MANIFESTS / "wheels.json"
OFFICIAL = MANIFESTS / "trees"
"""This folder lists the hash of each file of every official SDK or NDK that somebody provisioned."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The one file that a part was unpacked from."""

    part: str
    name: str
    sha256: str
    size: int
    locked: bool
    """Whether the manifest named the hash, or it was only found."""


@dataclass(frozen=True, slots=True)
class Inventory:
    component: str
    version: str
    build_id: str
    key: str
    definition: str
    """Digest of the component's definition, whatever its targets."""
    targets: tuple[str, ...]
    """The targets that the component has files for and that this tree has."""
    origins: tuple[Origin, ...]
    items: tuple[TreeFile, ...]
    schema: int = SCHEMA

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def read(cls, path: Path) -> Inventory | None:
        """The inventory at `path`, or None where there is none that can be trusted."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA:
                return None
            return cls(
                **{
                    **data,
                    "targets": tuple(data["targets"]),
                    "origins": tuple(Origin(**origin) for origin in data["origins"]),
                    "items": tuple(TreeFile(**item) for item in data["items"]),
                }
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between a tree and its inventory."""

    path: str
    kind: Literal["missing", "changed", "extra", "mode"]
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: {self.kind}: expected {self.expected}, found {self.found}"


def differences(root: Path, items: Sequence[TreeFile]) -> list[Difference]:
    """Every difference, by reading every byte again; sorted by path."""
    from concurrent.futures import ThreadPoolExecutor

    items_by_path = {item.path: item for item in items}
    folders = {folder for path in items_by_path for folder in _parents(path)}
    different = [
        Difference(path, "extra", "nothing", "a directory" if is_folder else "a file or link")
        for path, is_folder in walk(root)
        if path not in items_by_path and not (is_folder and path in folders)
    ]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        different += filter(None, pool.map(lambda item: difference(root, item), items))
    return sorted(different, key=lambda mismatch: mismatch.path)


def differing_names(root: Path, items: Sequence[TreeFile], since: int | None) -> Iterator[Difference]:
    """Yield what was added to a tree and removed from it since this moment, in nanoseconds; if it is None,
    since ever.

    Whoever adds or removes a name changes its folder's time, which nobody can set back: other folders are not
    read. Python's bytecode of a listed module is no addition."""
    listed = _names_by_folder(item.path for item in items)
    for folder, names in sorted(listed.items()):
        place = root / folder
        if since is not None and changed_at(place) < since:
            continue
        entries: dict[str, os.DirEntry[str]] = {}
        with contextlib.suppress(OSError), os.scandir(place) as found:
            entries = {entry.name: entry for entry in found}
        below = f"{folder}/" if folder else ""
        for name in sorted(names - entries.keys()):
            yield Difference(below + name, "missing", "what the inventory lists", "nothing")
        for name in sorted(entries.keys() - names):
            if not _is_bytecode(entries[name], names):
                is_folder = entries[name].is_dir(follow_symlinks=False)
                yield Difference(
                    below + name, "extra", "nothing", "a directory" if is_folder else "a file or link"
                )
        for name in sorted(names & entries.keys()):
            if below + name in listed and entries[name].is_symlink():
                yield Difference(below + name, "extra", "a directory", "a link")


def _names_by_folder(paths: Iterable[str]) -> dict[str, set[str]]:
    """The files and folders in each folder of a tree."""
    names: dict[str, set[str]] = {"": set()}
    for path in paths:
        folder, _, name = path.rpartition("/")
        names.setdefault(folder, set()).add(name)
    for path in filter(None, list(names)):
        for folder in _parents(f"{path}/"):
            above, _, name = folder.rpartition("/")
            names.setdefault(above, set()).add(name)
    return names


def _is_bytecode(folder: os.DirEntry[str], names: Set[str]) -> bool:
    """Whether this is the folder in which Python keeps the bytecode of the modules beside it."""
    if folder.name != "__pycache__" or not folder.is_dir(follow_symlinks=False):
        return False
    return all(f"{path.name.partition('.')[0]}.py" in names for path in Path(folder.path).iterdir())


def changed_at(path: Path) -> int:
    """When the content, mode or names of a file or folder changed last, which nobody can set back."""
    try:
        return path.lstat().st_ctime_ns
    except OSError:
        return 0


def difference(root: Path, item: TreeFile, *, content: bool = True) -> Difference | None:
    """Return how one item differs. Without `content` only its directory entry is compared."""
    path = root / item.path
    try:
        status = path.lstat()
        if item.kind == "link":
            if not stat.S_ISLNK(status.st_mode):
                return Difference(item.path, "changed", f"a link to {item.link}", _kind(status))
            if (target := os.readlink(path)) != item.link:  # noqa: PTH115  a Path would normalise the text
                return Difference(item.path, "changed", f"a link to {item.link}", f"one to {target}")
            return None
        if not stat.S_ISREG(status.st_mode):
            return Difference(item.path, "changed", "a file", _kind(status))
        if status.st_size != item.size:
            return Difference(item.path, "changed", f"{item.size} bytes", f"{status.st_size}")
        if content and (digest := hash_file(path)) != item.sha256:
            return Difference(item.path, "changed", f"sha256 {item.sha256}", digest)
        if (mode := stat.S_IMODE(status.st_mode)) != item.mode:
            return Difference(item.path, "mode", f"{item.mode:04o}", f"{mode:04o}")
    except (FileNotFoundError, NotADirectoryError):
        return Difference(item.path, "missing", "a file" if item.kind == "file" else "a link", "nothing")
    except OSError as error:
        return Difference(item.path, "changed", "a readable file", error.strerror or str(error))
    return None


def walk(root: Path) -> Iterator[tuple[str, bool]]:
    """Every path below `root`, and whether it is a folder.

    It does not recurse, because somebody may have put a thousand folders in each other there."""
    folders = [""]
    while folders:
        below = folders.pop()
        try:
            with os.scandir(f"{root}/{below}") as entries:
                for entry in entries:
                    path = below + entry.name
                    is_folder = entry.is_dir(follow_symlinks=False)
                    yield path, is_folder
                    if is_folder:
                        folders.append(f"{path}/")
        except OSError:
            # Items below that cannot be read are reported as missing or changed, one by one.
            continue


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _kind(status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "a directory"
    if stat.S_ISFIFO(status.st_mode):
        return "a named pipe"
    return (
        "a link" if stat.S_ISLNK(status.st_mode) else "a file" if stat.S_ISREG(status.st_mode) else "a device"
    )


# What a definition gives


def targets_in(component: Component, targets: Set[str]) -> frozenset[str]:
    """Select the targets that the component has files for, beside files for all. Everything below is about
    such a set; an empty one is no target then."""
    names = {target for part in component.parts for rule in part.place for target in rule.targets}
    return frozenset(names & targets if targets else names)


def parts_for(component: Component, targets: Set[str]) -> list[Part]:
    """Select the parts with files for one of the targets, or for all. The others are not even fetched."""

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
    """Decides where each member of a part goes."""

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


def compose_tree(parts: Iterable[Sequence[TreeFile]]) -> list[TreeFile]:
    """The files of all parts as one tree; two parts may place the same path only if it is the same file."""
    items_by_path: dict[str, TreeFile] = {}
    for items in parts:
        for item in items:
            first = items_by_path.setdefault(item.path, item)
            same = (first.kind, first.sha256, first.link) == (item.kind, item.sha256, item.link)
            if first is not item and not same:
                raise IntegrityError(
                    f"{item.path}: expected one file, found two: from part {first.part} "
                    f"({_content_of(first)}) and from part {item.part} ({_content_of(item)})",
                    fix="let a place rule of one of the parts leave it out",
                )
    return list(items_by_path.values())


def sdk_yaml(name: str, component: Component, origins: Sequence[Origin], items: Iterable[TreeFile]) -> str:
    """The sdk.yaml of an SDK that is composed of several files, in the style of the official one; empty where
    one of the files has it, and for other components."""
    if name != QNN_SDK or any(item.path == "sdk.yaml" for item in items):
        return ""
    lines = ["product: QAIRT", f"version: {component.version}"]
    lines += [f"build_id: {component.build_id}"] if component.build_id else []
    lines.append(COMPOSED)
    for origin in origins:
        lines += [f"  {origin.part}:", f"    file: {origin.name}", f"    sha256: {origin.sha256}"]
    return "\n".join(lines) + "\n"


def inventory_of(
    name: str, component: Component, targets: Set[str], origins: Sequence[Origin], items: Sequence[TreeFile]
) -> Inventory:
    """Make the inventory of the tree that these files make; with the sdk.yaml, if it has one of ours."""
    if text := sdk_yaml(name, component, origins, items).encode():
        digest = hashlib.sha256(text).hexdigest()
        items = [*items, TreeFile("sdk.yaml", "file", len(text), digest, READ_ONLY, "", GENERATED)]
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


class OfficialFile(Listed):
    link: str = ""
    """The target of a symbolic link, which has no hash of its own."""
    sha256: Sha256 | Literal[""] = ""


class OfficialTree(Model):
    """The files of a vendor's archive, below the folder that is stripped."""

    schema_: Literal[1] = Field(alias="schema")
    archive: Sha256
    files: dict[str, OfficialFile]


def official_place(component: str, version: str) -> Path:
    return OFFICIAL / f"{component}-{version}.json"


@cache
def load_official(path: Path) -> OfficialTree | None:
    if not path.is_file():
        return None
    return OfficialTree.model_validate_json(path.read_text(encoding="utf-8"))


def official_items(component: str, version: str) -> list[TreeFile] | None:
    """The files of a release as its vendor ships it; None if nobody has recorded them."""
    tree = load_official(official_place(component, version))
    return None if tree is None else [_item(path, file, "") for path, file in tree.files.items()]


def files_of_release(
    component: str, root: Path, versions: Iterable[str], pin: Component | None
) -> list[TreeFile] | None:
    """The files of the release that an installation of the user's says it is; None if nobody has recorded
    them. A copy of an SDK that we composed has those of the profile's wheels."""
    for version in versions:
        if (items := official_items(component, version)) is not None:
            return items
    if pin is None or pin.version not in versions or not is_composed(root):
        return None
    inventory = pinned_inventory(component, pin, targets_in(pin, EVERYTHING))
    return None if inventory is None else [item for item in inventory.items if item.part != GENERATED]


def is_composed(sdk: Path) -> bool:
    """Whether we made this SDK of wheels, which have libraries and no headers."""
    return COMPOSED in metadata_text(sdk / "sdk.yaml")


def differences_by_content(root: Path, items: Sequence[TreeFile]) -> Iterator[Difference]:
    """Yield the differences in content of an installation of the user's, which may have other modes, and may
    lack what its owner does not need. Nothing loads a file that lies at its top, or beside its folders."""
    folders = {folder for item in items for folder in _parents(item.path)}
    for found in differences(root, items):
        folder, _, name = found.path.rpartition("/")
        is_loaded = folder in folders and name != "__pycache__"
        if found.kind == "changed" or (found.kind == "extra" and is_loaded):
            yield found


def pinned_inventory(name: str, component: Component, targets: Set[str]) -> Inventory | None:
    """The inventory of a tree by the pins in git; None if a part has no list."""
    origins, parts = [], []
    for part in parts_for(component, targets):
        source = part.source
        files = _listed_members(name, component, part)
        if source.pin is None or files is None:
            return None
        origins.append(Origin(part.name, source.name, source.pin, getattr(source, "size", None) or 0, True))
        parts.append(_items(part, files, targets))
    return inventory_of(name, component, targets, origins, compose_tree(parts)) if parts else None


def _listed_members(name: str, component: Component, part: Part) -> Mapping[str, Listed] | None:
    """The members of one part's wheel or archive; None if no manifest lists them."""
    if part.source.pin is None:
        return None
    official = load_official(official_place(name, component.version))
    if official is not None and official.archive == part.source.pin:
        return {part.source.prefix + path: file for path, file in official.files.items()}
    return load_lists(LISTS).wheels.get(part.source.pin)


def _items(part: Part, files: Mapping[str, Listed], targets: Set[str]) -> list[TreeFile]:
    placing, items = Placing(part, targets), []
    for member, file in files.items():
        path = placing(member)
        if path is not None:
            items.append(_item(path, file, part.name))
    return items


def _item(path: str, file: Listed, part: str) -> TreeFile:
    link = getattr(file, "link", "")
    if link:
        return TreeFile(path, "link", file.size, "", 0o777, link, part)
    mode = READ_ONLY_EXECUTABLE if file.executable else READ_ONLY
    return TreeFile(path, "file", file.size, file.sha256, mode, "", part)


def _digest(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _content_of(item: TreeFile) -> str:
    return f"sha256 {item.sha256[:12]}…" if item.kind == "file" else f"a link to {item.link}"
