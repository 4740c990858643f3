"""The content-addressed cache of provisioned trees.

    <store>/CACHEDIR.TAG
            downloads/   what was fetched, by sha256, kept so that more targets need no second download
            trees/       <component>-<version>-<key>/ and, beside it, its inventory <…>.json
            staging/     work in progress
            locks/       the mutex, and of each tree when it was last used and that it was proved here
            cache/       what is remembered of work done
            licences.json

One process at a time changes a store. A tree is built in staging/ and renamed into trees/; its inventory,
renamed last, commits it: without one, a tree does not exist for anybody. So a kill at any moment leaves
either the whole tree or leftovers that the next change removes. Files in trees are read-only; directories are
not, so that `rm -rf` works here as on any cache. What somebody writes into a tree, `verify` names and
`repair` removes.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from provisioning import licences
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed, EnvironmentLacking, IntegrityError
from provisioning.base.files import (
    ANOTHER_STORE,
    FULL,
    IN_THE_WAY,
    disk_error,
    mutex,
    remove_folder,
    replace_text,
)
from provisioning.base.progress import SILENT, Progress
from provisioning.download import fetch
from provisioning.manifest import Component
from provisioning.sources import Archive
from provisioning.store.assembly import Assembly
from provisioning.store.garbage import Garbage, garbage_of
from provisioning.store.inventory import EVERYTHING, Difference, targets_in
from provisioning.store.trees import Tree, Trees, against

__all__ = ["EVERYTHING", "Store", "Tree", "unlocked"]

CACHEDIR_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# Everything below can be fetched again with `nox -s provision`.\n"
)


class Store(Trees):
    def provision(
        self,
        component_name: str,
        component: Component,
        targets: Set[str] = EVERYTHING,
        *,
        trust_first_download: bool = False,
        accept: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
        offline: bool = False,
    ) -> Tree:
        """The tree for these targets, whole; fetched, verified and composed if it is not.

        A tree that was not made here is compared with the pins: one that a CI system's cache restored may
        have been changed together with its inventory. `accept` maps the ids of licences that the user accepts
        now to how they were accepted. Bytes that the manifest does not name are fetched only with
        `trust_first_download`; they must be the named SDK by what is inside."""
        tree = self._sound_tree(component_name, component, targets)
        if tree is not None:
            return tree
        damaged = self.find(component_name, component, targets)
        if not (component.pinned or trust_first_download or (damaged and self.is_proved(damaged))):
            raise unlocked_component(self.path, component_name, component)
        self.accept({component_name: component}, accept or {})
        with self._changing(progress) as staging:
            # Another process may have made it meanwhile.
            tree = self._sound_tree(component_name, component, targets)
            if tree is not None:
                return tree
            damaged = self.find(component_name, component, targets)
            made_for = damaged.targets if damaged else targets_in(component, targets)
            assembly = Assembly(self, staging, component_name, component, made_for, progress, offline)
            return self._commit(assembly, damaged)

    def repair(
        self,
        tree: Tree,
        component: Component,
        flags: Sequence[str] = (),
        *,
        progress: Progress = SILENT,
        offline: bool = False,
    ) -> list[Difference]:
        """Make a tree of this component anew, from its downloads, kept or fetched again, if any byte of it is
        another; returns what was wrong. `flags` select its profile."""
        if not (component.pinned or self.is_proved(tree)):
            raise unlocked_component(self.path, tree.component, component, flags)
        with self._changing(progress) as staging:
            assembly = Assembly(self, staging, tree.component, component, tree.targets, progress, offline)
            return list(self._commit(assembly, tree).repaired)

    def take_download(self, source: Archive, file: Path, progress: Progress = SILENT) -> None:
        """Take a copy of the user's file in place of a download. It must have the hash that the manifest
        names, if it names one."""
        place = source.landing_place(self.downloads)
        with self._changing(progress):
            if source.pin is None:
                # Nothing says that what was fetched before is this file.
                place.unlink(missing_ok=True)
            progress.note(f"copying {file} into the store")
            address = file.absolute().as_uri()
            try:
                fetch(address, place, sha256=source.sha256, size=source.size, progress=progress)
            except IntegrityError as error:
                fix = "download it again from its vendor, and compare its size"
                raise CheckFailed(error.message, fix=fix) from error

    def remove(self, tree: Tree, progress: Progress = SILENT) -> None:
        with self._changing(progress) as staging:
            self._remove(tree.root, staging / "removed")

    def accept(self, components: Mapping[str, Component], consents: Mapping[str, str]) -> None:
        """Record that these components' licences are accepted; refuse when one is missing."""
        with _disk_errors(self.path):
            licences.require(self.path, components, consents)

    def gc(
        self,
        referenced: Callable[[Tree], bool],
        *,
        older_than: float | None = None,
        all_downloads: bool = False,
        dry_run: bool = False,
        progress: Progress = SILENT,
    ) -> list[Garbage]:
        """Remove what nobody needs; returns what that was.

        That is: trees that are not `referenced`, that were unused for `older_than` seconds or that a tree of
        more targets makes needless; downloads that no remaining tree came from; what killed processes left.
        A tree that another process found, and may be reading, stays."""
        if not self.path.is_dir():
            return []
        with contextlib.ExitStack() as claims:
            if dry_run:
                return garbage_of(self, referenced, older_than, all_downloads, claims, progress)
            with self._changing(progress) as staging:
                garbage = garbage_of(self, referenced, older_than, all_downloads, claims, progress)
                for number, row in enumerate(garbage):
                    self._remove(row.path, staging / f"{number}")
        return garbage

    def _sound_tree(self, component_name: str, component: Component, targets: Set[str]) -> Tree | None:
        tree = self.find(component_name, component, targets)
        return tree if tree is not None and self.damage(tree, component) == [] else None

    @contextlib.contextmanager
    def _changing(self, progress: Progress) -> Iterator[Path]:
        """Keep other processes from changing the store; the folder is empty, for work in progress."""
        with _disk_errors(self.path):
            for folder in (self.downloads, self.folder, self.locks):
                folder.mkdir(parents=True, exist_ok=True)
            tag = self.path / "CACHEDIR.TAG"
            if not tag.exists():
                replace_text(tag, CACHEDIR_TAG)
            with mutex(
                self.locks / "store.lock", progress, "waiting for another process that changes the store"
            ):
                # What a killed process left there is no work of anybody.
                remove_folder(self.staging)
                self.staging.mkdir()
                try:
                    yield self.staging
                finally:
                    # What stays, the next change removes.
                    with contextlib.suppress(EnvironmentLacking):
                        remove_folder(self.staging)

    def _commit(self, assembly: Assembly, before: Tree | None) -> Tree:
        """Make a tree and put it in the place of `before`, unless that is the same."""
        inventory, staging = assembly.run(), assembly.staging
        # What is there may be whole already: an archive is unpacked to compare it, too.
        wrong = against(before, inventory) if before else []
        if before is not None and not wrong:
            self.mark_proved(before)
            return before
        root = self.root_of(assembly.name, assembly.component, assembly.targets)
        for path in {root, before.root} if before else {root}:
            self._remove(path, staging / f"before-{path.name}")
        (staging / "inventory.json").write_text(inventory.to_json(), encoding="utf-8")
        (staging / "tree").rename(root)
        tree = Tree(root, inventory, tuple(wrong))
        (staging / "inventory.json").replace(tree.inventory_path)
        self._lease_first([tree])
        self.mark_proved(tree)
        return tree

    def _remove(self, path: Path, into: Path) -> None:
        """Move something into a folder of staging, from where it is deleted. A process that waits for its
        mutex makes a new one, because this one is gone."""
        if path.parent == self.folder:
            # Without its inventory the tree is gone for everybody, even if its removal is interrupted.
            for file in (path.with_name(f"{path.name}.json"), *self.locks.glob(f"{path.name}.*")):
                file.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.rename(into)


def unlocked_component(
    store: Path, name: str, component: Component, flags: Sequence[str] = ()
) -> EnvironmentLacking:
    """The manifest does not name this component's bytes. `flags` select its profile."""
    command = ("provision", *flags, "--component", name, *licences.flags(store, [component]))
    return EnvironmentLacking(
        f"{name} {component.version} is not locked: no hash of it is public, so the manifest names none",
        fix=Fix("if you trust the server that sends it: {}", command),
    )


@contextlib.contextmanager
def _disk_errors(store: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        free = Fix("`{}`, or ", session("store", "gc", "--all-downloads")) if error.errno in FULL else ""
        trouble = disk_error(error, Fix("{}{}", free, ANOTHER_STORE), store if free else None)
        # A folder that cannot be made in /proc, /sys or behind a dangling link "does not exist".
        not_makeable = error.errno == errno.ENOENT and not store.is_dir()
        if trouble is None and (not_makeable or error.errno in IN_THE_WAY):
            where = error.filename or store
            trouble = EnvironmentLacking(f"{where}: not a store: {error.strerror}", fix=ANOTHER_STORE)
        if trouble is None:
            raise
        raise trouble from error
