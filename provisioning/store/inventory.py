"""The recorded content of a tree in the store, and how the tree differs from it now."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from provisioning.base.files import hash_file

SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Item:
    """One file or symbolic link of a tree. `part` says where it came from."""

    path: str
    kind: Literal["file", "link"]
    size: int
    sha256: str
    mode: int
    link: str
    part: str


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
    """Those that the component has files for, and this tree has."""
    origins: tuple[Origin, ...]
    items: tuple[Item, ...]
    schema: int = SCHEMA

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)

    def as_json(self) -> str:
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
                    "items": tuple(Item(**item) for item in data["items"]),
                }
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
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


def differences(root: Path, items: Sequence[Item]) -> list[Difference]:
    """Every difference, by reading every byte again; sorted by path."""
    from concurrent.futures import ThreadPoolExecutor

    expected = {item.path: item for item in items}
    folders = {folder for path in expected for folder in _parents(path)}
    different = [
        Difference(path, "extra", "nothing", "a directory" if is_folder else "a file or link")
        for path, is_folder in _walk(root)
        if path not in expected and not (is_folder and path in folders)
    ]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        different += filter(None, pool.map(lambda item: difference(root, item), items))
    return sorted(different, key=lambda mismatch: mismatch.path)


def difference(root: Path, item: Item, *, content: bool = True) -> Difference | None:
    """How one item differs; without `content` only by what its directory entry says."""
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


def _walk(root: Path, below: str = "") -> Iterator[tuple[str, bool]]:
    try:
        with os.scandir(root / below) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = below + entry.name
                is_folder = entry.is_dir(follow_symlinks=False)
                yield path, is_folder
                if is_folder:
                    yield from _walk(root, f"{path}/")
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        # Items below that cannot be read are reported as missing or changed, one by one.
        return


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _kind(status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "a directory"
    return (
        "a link" if stat.S_ISLNK(status.st_mode) else "a file" if stat.S_ISREG(status.st_mode) else "a device"
    )
