"""`provision`: fetch, verify and unpack a profile's components, unless they are there already."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning import licences
from provisioning.base import answer
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed, IntegrityError, UnknownName, UsageError
from provisioning.base.files import hash_file
from provisioning.base.findings import Artifact, Report, Severity
from provisioning.base.flags import repeatable, switch
from provisioning.base.progress import for_stream
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import Selection, profile_names
from provisioning.base.stage_run import StageRun
from provisioning.base.units import align, columns

if TYPE_CHECKING:
    from provisioning.base.progress import Progress
    from provisioning.manifest import Component, Profile
    from provisioning.sources import Archive
    from provisioning.store import Store, Tree

EXAMPLES = """\
  nox -s provision
  nox -s provision -- --target x86_64-linux
  nox -s provision -- --profile qnn-2.37 --component android-ndk --accept-licence android-sdk
  nox -s provision -- --profile qnn-2.37 --component qnn-sdk --from v2.37.0.250724.zip
  python -m provisioning provision --offline --json
"""


ANOTHER_RELEASE = (
    "another release is used unpacked: export QNN_SDK_ROOT=DIR (ANDROID_NDK_ROOT, HEXAGON_SDK_ROOT), and"
    " `validate` records its files"
)


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
    repeatable(
        parser,
        "--from",
        "FILE",
        "take this archive, which you downloaded from its vendor, in place of a download",
        dest="files",
        type=Path,
    )
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
    stage = StageRun("provision", selection.profile, ",".join(selection.named_targets) or "all")
    with stage.reported(selection.reports, "provision", selection.profile):
        profile = load_profile(selection.profile)
        rows = provision(
            selection,
            profile,
            stage,
            os.environ,
            names=args.component,
            files=args.files,
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
    names: Sequence[str],
    files: Sequence[Path] = (),
    trust: bool,
    accept: Sequence[str],
    offline: bool,
) -> list[Row]:
    from provisioning.environment import selecting_flags
    from provisioning.store import Store, unlocked_component

    store, targets, progress = Store(selection.store), frozenset(selection.named_targets), for_stream()
    components = _components_of(profile, names, targets)
    named_files = _files_of(components, files)
    rows: dict[str, Row] = {}
    for name in components:
        if (own := _own(name, selection, environ, progress)) is not None:
            rows[name] = own
            stage.add("own-directory", Severity.NOTE, name, f"{own.source}: {own.where} is used as it is")
    of_store = {name: component for name, component in components.items() if name not in rows}
    # Whoever names the file trusts it.
    trusted = set(of_store) if trust else set(named_files)
    # All that is missing must be allowed before any of it is fetched.
    for name, component in of_store.items():
        if not (component.pinned or name in trusted or _is_proved(store, name, component, targets)):
            raise unlocked_component(store.path, name, component, selecting_flags(selection, environ))
    absent = {
        name: component
        for name, component in of_store.items()
        if store.find(name, component, targets) is None
    }
    consents = licences.acceptances(accept, environ)
    store.accept(absent, consents)
    for name, component in of_store.items():
        start = time.monotonic()
        if name in absent:
            for archive, file in named_files.get(name, {}).items():
                store.take_download(archive, file, progress)
        try:
            tree = store.provision(
                name,
                component,
                targets,
                trust_first_download=name in trusted,
                accept=consents,
                progress=progress,
                offline=offline,
            )
        except IntegrityError as error:
            if name in named_files:
                fix = f"if it was cut, download it again; {ANOTHER_RELEASE}"
                raise CheckFailed(error.message, fix=fix) from error
            raise
        if name in absent:
            if not component.pinned:
                _warn_unlocked(name, tree, stage, progress)
            stage.metrics[f"{name}.seconds"] = round(time.monotonic() - start, 3)
        rows[name] = _report_tree(name, component, tree, stage, is_new=name in absent)
    stage.metrics["cached"] = len(components) - len(absent)
    return [rows[name] for name in components]


def _is_proved(store: Store, name: str, component: Component, targets: frozenset[str]) -> bool:
    """Whether the store has the component's tree, whose content was proved when it was fetched."""
    tree = store.find(name, component, targets)
    return tree is not None and store.is_proved(tree)


def _report_tree(name: str, component: Component, tree: Tree, stage: StageRun, *, is_new: bool) -> Row:
    """Put a tree of the store into the report, and return its row."""
    for damage in tree.repaired:
        subject = f"{tree.root.name}/{damage.path}"
        stage.add("store-damage", Severity.WARNING, subject, f"{damage}; repaired")
    # A tree's hash is that of its inventory, which has the hash of every file.
    digest = hash_file(tree.inventory_path)
    stage.artifacts.append(Artifact("tree", str(tree.root), digest, tree.inventory.size))
    state = "new" if is_new else "repaired" if tree.repaired else "already there"
    source = "+".join(dict.fromkeys(part.source.type for part in component.parts))
    return Row(name, tree.version, source, state, str(tree.root))


def table(rows: list[dict[str, str]]) -> str:
    """The rows as a table with the keys as its head; the last one may be long."""
    if not rows:
        return ""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    return "".join(f"{line}\n" for line in align(lines, columns()))


def _unknown_component(profile: Profile, name: str) -> UsageError:
    """Return the error for a component that the profile has not: another one has it, or it is misspelt."""
    from provisioning.components import KINDS
    from provisioning.manifest import load_profile

    message = f"the profile {profile.name} has no component {name!r}"
    like = next((kind for kind in KINDS if name in kind), "")
    if like and like not in profile.pins:
        others = [other for other in profile_names() if like in load_profile(other).pins]
        flags = [("--profile", other, "--component", like) for other in others]
        if flags:
            return UsageError(message, fix=Fix("{} has it", flags[0]))
    return UnknownName(message, name, profile.pins)


def _components_of(profile: Profile, names: Sequence[str], targets: Set[str]) -> dict[str, Component]:
    from provisioning.environment import serves
    from provisioning.store.inventory import parts_for, targets_in

    pins = profile.pins
    for name in names:
        if name not in pins:
            raise _unknown_component(profile, name)
    if names:
        return {name: pins[name] for name in pins if name in names}
    return {
        name: component
        for name, component in pins.items()
        if name not in profile.optional
        and serves(name, targets)
        and parts_for(component, targets_in(component, targets))
    }


def _files_of(components: Mapping[str, Component], files: Sequence[Path]) -> dict[str, dict[Archive, Path]]:
    """Find the archive that each of the user's files is, by component: the one of the file's name, or the
    only one."""
    from provisioning.sources import Archive

    archives = [
        (name, part.source)
        for name, component in components.items()
        for part in component.parts
        if isinstance(part.source, Archive)
    ]
    files_by_component: dict[str, dict[Archive, Path]] = {}
    for file in files:
        _require_file(file)
        fitting = [row for row in archives if row[1].name == file.name] or archives
        if len(fitting) != 1:
            raise _no_archive(file, archives)
        ((name, source),) = fitting
        files_by_component.setdefault(name, {})[source] = file
    return files_by_component


def _require_file(file: Path) -> None:
    if file.is_dir():
        fix = "an unpacked SDK is used as it is: export QNN_SDK_ROOT, ANDROID_NDK_ROOT or HEXAGON_SDK_ROOT"
        raise UsageError(f"--from {file}: expected an archive, found a folder", fix=fix)
    if not file.is_file():
        raise UsageError(f"--from {file}: there is no such file", fix="name the archive as it was downloaded")


def _no_archive(file: Path, archives: Sequence[tuple[str, Archive]]) -> UsageError:
    if not archives:
        message = f"--from {file}: nothing of this profile is an archive of a vendor"
        return UsageError(message, fix="name the profile that pins it: --profile qnn-2.37")
    names = ", ".join(f"{source.name} ({name})" for name, source in archives)
    message = f"--from {file}: expected one of {names}"
    return UsageError(message, fix=f"if it was renamed, add --component NAME; {ANOTHER_RELEASE}")


def _own(name: str, selection: Selection, environ: Mapping[str, str], progress: Progress) -> Row | None:
    from provisioning.environment import users_own
    from provisioning.own_installation import adopt
    from provisioning.stage_variables import Note

    notes: list[Note] = []
    own = users_own(name, selection.store, environ, notes)
    for note in notes:
        progress.note(note.text)
    if own is None:
        return None
    variable, value = own
    tree = adopt(name, value, variable)
    return Row(name, tree.version or "unknown", variable, "yours", str(tree.path))


def _warn_unlocked(name: str, tree: Tree, stage: StageRun, progress: Progress) -> None:
    """Warn of what was taken on trust, so that another machine can compare it."""
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
