"""`provision`: fetch, verify and unpack a profile's components, unless they are there already."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from provisioning import licences
from provisioning.base import answer
from provisioning.base.command_line import confirmed, repeatable, switch
from provisioning.base.commands import Fix, session
from provisioning.base.errors import UnknownName
from provisioning.base.files import hash_file
from provisioning.base.findings import Artifact, Report, Severity
from provisioning.base.progress import for_stream
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.base.units import aligned, columns

if TYPE_CHECKING:
    from provisioning.base.progress import Progress
    from provisioning.manifest import Component, Profile
    from provisioning.store import FileSelection, Store, Tree
    from provisioning.store.inventory import Difference

EXAMPLES = """\
  nox -s provision
  nox -s provision -- --target x86_64-linux --soc SM8750
  nox -s provision -- --profile qnn-2.37 --component android-ndk --accept-licence android-sdk
  python -m provisioning provision --offline --json
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One component and where it is."""

    component: str
    version: str
    source: str
    state: str
    where: str


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    repeatable(parser, "--component", "NAME", "only this one")
    switch(
        parser,
        licences.TRUST,
        "take a component whose hash the manifest does not name: it is looked at inside, and recorded",
    )
    licences.add_flag(parser)
    switch(parser, "--offline", "use only what was fetched before")


def run(args: argparse.Namespace) -> int:
    from provisioning.manifest import load_profile

    selection = selection_of(args)
    stage = StageRun.as_typed("provision", selection.profile, ",".join(selection.named_targets) or "all")
    with stage.reported(selection.reports, "provision", selection.profile):
        profile = load_profile(selection.profile)
        rows = provision(
            selection,
            profile,
            stage,
            os.environ,
            named=args.component,
            trust=args.trust_first_download,
            accept=args.accept,
            offline=args.offline,
        )

    def show(_: Report) -> None:
        from provisioning.environment import selecting_flags

        following = session("validate", *selecting_flags(selection, os.environ))
        components = [asdict(row) for row in rows]
        answer.add(profile=profile.name, components=components, next=following)
        sys.stdout.write(table(components) + f"next: {following}\n")

    return stage.close(selection.reports, show=show)


def provision(
    selection: Selection,
    profile: Profile,
    stage: StageRun,
    environ: Mapping[str, str],
    *,
    named: Sequence[str],
    trust: bool,
    accept: Sequence[str],
    offline: bool,
) -> list[Row]:
    from provisioning.environment import selecting_flags
    from provisioning.manifest import soc_named
    from provisioning.store import FileSelection, Store, unlocked

    store = Store(selection.store)
    want = FileSelection(
        frozenset(selection.named_targets), frozenset(soc_named(soc).arch for soc in selection.named_socs)
    )
    progress = for_stream()
    rows: dict[str, Row] = {}
    missing: dict[str, Component] = {}
    chosen = _chosen(profile, named, want)
    for name, component in chosen.items():
        if (own := _own(name, selection, environ, progress)) is not None:
            rows[name] = own
            stage.add("own-directory", Severity.NOTE, name, f"{own.source}: {own.where} is used as it is")
            continue
        wrong = {}
        if component.pinned or trust:
            wrong = store.prove(name, component, want, progress=progress, offline=offline)
            for tree_name, differences in wrong.items():
                _note_damage(tree_name, differences, stage)
        tree = store.find(name, component, want)
        if tree is not None and (component.pinned or store.is_proved(tree)):
            state = _repaired(store, tree, stage, progress, offline)
            rows[name] = _row(name, component, tree, "repaired" if wrong else state)
            stage.artifacts.append(_artifact(tree))
        else:
            root = store.root_of(name, component, want)
            for damaged in store.broken():
                if damaged.path == f"{root.name}.json":
                    _note_damage(root.name, [damaged], stage)
            missing[name] = component
            if not (component.pinned or trust):
                raise unlocked(store.path, name, component, selecting_flags(selection, environ))
    accepted = _accepted(store, missing, accept, environ)
    fetched = 0
    for name, component in missing.items():
        absent = {part.name: part for part in component.parts if store.kept(part) is None}
        began = time.monotonic()
        tree = store.provision(
            name,
            component,
            want,
            trust_first_download=trust,
            accept=accepted,
            progress=progress,
            offline=offline,
        )
        if not component.pinned:
            _warn_unlocked(name, tree, stage, progress)
        stage.metrics[f"{name}.seconds"] = round(time.monotonic() - began, 3)
        fetched += sum(
            origin.size
            for origin in tree.inventory.origins
            if origin.part in absent and store.kept(absent[origin.part]) is not None
        )
        rows[name] = _row(name, component, tree, "new")
        stage.artifacts.append(_artifact(tree))
    stage.metrics["bytes"] = fetched
    stage.metrics["cached"] = len(chosen) - len(missing)
    return [rows[name] for name in chosen]


def in_ci(environ: Mapping[str, str]) -> bool:
    return environ.get("CI", "").lower() not in ("", "0", "false")


def table(rows: list[dict[str, str]]) -> str:
    """The rows as a table with the keys as its head; the last one may be long."""
    if not rows:
        return ""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    return "".join(f"{line}\n" for line in aligned(lines, columns()))


def _chosen(profile: Profile, named: Sequence[str], want: FileSelection) -> dict[str, Component]:
    from provisioning.environment import serves
    from provisioning.store.tree_plan import selection_of as parts_of

    every = profile.pins
    for name in named:
        if name not in every:
            raise UnknownName(f"the profile {profile.name} has no component {name!r}", name, every)
    if named:
        return {name: every[name] for name in every if name in named}
    return {
        name: component
        for name, component in every.items()
        if name not in profile.optional
        and serves(name, want.targets)
        and any(parts_of(component, want).values())
    }


def _own(name: str, selection: Selection, environ: Mapping[str, str], progress: Progress) -> Row | None:
    from provisioning.components import adopt
    from provisioning.environment import users_own

    notes: list[str] = []
    own = users_own(name, selection.store, environ, notes)
    for note in notes:
        progress.note(note)
    if own is None:
        return None
    variable, value = own
    adopted = adopt(name, value, variable)
    return Row(name, adopted.version or "unknown", variable, "yours", str(adopted.path))


def _repaired(store: Store, tree: Tree, stage: StageRun, progress: Progress, offline: bool) -> str:
    """Repair a tree with deleted or truncated files; returns the row's state."""
    if not (damage := store.quick_check(tree)):
        return "already there"
    progress.note(f"{tree.root.name} is damaged ({damage[0]}); repairing it")
    _note_damage(tree.root.name, store.repair(tree, progress=progress, offline=offline), stage)
    return "repaired"


def _note_damage(tree: str, wrong: Sequence[Difference], stage: StageRun) -> None:
    for damage in wrong:
        stage.add("store-damage", Severity.WARNING, f"{tree}/{damage.path}", f"{damage}; repaired")


def _accepted(
    store: Store, components: Mapping[str, Component], flags: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    accepted = licences.named(flags, environ)
    unknown = licences.missing(store.path, components, accepted)
    if unknown and sys.stdin.isatty() and sys.stderr.isatty() and not in_ci(environ):
        for licence in unknown.values():
            if confirmed(f"{licence.title}\n  {licence.url}\nAccept it?"):
                accepted[licence.id] = "asked on the terminal"
    # Check all licences before anything is fetched.
    store.accept(components, accepted)
    return accepted


def _warn_unlocked(name: str, tree: Tree, stage: StageRun, progress: Progress) -> None:
    """What was taken on trust, so that another machine can compare it."""
    for origin in tree.inventory.origins:
        if not origin.locked:
            message = (
                f"{name} {tree.version} is not locked: {origin.name} was taken on trust, with sha256"
                f" {origin.sha256}; every library in it is of build {tree.inventory.build_id or tree.version}"
            )
            pins = ("lock", "--profile", stage.profile, "--component", name)
            fix = Fix("compare it with another download; then, in a clone, {} pins it", pins)
            progress.note(f"warning: {message}\n  try: {fix}")
            stage.add("unlocked-component", Severity.WARNING, name, message, fix)


def _row(name: str, component: Component, tree: Tree, state: str) -> Row:
    source = "+".join(dict.fromkeys(part.source.type for part in component.parts))
    return Row(name, tree.version, source, state, str(tree.root))


def _artifact(tree: Tree) -> Artifact:
    """A tree's hash is that of its inventory, which has the hash of every file."""
    return Artifact("tree", str(tree.root), hash_file(tree.inventory_path), tree.inventory.size)
