"""The trees on disk: which there are, which serves, and whether one is still as it was committed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.errors import EnvironmentLacking
from provisioning.base.files import ANOTHER_STORE, replace_text
from provisioning.manifest import Component, Part
from provisioning.store import locking
from provisioning.store.inventory import Difference, Inventory, difference, differences
from provisioning.store.tree_plan import (
    FileSelection,
    Pinned,
    covers,
    definition_of,
    pinned_tree,
    selection_of,
    tree_key,
)


@dataclass(frozen=True, slots=True)
class Tree:
    """A whole, committed tree."""

    root: Path
    inventory: Inventory

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
    def want(self) -> FileSelection:
        return FileSelection(frozenset(self.inventory.targets), frozenset(self.inventory.arches))

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
            inventory = _inventory(path) if root.is_dir() else None
            if inventory is not None:
                trees.append(Tree(root, inventory))
        return trees

    def broken(self) -> list[Difference]:
        """Trees that were committed and are damaged beyond repair; provisioning makes them anew."""
        damage = []
        for path in sorted(self.folder.glob("*.json")):
            name = path.name.removesuffix(".json")
            if not path.with_name(name).is_dir():
                damage.append(Difference(name, "missing", "a tree, as its inventory says", "nothing"))
            elif _inventory(path) is None:
                damage.append(Difference(path.name, "changed", "an inventory", "something else"))
        return damage

    def root_of(self, component_name: str, component: Component, want: FileSelection) -> Path:
        """Where the tree for exactly `want` is, once it is made."""
        key = tree_key(definition_of(component_name, component), selection_of(component, want))
        return self.folder / f"{component_name}-{component.version}-{key[:12]}"

    def find(self, component_name: str, component: Component, want: FileSelection) -> Tree | None:
        """The tree for `want`: made for exactly that, else the smallest that contains it.

        Until this process ends, `gc` leaves that tree alone."""
        definition = definition_of(component_name, component)
        selection = selection_of(component, want)
        if not any(selection.values()):
            return None
        exact = tree_key(definition, selection)
        serving = [
            tree
            for tree in self.trees(f"{component_name}-{component.version}-")
            if tree.inventory.definition == definition and covers(tree.inventory.selection, selection)
        ]
        serving.sort(key=lambda tree: (tree.key != exact, len(tree.inventory.items), tree.key))
        return self._leased(serving)

    def find_any(self, component_name: str, component: Component) -> Tree | None:
        """A tree of this component, whatever its selection: the one with the most parts."""
        definition = definition_of(component_name, component)
        trees = [t for t in self.trees(f"{component_name}-") if t.inventory.definition == definition]
        return self._leased(sorted(trees, key=lambda tree: -len(tree.inventory.origins)))

    def last_used(self, tree: Tree) -> float:
        for path in (self.used_mark(tree.root.name), tree.inventory_path):
            with contextlib.suppress(OSError):
                return path.stat().st_mtime
        return 0.0

    def used_mark(self, name: str) -> Path:
        """The file whose time says when a tree was last used."""
        return self.locks / f"{name}.used"

    def mark_used(self, name: str) -> None:
        # A store that cannot be written to can still be read.
        with contextlib.suppress(OSError):
            self.used_mark(name).touch()

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

    def _proof(self, tree: Tree) -> Path:
        return self.locks / f"{tree.root.name}.proved"

    def kept(self, part: Part) -> Path | None:
        """The part's download, if it still exists."""
        path = part.source.landing_place(self.downloads)
        return path if path.exists() else None

    def verify(self, tree: Tree) -> list[Difference]:
        """Every difference between the tree and its inventory, by reading every byte again."""
        return differences(tree.root, tree.inventory.items)

    def against_pins(self, tree: Tree, component: Component) -> list[Difference] | None:
        """Every difference between the tree and the pins in git; None if these name no files."""
        pinned = pinned_tree(tree.component, component, tree.want)
        return None if pinned is None else self.against(tree, pinned)

    def against(self, tree: Tree, pinned: Pinned) -> list[Difference]:
        """Every difference, also of the inventory itself."""
        wrong = differences(tree.root, pinned.items)
        if Pinned.of(tree.inventory) != pinned:
            name = tree.inventory_path.name
            wrong.append(Difference(name, "changed", "the inventory of what is pinned", "another"))
        return wrong

    def quick_check(self, tree: Tree) -> list[Difference]:
        """Differences that show in directory entries; in content, of files that changed since the tree was
        made or proved here. A thousand times as fast as `verify`."""
        proved = self._proof(tree).stat().st_mtime_ns if self.is_proved(tree) else None
        changed = {
            item.path
            for item in tree.inventory.items
            if proved is not None and _changed_at(tree.root / item.path) >= proved
        }
        results = (difference(tree.root, item, content=item.path in changed) for item in tree.inventory.items)
        wrong = [result for result in results if result is not None]
        if changed and not wrong:
            self.mark_proved(tree)
        return wrong

    def _leased(self, trees: Sequence[Tree]) -> Tree | None:
        """The first of these trees that `gc` has not just removed."""
        for tree in trees:
            if locking.lease(tree.inventory_path):
                self.mark_used(tree.root.name)
                return tree
        return None


def _inventory(path: Path) -> Inventory | None:
    """The inventory at `path`, unless its component's name, by which a tree is made anew, leads elsewhere."""
    inventory = Inventory.read(path)
    return inventory if inventory is not None and "/" not in inventory.component else None


def _changed_at(path: Path) -> int:
    """When the file's content, mode or links changed last, which nobody can set back."""
    try:
        return path.lstat().st_ctime_ns
    except OSError:
        return 0


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{status.st_ino} {status.st_ctime_ns}"
