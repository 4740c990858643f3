"""`lock`: record hashes that manifests lack, regenerate the lock files, or check that none of it is stale."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning import licences
from provisioning.base.command_line import repeatable, switch
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, ManifestError, UnknownName, UpstreamError
from provisioning.base.files import replace_text
from provisioning.base.progress import for_stream
from provisioning.base.settings import MANIFESTS, store_path

if TYPE_CHECKING:
    from tomlkit.items import Table

    from provisioning.manifest import Component
    from provisioning.store import Store
    from provisioning.store.inventory import Origin

EXAMPLES = """\
  nox -s lock
  nox -s lock -- --check
  nox -s lock -- --component qnn-sdk --accept-licence qualcomm-ai-stack
  nox -s lock -- --upgrade pytest
"""


def configure(parser: argparse.ArgumentParser) -> None:
    switch(parser, "--check", "write nothing, need no network, name what is stale")
    repeatable(parser, "--component", "NAME", "provision this component and record its hashes")
    parser.add_argument("--profile", action="append", default=[], help="only this profile; may be repeated")
    parser.add_argument(
        "--upgrade",
        action="append",
        nargs="?",
        const="",
        metavar="PACKAGE",
        help="take newer versions: of this package (may be repeated), or of all",
    )
    switch(parser, "--torch", "record the builds of torch that your package index has")
    licences.add_flag(parser)
    parser.add_argument("--store", type=Path, help="where provisioned trees live [QNN_CI_STORE, user cache]")


def run(args: argparse.Namespace) -> int:
    from provisioning import lock_files, torch_builds
    from provisioning.base.settings import profile_names

    environments, profiles = lock_files.lockable(), args.profile or profile_names()
    if args.check:
        return _check(environments, profiles)
    if args.torch:
        return _record_torch()
    # If a component or profile is named, only that is done.
    _record(store_path(args.store), profiles, args.component, args.accept)
    if args.upgrade or not (args.component or args.profile):
        everything = "" in (args.upgrade or [])
        packages = [package for package in args.upgrade or [] if package]
        for name in environments:
            changed = lock_files.regenerate(name, upgrade=everything, upgrade_packages=packages)
            sys.stdout.write(f"manifests/locks/{name}.txt: {'written' if changed else 'unchanged'}\n")
        if torch_builds.problems(torch_builds.requirement()):
            return _record_torch()
    return 0


def _record_torch() -> int:
    from provisioning import torch_builds

    pin = torch_builds.requirement()
    changed = torch_builds.record(pin)
    for path in changed:
        sys.stdout.write(f"manifests/torch/{path.name}: written\n")
    if not changed:
        sys.stdout.write("manifests/torch: unchanged\n")
    if problems := torch_builds.problems(pin):
        raise UpstreamError(
            f"not every build of torch could be recorded: {'; '.join(problems)}",
            fix="name an index that has it: PIP_EXTRA_INDEX_URL=URL before the same command",
        )
    return 0


def _check(environments: list[str], profiles: list[str]) -> int:
    from provisioning import lock_files, torch_builds
    from provisioning.manifest import every_component, load_profile, load_socs
    from provisioning.store import pinned

    load_socs()
    for name in profiles:
        for component, pins in load_profile(name).components.items():
            if not pins.pinned:
                sys.stdout.write(
                    f"note: {name}: {component} {pins.version} is not locked (no hash is on record)\n"
                )
    problems = []
    for name in environments:
        problems += lock_files.problems(lock_files.lock_path(name), lock_files.inputs_of(name))
    problems += [
        f"{path.name}: no environment of that name"
        for path in sorted(lock_files.LOCKS.glob("*.txt"))
        if path.stem not in lock_files.lockable()
    ]
    problems += torch_builds.problems(torch_builds.requirement())
    components = [component for _, component in every_component()]
    problems += pinned.strangers(MANIFESTS / pinned.LISTS.name, components)
    if problems:
        raise CheckFailed("stale lock files:\n  " + "\n  ".join(problems), fix=session("lock"))
    sys.stdout.write(f"fresh: {', '.join(f'{name}.txt' for name in environments)}\n")
    return 0


def _record(where: Path, profiles: Sequence[str], named: Sequence[str], accept: Sequence[str]) -> None:
    """Record the pins of the named components, provisioning them; of others, what the store has already."""
    from provisioning.manifest import load_profile
    from provisioning.store import Store

    store = Store(where)
    known = {name for profile in profiles for name in load_profile(profile).components}
    for name in named:
        if name not in known:
            raise UnknownName(f"no component {name!r} in {', '.join(profiles)}", name, known)
    accepted = licences.named(accept, os.environ)
    for profile in profiles:
        for name, component in load_profile(profile).pins.items():
            if named and name not in named:
                continue
            if _complete(component):
                if named:
                    sys.stdout.write(f"{profile}: {name} {component.version} is locked\n")
                continue
            tree = (
                store.provision(name, component, accept=accepted, progress=for_stream())
                if named
                else store.find_any(name, component)
            )
            if tree is None:
                sys.stdout.write(
                    f"{profile}: {name} {component.version}: not recorded, as it was never fetched here "
                    f"({session('lock', '--profile', profile, '--component', name)})\n"
                )
                continue
            for origin in tree.inventory.origins:
                _record_origin(profile, name, component, origin)
    _record_wheels(store)


def _record_wheels(store: Store) -> None:
    """Record the hash of each file in the profiles' wheels, by which a tree is proved without its wheel."""
    from provisioning.manifest import every_component
    from provisioning.store import pinned

    path = MANIFESTS / pinned.LISTS.name
    before = pinned.load_lists(path)
    components = [component for _, component in every_component()]
    lists, absent = pinned.recorded(components, store.downloads, before)
    if lists != before:
        replace_text(path, pinned.as_text(lists))
        pinned.load_lists.cache_clear()
    sys.stdout.write(f"manifests/{path.name}: {'unchanged' if lists == before else 'written'}\n")
    for name in absent:
        sys.stdout.write(f"note: the files of {name} are not recorded, because it was never fetched here\n")


def _record_origin(profile: str, name: str, component: Component, origin: Origin) -> None:
    path = MANIFESTS / "profiles" / f"{profile}.toml"
    before = path.read_text(encoding="utf-8")
    source = next(part.source for part in component.parts if part.name == origin.part)
    keys = source.recordable(origin.sha256, origin.size)
    after = with_source_keys(path, name, origin.part, keys)
    if after != before:
        replace_text(path, after)
        pairs = ", ".join(f"{key} {value}" for key, value in keys.items())
        sys.stdout.write(f"{path.name}: {name}: {origin.part}: recorded {pairs}\n")


def with_source_keys(path: Path, component: str, part: str, keys: dict[str, str | int]) -> str:
    """The text of the profile at `path` with `keys` in the source of one part; the rest stays as it is.

    A key that is there with another value is an error: a pin is changed by hand, with the reason in the
    commit.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    from provisioning.base.documents import parse
    from provisioning.manifest import Profile

    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8"))
    except TOMLKitError as error:
        raise ManifestError(path, "(syntax)", expected="TOML", found=str(error)) from error
    profile = parse(document.unwrap(), Profile, path)
    parts = profile.pins[component].parts
    number = next(index for index, candidate in enumerate(parts) if candidate.name == part)
    source = parts[number].source
    for key, value in keys.items():
        recorded = getattr(source, key)
        if recorded not in (None, value):
            raise ManifestError(
                path,
                f"components.{component}.parts.{number}.source.{key}",
                expected=f"{recorded} (as recorded)",
                found=str(value),
            )
    written: Table = document["components"][component]["parts"][number]["source"]
    for key, value in keys.items():
        if key not in written:
            written.append(key, value)
    parse(document.unwrap(), Profile, path)
    return document.as_string()


def _complete(component: Component) -> bool:
    return component.pinned and all(getattr(part.source, "size", 0) is not None for part in component.parts)
