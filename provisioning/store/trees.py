"""Read the trees of a store: which there are, which one serves a component, and whether it is still as it was
committed.

`Trees` changes nothing; `Store` (the package) adds and removes trees. A lease keeps `gc` from a tree that a
process uses."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.errors import EnvironmentLacking
from provisioning.base.files import ANOTHER_STORE, replace_text
from provisioning.manifest import Component, Part
from provisioning.store.inventory import (
    Difference,
    Inventory,
    changed_at,
    definition_of,
    difference,
    differences,
    differing_names,
    parts_for,
    pinned_inventory,
    targets_in,
    tree_key,
)


@dataclass(frozen=True, slots=True)
class Tree:
    """A whole, committed tree."""

    root: Path
    inventory: Inventory
    repaired: tuple[Difference, ...] = ()
    """What was wrong with it before it was made anew just now."""

    @property
    def key(self) -> str:
        return self.inventory.key

    @property
    def component(self) -> str:
        return self.inventory.component

    @property
    def version(self) -> str:
        return self.inventory.version

    @property
    def targets(self) -> frozenset[str]:
        return frozenset(self.inventory.targets)

    @property
    def inventory_path(self) -> Path:
        return self.root.with_name(f"{self.root.name}.json")


class Trees:
    """A store that is only read."""

    def __init__(self, path: Path) -> None:
        if os.path.isfile(path):  # noqa: PTH113  Path's own raises where a parent may not be entered
            raise EnvironmentLacking(f"{path}: expected the store's folder, found a file", fix=ANOTHER_STORE)
        self.path = path
        self.downloads = path / "downloads"
        self.folder = path / "trees"
        self.staging = path / "staging"
        self.locks = path / "locks"

    def trees(self, prefix: str = "") -> list[Tree]:
        """Every committed tree, by name."""
        trees = []
        for path in sorted(self.folder.glob(f"{prefix}*.json")):
            root = path.with_name(path.name.removesuffix(".json"))
            inventory = Inventory.read(path) if root.is_dir() else None
            # A tree is made anew at a place that its component names, which must not lead elsewhere.
            if inventory is not None and "/" not in inventory.component:
                trees.append(Tree(root, inventory))
        return trees

    def root_of(self, component_name: str, component: Component, targets: Set[str]) -> Path:
        """Return where the tree for exactly these targets is, once it is made."""
        key = tree_key(definition_of(component_name, component), targets_in(component, targets))
        return self.folder / f"{component_name}-{component.version}-{key[:12]}"

    def find(self, component_name: str, component: Component, targets: Set[str]) -> Tree | None:
        """The tree for these targets: made for exactly them, else the smallest that has them.

        Until this process ends, `gc` leaves that tree alone."""
        names = targets_in(component, targets)
        if not parts_for(component, names):
            return None
        serving = [tree for tree in self._of(component_name, component) if names <= tree.targets]
        return self._lease_first(sorted(serving, key=lambda tree: (len(tree.targets), tree.key)))

    def find_any(self, component_name: str, component: Component) -> Tree | None:
        """A tree of this component, whatever its targets: the one with the most parts."""
        trees = self._of(component_name, component)
        return self._lease_first(sorted(trees, key=lambda tree: -len(tree.inventory.origins)))

    def last_used(self, tree: Tree) -> float:
        for path in (self._use_file(tree), tree.inventory_path):
            with contextlib.suppress(OSError):
                return path.stat().st_mtime
        return 0.0

    def is_proved(self, tree: Tree) -> bool:
        """Whether this tree was made or proved here. A copy of it, as a cache restores one, was not: its
        inventory is another file."""
        try:
            return self._proof(tree).read_text(encoding="ascii") == _stamp(tree.inventory_path)
        except (OSError, ValueError):
            return False

    def mark_proved(self, tree: Tree) -> None:
        with contextlib.suppress(OSError):
            replace_text(self._proof(tree), _stamp(tree.inventory_path))

    def download_of(self, part: Part) -> Path | None:
        """The part's download, if it still exists."""
        path = part.source.landing_place(self.downloads)
        return path if path.exists() else None

    def verify(self, tree: Tree) -> list[Difference]:
        """Every difference between the tree and its inventory, by reading every byte again."""
        return differences(tree.root, tree.inventory.items)

    def against_pins(self, tree: Tree, component: Component) -> list[Difference] | None:
        """Every difference between the tree and the pins in git; None if these name no files."""
        inventory = pinned_inventory(tree.component, component, tree.targets)
        return None if inventory is None else against(tree, inventory)

    def damage(self, tree: Tree, component: Component) -> list[Difference] | None:
        """Return what is wrong with a tree. If it was made or proved here, that is what changed since then;
        otherwise it is what differs from the pins in git, or None if these do not name its files."""
        if self.is_proved(tree):
            return self.quick_check(tree)
        wrong = self.against_pins(tree, component)
        if wrong == []:
            self.mark_proved(tree)
        return wrong

    def quick_check(self, tree: Tree) -> list[Difference]:
        """Differences that show in directory entries, also what was added; in content, of files that changed
        since the tree was made or proved here. A thousand times as fast as `verify`."""
        proof_time = self._proof_time(tree)
        paths = {
            item.path
            for item in tree.inventory.items
            if proof_time is not None and changed_at(tree.root / item.path) >= proof_time
        }
        results = (difference(tree.root, item, content=item.path in paths) for item in tree.inventory.items)
        wrong = [result for result in results if result is not None]
        wrong += [name for name in self.differing_names(tree) if name.kind == "extra"]
        if paths and not wrong:
            self.mark_proved(tree)
        return wrong

    def differing_names(self, tree: Tree) -> list[Difference]:
        """Find what was added to the tree and removed from it, without a look at any file. In a tree that was
        made or proved here only the folders that changed since then are read: every stage asks this."""
        return list(differing_names(tree.root, tree.inventory.items, self._proof_time(tree)))

    def _proof_time(self, tree: Tree) -> int | None:
        """When the tree was proved here; None if it was not."""
        # Another process may be making it anew.
        with contextlib.suppress(FileNotFoundError):
            return self._proof(tree).stat().st_mtime_ns if self.is_proved(tree) else None
        return None

    def _of(self, component_name: str, component: Component) -> list[Tree]:
        definition = definition_of(component_name, component)
        trees = self.trees(f"{component_name}-{component.version}-")
        return [tree for tree in trees if tree.inventory.definition == definition]

    def _lease_first(self, trees: list[Tree]) -> Tree | None:
        """The first of these trees that `gc` has not just removed."""
        for tree in trees:
            if lease(tree.inventory_path):
                # A store that cannot be written to can still be read.
                with contextlib.suppress(OSError):
                    self._use_file(tree).touch()
                return tree
        return None

    def _use_file(self, tree: Tree) -> Path:
        """The file whose time says when a tree was last used."""
        return self.locks / f"{tree.root.name}.used"

    def _proof(self, tree: Tree) -> Path:
        return self.locks / f"{tree.root.name}.proved"


def against(tree: Tree, inventory: Inventory) -> list[Difference]:
    """Every difference between a tree and an inventory, also of its own inventory."""
    wrong = differences(tree.root, inventory.items)
    if tree.inventory != inventory:
        wrong.append(
            Difference(tree.inventory_path.name, "changed", "the inventory of what is pinned", "another")
        )
    return wrong


# Leases: while a process has a shared flock on a tree's inventory, `gc` leaves the tree alone. The kernel
# releases the lock of a killed process, and a file that may only be read can be locked too.

_leases: dict[Path, int] = {}


def lease(inventory: Path) -> bool:
    """Keep `gc` off the tree of this inventory until this process ends; False where `gc` has removed it."""
    if inventory in _leases and _is_still(inventory, _leases[inventory]):
        return True
    try:
        descriptor = os.open(inventory, os.O_RDONLY)
    except FileNotFoundError:
        return False
    # The store works on a file system without locks too.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if not _is_still(inventory, descriptor):
        os.close(descriptor)
        return False
    # After `exec`, the new program (a shell, for example) reads the tree too.
    os.set_inheritable(descriptor, True)
    release(inventory)
    _leases[inventory] = descriptor
    return True


def release(inventory: Path) -> None:
    """End this process' own lease."""
    if inventory in _leases:
        os.close(_leases.pop(inventory))


def claim(inventory: Path, claims: contextlib.ExitStack) -> bool:
    """Whether no other process has a lease; then nobody gets one until `claims` is closed."""
    release(inventory)
    try:
        # Over NFS an exclusive lock needs a file that is open for writing.
        descriptor = os.open(inventory, os.O_RDWR if os.access(inventory, os.W_OK) else os.O_RDONLY)
    except FileNotFoundError:
        return True
    claims.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{status.st_ino} {status.st_ctime_ns}"
