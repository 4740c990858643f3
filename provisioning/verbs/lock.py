"""`lock`: regenerate the lock files, record hashes that manifests lack, or check that none of it is stale."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning import licences
from provisioning.base.command_line import repeatable, switch
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UnknownName, UpstreamError
from provisioning.base.files import replace_text
from provisioning.base.progress import for_stream
from provisioning.base.settings import MANIFESTS, store_path

if TYPE_CHECKING:
    from provisioning.store import Store

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
    from provisioning import lock_files
    from provisioning.base.settings import profile_names
    from provisioning.store import Store

    profiles = args.profile or profile_names()
    if args.check:
        return _check(profiles)
    if args.torch:
        return _record_torch()
    store = Store(store_path(args.store))
    _record_components(store, profiles, args.component, licences.named(args.accept, os.environ))
    _record_wheels(store)
    # If a component or profile is named, only that is done.
    if args.upgrade is None and (args.component or args.profile):
        return 0
    upgrade = [f"--upgrade-package={name}" if name else "--upgrade" for name in args.upgrade or []]
    for name in lock_files.lockable():
        changed = lock_files.regenerate(name, upgrade)
        sys.stdout.write(f"manifests/locks/{name}.txt: {'written' if changed else 'unchanged'}\n")
    return _record_torch() if lock_files.torch_problems(lock_files.torch_pin()) else 0


def _record_torch() -> int:
    from provisioning import lock_files

    pin = lock_files.torch_pin()
    changed = lock_files.record_torch(pin)
    sys.stdout.writelines(f"manifests/torch/{path.name}: written\n" for path in changed)
    if problems := lock_files.torch_problems(pin):
        raise UpstreamError(
            f"not every build of torch could be recorded: {'; '.join(problems)}",
            fix="name an index that has it: PIP_EXTRA_INDEX_URL=URL before the same command",
        )
    if not changed:
        sys.stdout.write("manifests/torch: unchanged\n")
    return 0


def _check(profiles: Sequence[str]) -> int:
    from provisioning import lock_files
    from provisioning.manifest import every_component, load_environments, load_profile, load_socs
    from provisioning.store import pinned

    load_socs()
    for profile in profiles:
        for component, pins in load_profile(profile).components.items():
            if not pins.pinned:
                sys.stdout.write(
                    f"note: {profile}: {component} {pins.version} is not locked (no hash is on record)\n"
                )
    environments, known = lock_files.lockable(), load_environments()
    problems = []
    for name in environments:
        problems += lock_files.problems(
            lock_files.lock_path(name), lock_files.inputs_of(name), known[name].megabytes
        )
    problems += [
        f"{path.name}: no environment of that name"
        for path in sorted(lock_files.LOCKS.glob("*.txt"))
        if path.stem not in environments
    ]
    problems += lock_files.torch_problems(lock_files.torch_pin())
    components = [component for _, component in every_component()]
    problems += pinned.strangers(MANIFESTS / pinned.LISTS.name, components)
    if problems:
        raise CheckFailed("stale lock files:\n  " + "\n  ".join(problems), fix=session("lock"))
    sys.stdout.write(f"fresh: {', '.join(f'{name}.txt' for name in environments)}\n")
    return 0


def _record_components(
    store: Store, profiles: Sequence[str], names: Sequence[str], accept: Mapping[str, str]
) -> None:
    """Provision these components, and put into their profiles which bytes they are."""
    from provisioning.manifest import load_profile

    known = {name for profile in profiles for name in load_profile(profile).components}
    for name in names:
        if name not in known:
            raise UnknownName(f"no component {name!r} in {', '.join(profiles)}", name, known)
    for profile in profiles:
        path = MANIFESTS / "profiles" / f"{profile}.toml"
        for name, component in load_profile(profile).pins.items():
            if name not in names:
                continue
            tree = store.provision(
                name, component, trust_first_download=True, accept=accept, progress=for_stream()
            )
            sources = {part.name: part.source for part in component.parts}
            for origin in tree.inventory.origins:
                keys = sources[origin.part].recordable(origin.sha256, origin.size)
                replace_text(path, with_source_keys(path, name, origin.part, keys))
            sys.stdout.write(f"{profile}: {name} {component.version} is locked\n")


def with_source_keys(path: Path, component: str, part: str, keys: Mapping[str, str | int]) -> str:
    """The text of the profile at `path` with `keys` in the source of one part.

    What is there already stays: a pin is changed by hand, with the reason in the commit."""
    import tomlkit

    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    parts = document["components"][component]["parts"]
    source = next(row["source"] for row in parts if row["name"] == part)
    for key, value in keys.items():
        source.setdefault(key, value)
    return document.as_string()


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
