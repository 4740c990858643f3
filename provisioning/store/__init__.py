"""The content-addressed cache of provisioned trees.

    <store>/CACHEDIR.TAG
            downloads/   what was fetched, by sha256, kept so that a wider selection needs no second download
            trees/       <component>-<version>-<key>/ and, beside it, its inventory <…>.json
            staging/     work in progress, one directory for each process at work
            locks/       mutexes, and when each tree was last used
            cache/       what is remembered of work done
            licences.json

A tree is built in staging/ and renamed into trees/; its inventory, renamed last, commits it: without one, a
tree does not exist for anybody. So a kill at any moment leaves either the whole tree or leftovers that the
next run removes. Files in trees are read-only; directories are not, so that `rm -rf` works here as on any
cache. What somebody writes into a tree, `verify` names and `repair` removes.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from provisioning import licences
from provisioning.base.commands import Fix, quoted, session
from provisioning.base.errors import EnvironmentLacking, Unlocked, UpstreamError
from provisioning.base.files import ANOTHER_STORE, FULL, IN_THE_WAY, disk_error, mutex, replace_text
from provisioning.base.progress import SILENT, Progress
from provisioning.manifest import Component
from provisioning.store import cleaning, locking
from provisioning.store.assembly import Assembly
from provisioning.store.inventory import Difference, Inventory
from provisioning.store.tree_plan import EVERYTHING, FileSelection, Pinned
from provisioning.store.trees import Tree, Trees

__all__ = ["EVERYTHING", "FileSelection", "Store", "Tree", "unlocked"]

CACHEDIR_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# Everything below can be fetched again with `nox -s provision`.\n"
)


class Store(Trees):
    def provision(
        self,
        component_name: str,
        component: Component,
        want: FileSelection = EVERYTHING,
        *,
        trust_first_download: bool = False,
        accept: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
        offline: bool = False,
    ) -> Tree:
        """The tree for `want`; fetched, verified and composed if it is not there yet.

        `accept` maps the ids of licences that the user accepts now to how they were accepted. A tree that was
        not made here is proved first. Bytes that the manifest does not name are fetched only with
        `trust_first_download`; they must be the named SDK by what is inside.
        """
        proved = component.pinned or trust_first_download
        if proved:
            self.prove(component_name, component, want, progress=progress, offline=offline)
        tree = self.find(component_name, component, want)
        if tree is not None and (proved or self.is_proved(tree)):
            return tree
        if not proved:
            raise unlocked(self.path, component_name, component)
        self.accept({component_name: component}, accept or {})
        root = self.root_of(component_name, component, want)
        with self._working_on(root.name, progress):
            if (tree := self.find(component_name, component, want)) is not None:
                return tree
            with locking.work_in_progress(self.staging, self.locks) as staging:
                assembly = Assembly(self, staging, component_name, component, want, progress, offline)
                return self._commit(root, staging, assembly.run())

    def prove(
        self,
        component_name: str,
        component: Component,
        want: FileSelection,
        *,
        progress: Progress = SILENT,
        offline: bool = False,
    ) -> dict[str, list[Difference]]:
        """Compare the tree that serves `want` with the pins, unless it was made or proved here: one that a CI
        system's cache restored may have been changed together with its inventory. A tree that differs is made
        anew, from its downloads, kept or fetched again; returns what was wrong, by tree."""
        wrong: dict[str, list[Difference]] = {}
        while (tree := self.find(component_name, component, want)) and not self.is_proved(tree):
            if tree.root.name in wrong:
                break  # A store that cannot be written to keeps no mark.
            try:
                wrong[tree.root.name] = self.prove_tree(tree, component, progress=progress, offline=offline)
            except (EnvironmentLacking, UpstreamError) as error:
                raise EnvironmentLacking(
                    f"{tree.root.name} was not made here, and cannot be proved: {error.message}",
                    fix=error.fix
                    or Fix("{}, and {}", quoted("rm", "-rf", tree.root, tree.inventory_path), ("provision",)),
                ) from error
        return {name: differences for name, differences in wrong.items() if differences}

    def prove_tree(
        self, tree: Tree, component: Component, *, progress: Progress = SILENT, offline: bool = False
    ) -> list[Difference]:
        """`prove` for one tree of this component, whether or not it was proved before."""
        if self.against_pins(tree, component) == []:
            self.mark_proved(tree)
            return []
        with (
            self._working_on(tree.root.name, progress),
            locking.work_in_progress(self.staging, self.locks) as staging,
        ):
            if Inventory.read(tree.inventory_path) != tree.inventory:
                return []  # Another process has made it anew; who asks looks again.
            assembly = Assembly(self, staging, tree.component, component, tree.want, progress, offline)
            tree_again = assembly.run()
            if wrong := self.against(tree, Pinned.of(tree_again)):
                tree.root.rename(staging / "damaged")
                if Pinned.of(tree_again) != Pinned.of(tree.inventory):
                    tree.inventory_path.rename(staging / "damaged.json")
                    self._commit(self.root_of(tree.component, component, tree.want), staging, tree_again)
                    return wrong
                # Its inventory stays, and with it every lease of the tree.
                (staging / "tree").rename(tree.root)
            self.mark_proved(tree)
            return wrong

    def accept(self, components: Mapping[str, Component], accepted: Mapping[str, str]) -> None:
        """Record that these components' licences are accepted; refuse when one is missing."""
        with _disk_errors(self.path):
            licences.require(self.path, components, accepted)

    def repair(
        self, tree: Tree, flags: Sequence[str] = (), *, progress: Progress = SILENT, offline: bool = False
    ) -> list[Difference]:
        """Repair a tree from kept downloads, fetching again what was pruned; returns what was wrong. `flags`
        select its profile, for the fix where nothing says what its bytes are."""
        wrong = self.verify(tree)
        modes = {item.path: item.mode for item in tree.inventory.items}
        for difference in wrong:
            if difference.kind == "mode":
                with _disk_errors(self.path):
                    (tree.root / difference.path).chmod(modes[difference.path])
        if any(difference.kind != "mode" for difference in wrong):
            component = Component.model_validate(dict(tree.inventory.manifest), strict=False)
            if not (component.pinned or self.is_proved(tree)):
                raise unlocked(self.path, tree.component, component, flags)
            self.prove_tree(tree, component, progress=progress, offline=offline)
        return wrong

    def gc(
        self,
        referenced: Callable[[Tree], bool],
        *,
        older_than: float | None = None,
        all_downloads: bool = False,
        dry_run: bool = False,
        progress: Progress = SILENT,
    ) -> list[cleaning.Garbage]:
        """Remove what nobody needs, once no process changes the store; returns what that was.

        That is: trees that are not `referenced`, that were unused for `older_than` seconds or that a wider
        tree makes needless; downloads that no remaining tree came from; what killed processes left.
        A tree that another process found, and may be reading, stays.
        """
        if not self.path.is_dir():
            return []
        with locking.Removal() as removal:
            if dry_run:
                leftovers = cleaning.needless(self, referenced, older_than, all_downloads, removal)
            else:
                with _disk_errors(self.path):
                    self._make_folders()
                    with locking.exclusive(self.locks, progress):
                        leftovers = cleaning.needless(self, referenced, older_than, all_downloads, removal)
                        with locking.work_in_progress(self.staging, self.locks) as staging:
                            for number, leftover in enumerate(leftovers):
                                cleaning.remove(self, leftover.path, staging / f"{number}")
        for name in removal.in_use:
            progress.note(f"{name} stays, as another process uses it")
        return leftovers

    @contextlib.contextmanager
    def _working_on(self, name: str, progress: Progress) -> Iterator[None]:
        """Keep other processes off one tree, and `gc` off the store."""
        with _disk_errors(self.path):
            self._make_folders()
            waiting = f"waiting for another process that works on {name}"
            with mutex(self.locks / f"{name}.lock", progress, waiting), locking.shared(self.locks):
                yield

    def _make_folders(self) -> None:
        for folder in (self.downloads, self.folder, self.staging, self.locks):
            folder.mkdir(parents=True, exist_ok=True)
        tag = self.path / "CACHEDIR.TAG"
        if not tag.exists():
            replace_text(tag, CACHEDIR_TAG)

    def _commit(self, root: Path, staging: Path, inventory: Inventory) -> Tree:
        record = staging / "inventory.json"
        record.write_text(inventory.as_json(), encoding="utf-8")
        if root.exists():
            root.rename(staging / "unfinished")
        (staging / "tree").rename(root)
        tree = Tree(root, inventory)
        record.replace(tree.inventory_path)
        locking.lease(tree.inventory_path)
        self.mark_used(root.name)
        self.mark_proved(tree)
        return tree


def unlocked(store: Path, name: str, component: Component, flags: Sequence[str] = ()) -> Unlocked:
    """The manifest does not name this component's bytes. `flags` select its profile."""
    command = ("provision", *flags, "--component", name, *licences.flags(store, [component]))
    return Unlocked(
        f"{name} {component.version} is not locked: no hash of it is public, so the manifest names none",
        fix=Fix("if you trust the server that sends it: {}", command),
    )


@contextlib.contextmanager
def _disk_errors(store: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        free = Fix("`{}`, or ", session("store", "gc", "--all-downloads")) if error.errno in FULL else ""
        known = disk_error(error, Fix("{}{}", free, ANOTHER_STORE), store if free else None)
        # A folder that cannot be made in /proc, /sys or behind a dangling link "does not exist".
        not_makeable = error.errno == errno.ENOENT and not store.is_dir()
        if known is None and (not_makeable or error.errno in IN_THE_WAY):
            where = error.filename or store
            known = EnvironmentLacking(f"{where}: not a store: {error.strerror}", fix=ANOTHER_STORE)
        if known is None:
            raise
        raise known from error
