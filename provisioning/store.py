"""The content-addressed cache of provisioned trees.

    <store>/CACHEDIR.TAG
            downloads/   what was fetched, by sha256, kept so that a wider selection needs no second download
            trees/       <component>-<version>-<key>/ and, beside it, its inventory <…>.json
            staging/     work in progress, one directory for each process at work
            locks/       locks between processes, and when each tree was last used
            licences.json

A tree is built in staging/ and renamed into trees/; its inventory, renamed last, is what commits it: without
one a tree does not exist for anybody. So a kill at any moment leaves either the whole tree or leftovers that
the next run removes. Files in trees are read-only; directories are not, so that `rm -rf` works here as on any
cache. What is written into a tree all the same, `verify` names and `repair` takes away.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from provisioning import leases, licences
from provisioning.base.errors import CheckFailed, EnvironmentLacking, IntegrityError, Unlocked, UsageError
from provisioning.component_facts import identity_of
from provisioning.inventory import (
    Fault,
    Inventory,
    Item,
    Origin,
    fault_of,
    faults_of,
    hash_file,
)
from provisioning.manifest import Archive, Component, Git, Maven, Part, Wheel
from provisioning.tree_plan import (
    EVERYTHING,
    GENERATED,
    Placing,
    Want,
    composed,
    covers,
    definition_of,
    key_of,
    sdk_yaml,
    selection_of,
)

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from provisioning.base.progress import Progress
    from provisioning.download import Fetched

__all__ = ["EVERYTHING", "Leftover", "Store", "Tree", "Want"]

CACHEDIR_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# Everything below can be fetched again with `nox -s provision`.\n"
)
READ_ONLY, READ_ONLY_EXECUTABLE = 0o444, 0o555
LINK_MODE = 0o777


@dataclass(frozen=True, slots=True)
class Tree:
    """A whole, committed tree."""

    root: Path
    key: str
    component: str
    version: str
    inventory: Inventory

    @property
    def inventory_path(self) -> Path:
        return self.root.with_name(f"{self.root.name}.json")


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that `gc` takes away, and why."""

    path: Path
    reason: str
    size: int


class Store:
    def __init__(self, path: Path) -> None:
        if os.path.isfile(path):  # noqa: PTH113  Path's own raises where a parent may not be entered
            raise EnvironmentLacking(
                f"{path}: expected the store's folder, found a file",
                remedy="choose another store with --store or QNN_CI_STORE",
            )
        self.path = path
        self.downloads = path / "downloads"
        self._trees = path / "trees"
        self._staging = path / "staging"
        self._locks = path / "locks"

    # Finding

    def trees(self, prefix: str = "") -> list[Tree]:
        """Every committed tree, by name."""
        found = []
        for path in sorted(self._trees.glob(f"{prefix}*.json")):
            root = path.with_name(path.name.removesuffix(".json"))
            inventory = Inventory.read(path) if root.is_dir() else None
            if inventory is not None:
                found.append(Tree(root, inventory.key, inventory.component, inventory.version, inventory))
        return found

    def checkout_of(self, commit: str) -> Path:
        """Where the repository of a commit, or of a tag without one, is kept beside its tree."""
        return self.downloads / f"git-{commit.replace('/', '-')}"

    def broken(self) -> list[Fault]:
        """Trees that were committed and are no longer there as such; provisioning makes them anew."""
        found = []
        for path in sorted(self._trees.glob("*.json")):
            name = path.name.removesuffix(".json")
            if not path.with_name(name).is_dir():
                found.append(Fault(name, "missing", "a tree, as its inventory says", "nothing"))
            elif Inventory.read(path) is None:
                found.append(Fault(path.name, "changed", "an inventory", "something else"))
        return found

    def find(self, component_name: str, component: Component, want: Want) -> Tree | None:
        """The tree that serves `want`: made for exactly it, else the smallest that holds it too.

        Until this process ends, `gc` leaves that tree alone.
        """
        definition = definition_of(component_name, component)
        selection = selection_of(component, want)
        exact = key_of(definition, selection)
        serving = [
            tree
            for tree in self.trees(f"{component_name}-{component.version}-")
            if tree.inventory.definition == definition and covers(tree.inventory.selection, selection)
        ]
        if not any(selection.values()):
            return None
        serving.sort(key=lambda tree: (tree.key != exact, len(tree.inventory.items), tree.key))
        return self._leased(serving)

    def find_any(self, component_name: str, component: Component) -> Tree | None:
        """A tree of this component, whatever was selected of it: the one with the most parts."""
        definition = definition_of(component_name, component)
        trees = [t for t in self.trees(f"{component_name}-") if t.inventory.definition == definition]
        return self._leased(sorted(trees, key=lambda tree: -len(tree.inventory.origins)))

    def _leased(self, trees: Sequence[Tree]) -> Tree | None:
        """The first of these trees that `gc` did not remove just now; kept until this process ends."""
        for tree in trees:
            if leases.take(tree.inventory_path):
                self._touch(tree.root.name)
                return tree
        return None

    def last_used(self, tree: Tree) -> float:
        for path in (self._locks / f"{tree.root.name}.used", tree.inventory_path):
            with contextlib.suppress(OSError):
                return path.stat().st_mtime
        return 0.0

    # Provisioning

    def provision(
        self,
        component_name: str,
        component: Component,
        want: Want = EVERYTHING,
        *,
        locked: bool = False,
        accept: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        offline: bool = False,
    ) -> Tree:
        """The tree for `want`, fetched, verified and laid out if it is not there yet.

        `accept` maps the ids of licences that the user accepts now to how that was said. With `locked`, a
        component whose bytes the manifest does not name is refused.
        """
        if locked:
            require_lock(component_name, component)
        if (tree := self.find(component_name, component, want)) is not None:
            return tree
        with _disk_faults(self.path):
            self._make()
            licences.require(self.path, {component_name: component}, accept or {})
            definition = definition_of(component_name, component)
            key = key_of(definition, selection_of(component, want))
            name = f"{component_name}-{component.version}-{key[:12]}"
            with (
                self._alone(name, progress, f"waiting for another process that provisions {component_name}"),
                self._shared(),
            ):
                if (tree := self.find(component_name, component, want)) is not None:
                    return tree
                with self._work_in_progress() as staging:
                    assembly = _Assembly(self, staging, component_name, component, want, progress, offline)
                    inventory = assembly.run(definition, key)
                    return self._commit(name, staging, inventory)

    def accept(self, components: Mapping[str, Component], given: Mapping[str, str]) -> None:
        """Put acceptances of these components' licences on record; refuse when one is missing."""
        with _disk_faults(self.path):
            licences.require(self.path, components, given)

    def kept(self, part: Part) -> Path | None:
        """The part's file if it was fetched before and not pruned."""
        source = part.source
        if not isinstance(source, (Archive, Wheel, Maven)):
            return None
        from provisioning.download import file_name
        from provisioning.sources import landing_place
        from provisioning.sources.maven import artifact_url

        if isinstance(source, Archive):
            url, name = source.url, file_name(source.url)
        elif isinstance(source, Wheel):
            url, name = f"wheel:{source.filename}", source.filename
        else:
            url = artifact_url(source)
            name = f"{source.artifact}-{source.version}.{source.packaging}"
        path = landing_place(self.downloads, source.sha256, url, name)
        return path if path.is_file() else None

    # Keeping

    def verify(self, tree: Tree) -> list[Fault]:
        """Every difference between the tree and its inventory, by reading every byte again."""
        return faults_of(tree.root, tree.inventory.items)

    def glance(self, tree: Tree) -> list[Fault]:
        """Faults that show without reading content: in a thousandth of the time of `verify`."""
        found = (fault_of(tree.root, item, content=False) for item in tree.inventory.items)
        return [fault for fault in found if fault is not None]

    def repair(self, tree: Tree, *, progress: Progress | None = None, offline: bool = False) -> list[Fault]:
        """Mend a tree from its kept downloads, fetching again what was pruned; returns what was wrong."""
        with _disk_faults(self.path):
            self._make()
            waiting = f"waiting for another process that works on {tree.root.name}"
            with self._alone(tree.root.name, progress, waiting), self._shared():
                faults = self.verify(tree)
                if faults:
                    with self._work_in_progress() as staging:
                        self._mend(tree, faults, staging, progress, offline)
                    if left := self.verify(tree):
                        raise CheckFailed(
                            f"{tree.root.name}: {left[0]} after mending",
                            remedy=f"rm -rf {tree.root} {tree.inventory_path} && nox -s provision",
                        )
                return faults

    def gc(
        self,
        referenced: Callable[[Tree], bool],
        *,
        older_than: float | None = None,
        all_downloads: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> list[Leftover]:
        """Remove what nobody needs, once no process changes the store; returns what that was.

        That is: trees that are not `referenced`, that were unused for `older_than` seconds or that a wider
        tree makes needless; downloads that no remaining tree came from; what killed processes left.
        A tree that another process found, and may be reading, stays.
        """
        if not self.path.is_dir():
            return []
        with leases.Removal() as removal:
            if dry_run:
                return self._leftovers(referenced, older_than, all_downloads, removal)
            with _disk_faults(self.path):
                self._make()
                with self._exclusive(progress):
                    found = self._leftovers(referenced, older_than, all_downloads, removal)
                    with self._work_in_progress() as staging:
                        for number, leftover in enumerate(found):
                            self._remove(leftover.path, staging / f"{number}")
        if progress is not None:
            for name in removal.in_use:
                progress.note(f"{name} stays, as another process uses it")
        return found

    # Inside

    def _leftovers(
        self,
        referenced: Callable[[Tree], bool],
        older_than: float | None,
        all_downloads: bool,
        removal: leases.Removal,
    ) -> list[Leftover]:
        trees = self.trees()
        reasons: dict[str, str] = {}
        for tree in trees:
            if not referenced(tree):
                reasons[tree.key] = "no manifest names it"
            elif older_than is not None and time.time() - self.last_used(tree) > older_than:
                reasons[tree.key] = "was not used for long"
        staying = [tree for tree in trees if tree.key not in reasons]
        for tree in staying:
            if any(_holds(other, tree) for other in staying):
                reasons[tree.key] = "a wider tree holds all of it"
        for tree in trees:
            if tree.key in reasons and not removal.claim(tree.inventory_path):
                del reasons[tree.key]
        kept = [tree for tree in trees if tree.key not in reasons]
        found = [
            Leftover(tree.root, reasons[tree.key], tree.inventory.size)
            for tree in trees
            if tree.key in reasons
        ]
        committed = {tree.root.name for tree in trees}
        for path in sorted(self._trees.glob("*")):
            if path.name.removesuffix(".json") not in committed:
                found.append(Leftover(path, "was never finished", _size(path)))
        used = {origin.sha256 for tree in kept for origin in tree.inventory.origins}
        for path in sorted(self.downloads.glob("*")):
            if path.suffix != ".lock" and (all_downloads or not self._serves(path, used)):
                reason = "is kept for widening and repair only" if all_downloads else "no tree came from it"
                found.append(Leftover(path, reason, _size(path)))
        return found + [Leftover(path, "its process is gone", _size(path)) for path in self._abandoned()]

    def _remove(self, path: Path, into: Path) -> None:
        if path.parent == self._trees:
            # Without its inventory a tree is gone for everybody, however far its removal gets.
            path.with_name(f"{path.name}.json").unlink(missing_ok=True)
            (self._locks / f"{path.name}.used").unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.rename(into)

    def _serves(self, download: Path, used: set[str]) -> bool:
        name = download.name.partition(".")[0].removeprefix("git-")
        if len(name) == 64 or download.is_dir():
            return name in used
        # Fetched without a known hash: named by its address.
        return download.suffix != ".part" and hash_file(download) in used

    def _make(self) -> None:
        for folder in (self.downloads, self._trees, self._staging, self._locks):
            folder.mkdir(parents=True, exist_ok=True)
        tag = self.path / "CACHEDIR.TAG"
        if not tag.exists():
            fresh = tag.with_name(f".CACHEDIR.TAG.{os.getpid()}")
            fresh.write_text(CACHEDIR_TAG, encoding="utf-8")
            fresh.replace(tag)

    def _touch(self, name: str) -> None:
        # A store that cannot be written to still serves.
        with contextlib.suppress(OSError):
            (self._locks / f"{name}.used").touch()

    def _commit(self, name: str, staging: Path, inventory: Inventory) -> Tree:
        root = self._trees / name
        record = staging / "inventory.json"
        record.write_text(inventory.as_json(), encoding="utf-8")
        if root.exists():
            root.rename(staging / "unfinished")
        (staging / "tree").rename(root)
        record.replace(root.with_name(f"{name}.json"))
        leases.take(root.with_name(f"{name}.json"))
        self._touch(name)
        return Tree(root, inventory.key, inventory.component, inventory.version, inventory)

    def _mend(
        self, tree: Tree, faults: Sequence[Fault], staging: Path, progress: Progress | None, offline: bool
    ) -> None:
        inventory = tree.inventory
        for number, fault in enumerate(faults):
            path = tree.root / fault.path
            if fault.kind == "mode":
                path.chmod(inventory.by_path[fault.path].mode)
            elif fault.kind == "extra":
                # What lies in a directory that was moved away before is gone already.
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    path.rename(staging / f"extra-{number}")
        damaged = {
            fault.path: inventory.by_path[fault.path]
            for fault in faults
            if fault.kind in ("missing", "changed")
        }
        if not damaged:
            return
        component = Component.model_validate(dict(inventory.manifest), strict=False)
        want = Want(frozenset(inventory.targets), frozenset(inventory.arches))
        assembly = _Assembly(self, staging, inventory.component, component, want, progress, offline)
        fresh = assembly.again(inventory, damaged)
        for number, item in enumerate(damaged.values()):
            target = tree.root / item.path
            if target.is_dir() and not target.is_symlink():
                target.rename(staging / f"in-the-way-{number}")
            _make_folder(tree.root, target.parent, staging / f"blocking-{number}")
            fresh[item.path].replace(target)

    @contextlib.contextmanager
    def _work_in_progress(self) -> Iterator[Path]:
        """A directory of our own in staging/, that others can tell from one whose process is gone."""
        from filelock import FileLock

        with self._lock("staging"):
            for path in self._abandoned():
                shutil.rmtree(path, ignore_errors=True)
            mine = self._staging / f"{os.getpid()}-{secrets.token_hex(4)}"
            mine.mkdir()
            alive = FileLock(mine / "alive.lock")
            alive.acquire()
        try:
            yield mine
        finally:
            shutil.rmtree(mine, ignore_errors=True)
            alive.release()

    def _abandoned(self) -> list[Path]:
        from filelock import FileLock, Timeout

        found = []
        for path in sorted(self._staging.glob("*")):
            try:
                with FileLock(path / "alive.lock", timeout=0):
                    found.append(path)
            except Timeout:
                continue
            except OSError:
                found.append(path)
        return found

    def _lock(self, name: str) -> BaseFileLock:
        from filelock import FileLock

        return FileLock(self._locks / f"{name}.lock")

    @contextlib.contextmanager
    def _alone(self, name: str, progress: Progress | None, waiting: str) -> Iterator[None]:
        from filelock import Timeout

        lock = self._lock(name)
        try:
            lock.acquire(timeout=0.2)
        except Timeout:
            if progress is not None:
                progress.note(waiting)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _shared(self) -> Iterator[None]:
        """Hold off `gc` while trees are made from other trees and from downloads."""
        import fcntl

        with (self._locks / "store.lock").open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def _exclusive(self, progress: Progress | None) -> Iterator[None]:
        import fcntl

        with (self._locks / "store.lock").open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if progress is not None:
                    progress.note("waiting for the processes that use the store")
                fcntl.flock(stream, fcntl.LOCK_EX)
            yield


def require_lock(name: str, component: Component) -> None:
    """Refuse a component whose bytes the manifest does not name."""
    if not component.locked:
        raise Unlocked(
            f"{name} {component.version} is not locked: its manifest names no sha256, "
            "and --locked (the default when CI is set) takes only bytes that are known",
            remedy=f"nox -s lock -- --component {name}",
        )


@dataclass(frozen=True, slots=True)
class _Laid:
    """What one part gave: its items, and where the bytes of each are now."""

    origin: Origin
    items: tuple[Item, ...]
    where: Mapping[str, Path]
    linked: frozenset[str]
    """Those that another tree has, to be shared with it and not moved."""


class _Assembly:
    """One tree in the making."""

    def __init__(
        self,
        store: Store,
        staging: Path,
        name: str,
        component: Component,
        want: Want,
        progress: Progress | None,
        offline: bool,
    ) -> None:
        self._store = store
        self._staging = staging
        self._name = name
        self._component = component
        self._want = want
        self._progress = progress
        self._offline = offline
        self._selection = selection_of(component, want)
        definition = definition_of(name, component)
        self._relatives = [
            tree for tree in store.trees(f"{name}-") if tree.inventory.definition == definition
        ]

    def run(self, definition: str, key: str) -> Inventory:
        parts = [part for part in self._component.parts if self._selection[part.name]]
        if not parts:
            raise UsageError(
                f"{self._name} has nothing for {', '.join(sorted(self._want.targets)) or 'this selection'}",
                remedy="choose another --target",
            )
        laid = _in_parallel(self._lay, parts)
        items = self._compose(laid)
        origins = tuple(one.origin for one in laid)
        self._check_identity(items)
        if self._name == "qnn-sdk" and not any(item.path == "sdk.yaml" for item in items):
            text = sdk_yaml(self._component, origins, items)
            items = sorted([*items, self._write("sdk.yaml", text)], key=lambda item: item.path)
        return Inventory(
            component=self._name,
            version=self._component.version,
            build_id=self._component.build_id or "",
            key=key,
            definition=definition,
            targets=tuple(sorted(self._want.targets)),
            arches=tuple(sorted(self._want.arches)),
            selection=self._selection,
            manifest=self._component.model_dump(mode="json"),
            origins=origins,
            items=tuple(items),
            created=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        )

    def again(self, inventory: Inventory, damaged: Mapping[str, Item]) -> dict[str, Path]:
        """The damaged files of a tree, made anew in staging and checked against its inventory."""
        fresh: dict[str, Path] = {}
        for part in self._component.parts:
            mine = {path for path, item in damaged.items() if item.part == part.name}
            if mine:
                origin = next(one for one in inventory.origins if one.part == part.name)
                laid = self._bring(part, origin, mine.__contains__)
                fresh.update(laid.where)
        generated = self._staging / "generated"
        for path, item in damaged.items():
            if item.part == GENERATED:
                others = [one for one in inventory.items if one.part != GENERATED]
                generated.write_text(sdk_yaml(self._component, inventory.origins, others), encoding="utf-8")
                generated.chmod(READ_ONLY)
                fresh[path] = generated
        for path, item in damaged.items():
            where = fresh.get(path)
            if where is None:
                raise IntegrityError(
                    f"{path}: expected it in what {item.part} is unpacked from, found no such member",
                    remedy="nox -s provision",
                )
            fault = fault_of(where.parent, replace(item, path=where.name))
            if fault is not None:
                raise IntegrityError(
                    f"{path}: expected {fault.expected}, found {fault.found} in what was fetched again",
                    remedy="the file on the server changed: provision anew and lock the component",
                )
        return fresh

    # One part

    def _lay(self, part: Part) -> _Laid:
        twin = self._twin(part)
        if twin is not None:
            return twin
        relative = next((tree for tree in self._relatives if _origin(tree, part.name)), None)
        before = _origin(relative, part.name) if relative else None
        shared = {
            item.path: (tree.root, item)
            for tree in self._relatives
            for item in tree.inventory.items
            if item.part == part.name
        }
        linked: dict[str, Item] = {}

        def fresh(path: str) -> bool:
            root, item = shared.get(path, (None, None))
            if root is None or item is None or path in linked or fault_of(root, item) is not None:
                return True
            linked[path] = item
            return False

        laid = self._bring(part, before, fresh)
        return _Laid(
            laid.origin,
            (*laid.items, *linked.values()),
            {**laid.where, **{path: shared[path][0] / path for path in linked}},
            frozenset(linked),
        )

    def _twin(self, part: Part) -> _Laid | None:
        """All of the part, from a tree that was made with the same selection of it."""
        for tree in self._relatives:
            if tuple(tree.inventory.selection.get(part.name, ())) != self._selection[part.name]:
                continue
            items = tuple(item for item in tree.inventory.items if item.part == part.name)
            if any(fault_of(tree.root, item) for item in items):
                continue
            where = {item.path: tree.root / item.path for item in items}
            if (origin := _origin(tree, part.name)) is not None:
                return _Laid(origin, items, where, frozenset(where))
        return None

    def _bring(self, part: Part, before: Origin | None, fresh: Callable[[str], bool]) -> _Laid:
        """The part's files for which `fresh` holds, in staging."""
        if isinstance(part.source, Git):
            return self._check_out(part, part.source, before, fresh)
        return self._unpack(part, self._fetch(part, before), fresh)

    def _fetch(self, part: Part, before: Origin | None) -> Fetched:
        from provisioning.sources import fetch_part

        if self._store.kept(part) is None:
            self._may_fetch(part)
            if before is not None:
                self._note(f"downloading {before.name} again because it was pruned from the store")
        fetched = fetch_part(part, self._store.downloads, progress=self._progress)
        self._same_as_before(before, fetched.sha256)
        return fetched

    def _check_out(
        self, part: Part, source: Git, before: Origin | None, fresh: Callable[[str], bool]
    ) -> _Laid:
        from provisioning.sources import git

        checkout = self._store.checkout_of(source.commit or source.tag)
        if not checkout.is_dir():
            self._may_fetch(part)
        commit = git.checkout(source, checkout, self._progress)
        self._same_as_before(before, commit)
        placing = Placing(part, self._want)
        folder = self._staging / f"part-{part.name}"
        items = []
        for path in git.files(checkout, source):
            place = placing(path)
            if place is None or not fresh(place):
                continue
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / path, target, follow_symlinks=False)
            items.append(_landed(folder, place, part.name))
        placing.check(source.tag)
        origin = Origin(part.name, source.tag, commit, 0, source.commit is not None)
        return _Laid(origin, tuple(items), {i.path: folder / i.path for i in items}, frozenset())

    def _may_fetch(self, part: Part) -> None:
        if self._offline:
            raise EnvironmentLacking(
                f"{self._name}: {part.name} was not fetched before, and --offline forbids to fetch it",
                remedy="run the same command without --offline",
            )

    def _same_as_before(self, before: Origin | None, found: str) -> None:
        if before is not None and found != before.sha256:
            raise IntegrityError(
                f"{before.name}: expected {before.sha256}, as when {self._name} was first "
                f"provisioned, found {found}",
                remedy=f"what the server has changed: nox -s lock -- --component {self._name}",
            )

    def _unpack(self, part: Part, fetched: Fetched, fresh: Callable[[str], bool]) -> _Laid:
        from provisioning.archive import Limits, extract

        placing = Placing(part, self._want)
        folder = self._staging / f"part-{part.name}"
        source = part.source

        def place(member: str) -> str | None:
            path = placing(member)
            return path if path is not None and fresh(path) else None

        name = source.filename if isinstance(source, Wheel) else _file_name(part)
        limits = Limits(case_sensitive=isinstance(source, Archive) and source.case_sensitive)
        told = _Named(self._progress, f"unpack {name}") if self._progress is not None else None
        entries = extract(fetched.path, folder, place, limits=limits, progress=told)
        placing.check(name)
        items = []
        for entry in entries:
            mode = LINK_MODE
            if entry.kind == "file":
                mode = READ_ONLY_EXECUTABLE if entry.mode & 0o111 else READ_ONLY
                (folder / entry.path).chmod(mode)
            items.append(Item(entry.path, entry.kind, entry.size, entry.sha256, mode, entry.link, part.name))
        named = getattr(source, "sha256", None) is not None
        origin = Origin(part.name, name, fetched.sha256, fetched.size, named)
        return _Laid(origin, tuple(items), {i.path: folder / i.path for i in items}, frozenset())

    # The whole

    def _compose(self, laid: Sequence[_Laid]) -> list[Item]:
        items = composed([one.items for one in laid])
        root = self._staging / "tree"
        if len(laid) == 1 and not laid[0].linked:
            (self._staging / f"part-{laid[0].origin.part}").rename(root)
            return items
        by_part = {one.origin.part: one for one in laid}
        folders: set[Path] = set()
        root.mkdir()
        for item in items:
            source = by_part[item.part]
            target = root / item.path
            if target.parent not in folders:
                target.parent.mkdir(parents=True, exist_ok=True)
                folders.add(target.parent)
            if item.path in source.linked:
                _share(source.where[item.path], target)
            else:
                source.where[item.path].rename(target)
        return items

    def _check_identity(self, items: Sequence[Item]) -> None:
        """What is inside must be what the manifest says, where no hash says so already."""
        if self._component.locked:
            return
        from provisioning.build_id import build_ids

        root = self._staging / "tree"
        component = self._component
        found = identity_of(self._name, root).version
        if found and not _same_version(found, component.version):
            raise IntegrityError(
                f"{self._name}: expected version {component.version}, found {found} inside what was fetched",
                remedy="correct the version or the address in the manifest",
            )
        if self._name != "qnn-sdk":
            return
        ids: dict[str, str] = {}
        for item in items:
            if item.kind == "file" and "/lib" in item.path and ".so" in item.path:
                for build_id in build_ids(root / item.path):
                    ids.setdefault(build_id, item.path)
        if component.build_id and ids and component.build_id not in ids:
            ids.setdefault(component.build_id, "the manifest")
        if len(ids) > 1:
            words = ", ".join(f"{build_id} ({path})" for build_id, path in sorted(ids.items()))
            raise IntegrityError(
                f"{self._name}: expected one build id in all libraries, found {words}",
                remedy="this is not the SDK that the manifest names: check its address",
            )

    def _write(self, path: str, text: str) -> Item:
        tree = self._staging / "tree"
        (tree / path).write_text(text, encoding="utf-8")
        return _landed(tree, path, GENERATED)

    def _note(self, text: str) -> None:
        if self._progress is not None:
            self._progress.note(text)


@dataclass(frozen=True, slots=True)
class _Named:
    """A progress under the name that the user knows, as downloads are named by their hash."""

    inner: Progress
    name: str

    def start(self, name: str, total: int | None, done: int = 0) -> None:
        self.inner.start(self.name, total, done)

    def advance(self, count: int) -> None:
        self.inner.advance(count)

    def note(self, text: str) -> None:
        self.inner.note(text)

    def finish(self) -> None:
        self.inner.finish()


def _file_name(part: Part) -> str:
    from provisioning.download import file_name
    from provisioning.sources.maven import artifact_url

    source = part.source
    if isinstance(source, Maven):
        return file_name(artifact_url(source))
    return file_name(source.url) if isinstance(source, Archive) else part.name


def _holds(wide: Tree, narrow: Tree) -> bool:
    return (
        wide.key != narrow.key
        and wide.inventory.definition == narrow.inventory.definition
        and covers(wide.inventory.selection, narrow.inventory.selection)
    )


def _origin(tree: Tree, part: str) -> Origin | None:
    return next((one for one in tree.inventory.origins if one.part == part), None)


def _landed(folder: Path, path: str, part: str) -> Item:
    """What a copied file is, made read-only."""
    target = folder / path
    status = target.lstat()
    if stat.S_ISLNK(status.st_mode):
        link = os.readlink(target)  # noqa: PTH115  a Path would normalise the text
        return Item(path, "link", status.st_size, "", LINK_MODE, link, part)
    mode = READ_ONLY_EXECUTABLE if status.st_mode & 0o111 else READ_ONLY
    target.chmod(mode)
    return Item(path, "file", status.st_size, hash_file(target), mode, "", part)


def _share(source: Path, target: Path) -> None:
    """The same file in two trees; a copy where the file system cannot link."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copy2(source, target, follow_symlinks=False)


def _make_folder(root: Path, folder: Path, aside: Path) -> None:
    """Make `folder` below `root`, moving aside a file or link that stands where one of its parents should."""
    path = root
    for name in folder.relative_to(root).parts:
        path = path / name
        if path.is_symlink() or path.is_file():
            path.rename(aside)
        path.mkdir(exist_ok=True)


T = TypeVar("T")
R = TypeVar("R")


def _in_parallel(work: Callable[[T], R], things: Sequence[T]) -> list[R]:
    """Each thing in a thread of its own; daemons, so that an interrupt need not wait for a download."""
    if len(things) == 1:
        return [work(things[0])]
    results: dict[int, R] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = work(things[number])
        except BaseException as error:  # raised again by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(things))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(things))]


def _same_version(found: str, expected: str) -> bool:
    """Metadata may leave the last, dated part of a version out."""
    return f"{expected}.".startswith(f"{found}.") or f"{found}.".startswith(f"{expected}.")


def _size(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return sum(one.lstat().st_size for one in path.rglob("*") if not one.is_dir())
    return path.lstat().st_size


@contextlib.contextmanager
def _disk_faults(store: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EnvironmentLacking(
                f"{store}: expected space for what is laid out, found the disk full",
                remedy="free some space (`nox -s store -- gc --all-downloads` helps), "
                "or choose another store with --store or QNN_CI_STORE",
            ) from error
        # A folder that cannot be made in /proc, /sys or behind a dangling link "does not exist".
        not_makeable = error.errno == errno.ENOENT and not store.is_dir()
        if not_makeable or error.errno in _NOT_WRITABLE:
            raise EnvironmentLacking(
                f"{error.filename or store}: expected a store to write to, found: {error.strerror}",
                remedy="choose another store with --store or QNN_CI_STORE, or mend its permissions",
            ) from error
        raise


_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)
