"""`store`: list, verify, repair and prune the provisioned trees of a store, and record an SDK of the user's
own.

Each subcommand is one function below; what a store is and does is in `provisioning/store`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioning.base import answer
from provisioning.base.commands import Fix, session
from provisioning.base.errors import EnvironmentLacking, UsageError, exit_code_of
from provisioning.base.files import ANOTHER_STORE
from provisioning.base.flags import add_valued, switch
from provisioning.base.progress import for_stream
from provisioning.base.rendering import plural
from provisioning.base.settings import MANIFESTS, profile_flags, store_path, user_path
from provisioning.base.units import size
from provisioning.components import KINDS

if TYPE_CHECKING:
    from provisioning.manifest import Component
    from provisioning.store import Store, Tree
    from provisioning.store.inventory import Difference

_SHA256 = re.compile(r"\b[0-9a-f]{64}\b")
EXAMPLES = """\
  python -m provisioning store list
  python -m provisioning store verify
  python -m provisioning store repair
  python -m provisioning store gc --older-than 30d --dry-run
  python -m provisioning store adopt ~/qairt/2.48.0.260626
"""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=summary, description=summary)
        verb.add_argument("--store", type=Path, help="where the trees are [QNN_CI_STORE, user cache]")
        return verb

    add("list", "show every tree: what it is, for what, how large, when used, where")
    verify = add("verify", "read every byte again and compare with the pins, or with the inventories")
    repair = add("repair", "repair what `verify` finds, from kept downloads or by fetching again")
    for verb in (verify, repair):
        verb.add_argument("names", nargs="*", metavar="TREE", help="only these trees, by name or component")
    switch(repair, "--offline", "repair only from kept downloads")
    adopt = add("adopt", "take an SDK or NDK of your own as it is now: later changes are named")
    adopt.add_argument("folder", type=Path, metavar="DIR")
    gc = add("gc", "remove trees, downloads and cached results that nothing needs, and what killed runs left")
    add_valued(gc, "--older-than", "AGE", "also trees and results unused this long: 30d, 12h", type=_age)
    switch(gc, "--all-downloads", "also downloads kept for more targets and repair")
    switch(gc, "--dry-run", "only list what would be removed")


def run(args: argparse.Namespace) -> int:
    if args.what == "list":
        return _list(store_path(args.store))
    if args.what == "verify":
        return _verify(args.store, args.names)
    if args.what == "repair":
        return _repair(args.store, args.names, offline=args.offline)
    if args.what == "adopt":
        return _adopt(store_path(args.store), args.folder)
    return _collect_garbage(
        store_path(args.store),
        older_than=args.older_than,
        all_downloads=args.all_downloads,
        dry_run=args.dry_run,
    )


def _list(where: Path) -> int:
    from provisioning.store import Store
    from provisioning.verbs.provision import table

    store = Store(where)
    rows = [_row_of(store, tree) for tree in store.trees()]
    answer.add(trees=rows)
    if rows:
        sys.stdout.write(table([_format_row(row) for row in rows]))
    else:
        sys.stdout.write(f"no trees in {store.path}\n")
    return 0


def _verify(where: Path | None, names: Sequence[str]) -> int:
    store = _store_at(where)
    count = 0
    trees = _trees_named(store, names)
    if not trees:
        sys.stdout.write(f"no trees in {store.path}\n")
    components = _components_of_profiles()
    for tree in trees:
        differences, by_pins = _differences(store, tree, components)
        count += len(differences)
        sys.stdout.writelines(f"{tree.root.name}: {difference}\n" for difference in differences)
        if not differences:
            facts = f"{len(tree.inventory.items)} files, {size(tree.inventory.size)}"
            verdict = "whole" if by_pins else "whole by its own inventory"
            sys.stdout.write(f"{tree.root.name}: {verdict} ({facts})\n")
    if count:
        sys.stdout.write(f"{count} differences; try: {_typed_command('store', 'repair', store=where)}\n")
    return exit_code_of(good=not count)


def _repair(where: Path | None, names: Sequence[str], *, offline: bool) -> int:
    store = _store_at(where)
    count = 0
    components, progress = _components_of_profiles(), for_stream()
    for tree in _trees_named(store, names):
        wrong, _ = _differences(store, tree, components)
        if wrong and tree.inventory.definition in components:
            profile, component = components[tree.inventory.definition]
            flags = [*profile_flags(profile), *(["--store", str(where)] if where else [])]
            wrong = store.repair(tree, component, flags, progress=progress, offline=offline)
        elif wrong:
            # No profile names it. The stage that uses it makes it again.
            store.remove(tree, progress)
        count += len(wrong)
        sys.stdout.writelines(f"{tree.root.name}: {difference}\n" for difference in wrong)
    sys.stdout.write(f"{count} differences repaired\n" if count else "nothing to repair\n")
    return 0


def _adopt(store: Path, folder: Path) -> int:
    from provisioning.base.files import disk_errors
    from provisioning.own_installation import adopt, is_root
    from provisioning.store.own_trees import RECORDED, record

    path = user_path(str(folder), "DIR")
    name = next((name for name in RECORDED if is_root(name, path)), "")
    if not name:
        kinds = " or ".join(RECORDED)
        found = "another folder" if folder.is_dir() else "no such folder"
        raise UsageError(
            f"{folder}: expected the root of a {kinds}, found {found}",
            fix="name the folder that its variable names, such as QNN_SDK_ROOT",
        )
    own = adopt(name, str(path), KINDS[name].variable)
    with disk_errors(ANOTHER_STORE, store):
        tree = record(store, name, own.path, own.version)
    version, files = own.version or "of unknown version", plural(len(tree.files), "file")
    sys.stdout.write(f"{name} {version} at {own.path}: {files} recorded\n")
    return 0


def _differences(
    store: Store, tree: Tree, components: Mapping[str, tuple[str, Component]]
) -> tuple[list[Difference], bool]:
    """Return what is wrong with a tree, and whether its files are pinned, or only in its own inventory."""
    _, component = components.get(tree.inventory.definition, ("", None))
    by_pins = store.against_pins(tree, component) if component else None
    return (store.verify(tree), False) if by_pins is None else (by_pins, True)


def _collect_garbage(where: Path, *, older_than: float | None, all_downloads: bool, dry_run: bool) -> int:
    from provisioning.store import Store
    from provisioning.store.results import UNUSED_SECONDS, remove_results, results_limit

    garbage = Store(where).gc(
        _reference_test(),
        older_than=older_than,
        all_downloads=all_downloads,
        dry_run=dry_run,
        progress=for_stream(),
    )
    for entry in garbage:
        sys.stdout.write(f"{entry.path}: {entry.reason} ({size(entry.size)})\n")
    results = remove_results(where, results_limit(), unused_for=older_than or UNUSED_SECONDS, dry_run=dry_run)
    for removed in results:
        words = plural(removed.count, "cached result")
        sys.stdout.write(f"{words}: {removed.reason} ({size(removed.size)})\n")
    verb = "would go" if dry_run else "removed"
    count = len(garbage) + sum(removed.count for removed in results)
    total = sum(entry.size for entry in garbage) + sum(removed.size for removed in results)
    sys.stdout.write(f"{plural(count, 'thing')} {verb}, {size(total)}\n")
    return 0


def _reference_test() -> Callable[[Tree], bool]:
    """Return the test whether a manifest names a tree: a profile does by its definition, any other manifest
    by the hash of its origin. Only other trees may be removed."""
    from provisioning.manifest import every_component

    components = _components_of_profiles()
    pins = {part.source.pin for _, component in every_component() for part in component.parts}
    digests = {
        digest for file in MANIFESTS.rglob("*.toml") for digest in _SHA256.findall(file.read_text("utf-8"))
    }

    def is_referenced(tree: Tree) -> bool:
        hashes = {origin.sha256 for origin in tree.inventory.origins}
        of_profile = tree.component in KINDS and hashes & pins
        return tree.inventory.definition in components or (not of_profile and hashes <= digests)

    return is_referenced


def _components_of_profiles() -> dict[str, tuple[str, Component]]:
    """The components of profiles, each with a profile that has it, by definition."""
    from provisioning.base.settings import profile_names
    from provisioning.manifest import load_profile
    from provisioning.store.inventory import definition_of

    return {
        definition_of(name, component): (profile, component)
        for profile in reversed(profile_names())
        for name, component in load_profile(profile).pins.items()
    }


def _row_of(store: Store, tree: Tree) -> dict[str, Any]:
    inventory = tree.inventory
    return {
        "component": tree.component,
        "version": tree.version,
        "build_id": inventory.build_id,
        "targets": inventory.targets,
        "size": inventory.size,
        "last_used": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(store.last_used(tree))),
        # Without reading content, which `verify` does.
        "integrity": "damaged" if store.quick_check(tree) else "looks whole",
        "path": str(tree.root),
        "key": tree.key,
    }


def _format_row(row: dict[str, Any]) -> dict[str, str]:
    """Targets and path are one column, the last, which goes on below the others where a line has no room."""
    return {
        "component": row["component"],
        "version": row["version"],
        "size": size(row["size"]),
        "last used": row["last_used"],
        "integrity": row["integrity"],
        "targets and path": f"{', '.join(row['targets']) or 'any'}: {row['path']}",
    }


def _store_at(where: Path | None) -> Store:
    """The store, which must exist: a wrong path must not pass a check."""
    from provisioning.store import Store

    store = Store(store_path(where))
    if not store.path.is_dir():
        raise EnvironmentLacking(
            f"there is no store at {store.path}", fix=_typed_command("provision", store=where)
        )
    return store


def _trees_named(store: Store, names: Sequence[str]) -> list[Tree]:
    trees = store.trees()
    for name in names:
        if not any(name in (tree.root.name, tree.component) for tree in trees):
            raise UsageError(
                f"there is no tree {name!r} in {store.path}",
                fix=Fix("`{}` shows what there is", ("store", "list")),
            )
    return [tree for tree in trees if not names or {tree.root.name, tree.component} & set(names)]


def _typed_command(name: str, *arguments: str, store: Path | None) -> str:
    """The command of a session for the same store."""
    return session(name, *arguments, *(["--store", str(store)] if store else []))


def _age(text: str) -> float:
    match = re.fullmatch(r"(\d+)([dhm]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected an age such as 30d, 12h or 45m, found {text!r}")
    return int(match[1]) * {"": 86400, "d": 86400, "h": 3600, "m": 60}[match[2]]
