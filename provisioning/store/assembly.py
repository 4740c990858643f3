"""Make one tree of a store: fetch its parts, unpack them into a staging folder, and compose them.

Only a whole tree is moved to its place; until then nobody sees it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning import licences
from provisioning.base.commands import Fix, session
from provisioning.base.errors import ArchiveError, EnvironmentLacking, IntegrityError, UsageError
from provisioning.base.files import TreeFile
from provisioning.components import QNN_SDK, identity_of
from provisioning.manifest import Component, Part
from provisioning.store.inventory import (
    READ_ONLY,
    READ_ONLY_EXECUTABLE,
    Inventory,
    Origin,
    Placing,
    compose_tree,
    definition_of,
    inventory_of,
    parts_for,
    sdk_yaml,
)

if TYPE_CHECKING:
    from provisioning.base.progress import Progress
    from provisioning.store.trees import Trees

LINK_MODE = 0o777


@dataclass(frozen=True)
class Assembly:
    """One tree in the making, below `staging`."""

    store: Trees
    staging: Path
    name: str
    component: Component
    targets: frozenset[str]
    progress: Progress
    offline: bool

    def run(self) -> Inventory:
        """Make the tree at staging/tree; returns its inventory."""
        parts = parts_for(self.component, self.targets)
        if not parts:
            raise UsageError(f"{self.name} has nothing for this target", fix="choose another --target")
        try:
            origins, files = zip(*map(self._unpack, parts), strict=True)
            items = self._compose(files)
            self._check_identity()
        except IntegrityError as error:
            if self._forget(parts):
                flags = licences.flags(self.store.path, [self.component])
                again = ("provision", "--component", self.name, *flags)
                fix = Fix("what was downloaded is forgotten; to try again: {}", again)
                # What an archive's own fix tells to remove is not there any more.
                error.fix = fix if isinstance(error, ArchiveError) else Fix("{}; {}", error.fix, fix)
            raise
        if text := sdk_yaml(self.name, self.component, origins, items):
            path = self.staging / "tree" / "sdk.yaml"
            path.write_text(text, encoding="utf-8")
            path.chmod(READ_ONLY)
        return inventory_of(self.name, self.component, self.targets, origins, items)

    # One part

    def _unpack(self, part: Part) -> tuple[Origin, list[TreeFile]]:
        """The part's files, fetched and unpacked into its folder of staging."""
        source, before = part.source, self._earlier(part)
        if self.store.download_of(part) is None:
            if self.offline:
                raise EnvironmentLacking(
                    f"{self.name}: {part.name} was not fetched before, and --offline forbids to fetch it",
                    fix="run the same command without --offline",
                )
            if before is not None:
                self.progress.note(f"downloading {before.name} again because it was pruned from the store")
        download = source.fetch(self.store.downloads, self.progress)
        if before is not None and download.sha256 != before.sha256:
            raise IntegrityError(
                f"{before.name}: expected {before.sha256}, as when {self.name} was first "
                f"provisioned, found {download.sha256}",
                fix=Fix("what the server has changed: {}", session("lock", "--component", self.name)),
            )
        placing = Placing(part, self.targets)
        folder = self.staging / f"part-{part.name}"
        entries = source.unpack(download.path, folder, placing, self.progress)
        placing.check(source.name)
        items = []
        for entry in entries:
            mode = LINK_MODE
            if entry.kind == "file":
                mode = READ_ONLY_EXECUTABLE if entry.mode & 0o111 else READ_ONLY
                (folder / entry.path).chmod(mode)
            items.append(replace(entry, mode=mode, part=part.name))
        return Origin(part.name, source.name, download.sha256, download.size, source.pin is not None), items

    def _earlier(self, part: Part) -> Origin | None:
        """Find the part in a tree that is to be trusted: what was taken on trust once may not change."""
        definition = definition_of(self.name, self.component)
        for tree in self.store.trees(f"{self.name}-"):
            if tree.inventory.definition == definition and self.store.is_proved(tree):
                for origin in tree.inventory.origins:
                    if origin.part == part.name:
                        return origin
        return None

    # The whole

    def _compose(self, files: Sequence[Sequence[TreeFile]]) -> list[TreeFile]:
        """The tree of these parts' files."""
        items = compose_tree(files)
        root = self.staging / "tree"
        if len(files) == 1:
            (self.staging / f"part-{items[0].part}").rename(root)
            return items
        root.mkdir()
        for item in items:
            target = root / item.path
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.staging / f"part-{item.part}" / item.path).rename(target)
        return items

    def _check_identity(self) -> None:
        """Check, if no hash is pinned, that version and build are those of the manifest in every library."""
        if self.component.pinned:
            return
        root = self.staging / "tree"
        actual = identity_of(self.name, root).version
        if actual and not _same_version(actual, self.component.version):
            raise IntegrityError(
                f"{self.name}: expected version {self.component.version}, found {actual} in what was fetched",
                fix="correct the version or the address in the manifest",
            )
        if self.name == QNN_SDK and (wrong := _find_other_builds(root, self.component)):
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise IntegrityError(
                f"{self.name}: what was fetched is not the SDK that the manifest names: {wrong[0]}{more}",
                fix="fetch it from its vendor: unset QNN_CI_MIRROR",
            )

    def _forget(self, parts: Sequence[Part]) -> bool:
        """Remove what was downloaded on trust, and say whether there was any: without a hash it would be used
        again."""
        downloads = [self.store.download_of(part) for part in parts if part.source.pin is None]
        for download in downloads:
            if download is not None and download.is_file():
                download.unlink()
        return any(downloads)


def _find_other_builds(root: Path, component: Component) -> list[str]:
    """Return what shows that libraries below `root` are not of the component's build."""
    from provisioning import qnn_libraries

    build_id, table = component.build_id or f"v{component.version}", qnn_libraries.table()
    wrong, holders = [], 0
    for library in qnn_libraries.libraries_in(root):
        foreign = library.contradicting_builds(build_id)
        own = re.fullmatch(table.own, library.name) is not None and not library.path.is_symlink()
        holders += bool(library.build_ids)
        if own and library.unreadable:
            wrong.append(f"{library.place}: {library.unreadable}")
        elif foreign:
            wrong.append(f"{library.place}: expected build {build_id}, found {', '.join(foreign)}")
        elif own and table.names_build(library.name) and not (library.build_ids or library.build_pieces):
            wrong.append(f"{library.place}: expected build {build_id}, found no build id")
    return wrong if wrong or holders else [f"no library holds build id {build_id}"]


def _same_version(version: str, pin: str) -> bool:
    """Metadata may leave the last, dated part of a version out."""
    return f"{pin}.".startswith(f"{version}.") or f"{version}.".startswith(f"{pin}.")
