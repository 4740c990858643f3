"""Regenerate the lock files, record hashes that manifests lack, or check that none of it is stale.

manifests/environments.toml → manifests/locks/ENVIRONMENT.txt, by `uv pip compile`: hashes, no addresses.
Torch and what only its CUDA build needs are not in them, because its builds differ by index. Two files have
their hashes: manifests/torch/cpu.txt the CPU build, and index.txt the package index's own with its CUDA.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lab.lock.environments import load_environments
from provisioning import pip_settings
from provisioning.base import toml
from provisioning.base.commands import Fix, captured, session
from provisioning.base.errors import CheckFailed, ManifestError, UnknownName, UpstreamError, UsageError
from provisioning.base.files import replace_text
from provisioning.base.progress import for_stream
from provisioning.base.settings import MANIFESTS
from provisioning.manifest import Component, every_component, load_profile, load_socs
from provisioning.python_environments import (
    CPU,
    CUDA_ONLY,
    LOCKS,
    PYTORCHS_INDEX,
    TORCH,
    Entry,
    entries_in,
    entries_of,
    lock_path,
    name_of,
    require_uv,
)
from provisioning.sources import Wheel
from provisioning.store import Store, inventory
from provisioning.store.inventory import Listed, Lists

SCHEMA = 1
INDEX = "index.txt"
OLDEST_PYTHON = "3.10"
HOST = (
    "platform_machine == 'x86_64'",
    "platform_python_implementation == 'CPython'",
    "sys_platform == 'linux'",
    "python_full_version < '3.14'",
)
SUPPORTED = " and ".join(HOST)

MOST_FILES = 200
"""Wheels with more are proved by the download itself."""


def check(profiles: Sequence[str]) -> int:
    load_socs()
    for profile in profiles:
        for component, pins in load_profile(profile).components.items():
            if not pins.pinned:
                sys.stdout.write(
                    f"note: {profile}: {component} {pins.version} is not locked (no hash is on record)\n"
                )
    environments, known = lockable(), load_environments()
    stale = []
    for name in environments:
        stale += problems(lock_path(name), inputs_of(name), known[name].megabytes)
    stale += [
        f"{path.name}: no environment of that name"
        for path in sorted(LOCKS.glob("*.txt"))
        if path.stem not in environments
    ]
    stale += torch_problems(torch_pin())
    stale += _strangers([component for _, component in every_component()])
    if stale:
        raise CheckFailed("stale lock files:\n  " + "\n  ".join(stale), fix=session("lock"))
    sys.stdout.write(f"fresh: {', '.join(f'{name}.txt' for name in environments)}\n")
    return 0


# Lock files of environments


def lockable() -> list[str]:
    return sorted(name for name, environment in load_environments().items() if not environment.abstract)


def inputs_of(environment: str) -> tuple[str, ...]:
    """Every requirement of an environment, with those that it includes and the profile's packages."""
    known, requirements, waiting = load_environments(), set[str](), [environment]
    for name in waiting:
        if name not in known:
            names = ", ".join(sorted(known))
            raise ManifestError(MANIFESTS / "environments.toml", "include", expected=names, found=name)
        own = known[name]
        requirements.update(own.requires)
        waiting += [included for included in own.include if included not in waiting]
        if own.profile:
            profile = load_profile(own.profile)
            marker = f"; python_version >= '{own.python}'" if own.python else ""
            for package, version in (profile.onnx if own.lane == "onnx" else profile.packages).items():
                # Sessions install torch separately, by exactly this text.
                requirements.add(f"{package}=={version}{'' if package == 'torch' else marker}")
    return tuple(sorted(requirements))


def header(inputs: Sequence[str], megabytes: int | None = None) -> list[str]:
    """The comments of a lock file: all that its content follows from."""
    canonical = json.dumps([SCHEMA, OLDEST_PYTHON, SUPPORTED, *inputs])
    return [
        "# Written by `nox -s lock` from manifests/environments.toml; not to be edited.",
        f"# inputs-sha256: {hashlib.sha256(canonical.encode()).hexdigest()}",
        *(f"# input: {requirement}" for requirement in inputs),
        *(f"# torch: {requirement}" for requirement in inputs if name_of(requirement) == "torch"),
        *([f"# room: {megabytes} MB"] if megabytes else []),
    ]


def problems(path: Path, inputs: Sequence[str], megabytes: int | None = None) -> list[str]:
    """What is stale or wrong in the lock file of an environment with these inputs. Needs no network."""
    if not path.is_file():
        return [f"{path.name}: there is no lock file for the environment {path.stem!r}"]
    text, comments = path.read_text(encoding="utf-8"), header(inputs, megabytes)
    entries, lines = entries_in(text), text.splitlines()
    written = {*comments, *_text([], entries).splitlines()}
    messages = [f"lacks the line `{comment}`" for comment in comments if comment not in lines]
    messages += [f"holds the line `{line}`" for line in lines if line not in written or "://" in line]
    messages += [f"{entry.line} has no hash" for entry in entries if not entry.hashes]
    return [f"{path.name}: {message}" for message in messages or _unmet(inputs, entries)]


def _unmet(inputs: Sequence[str], entries: Sequence[Entry]) -> list[str]:
    """What the pins do not fit."""
    from packaging.requirements import Requirement

    unmet = []
    for wanted in map(Requirement, inputs):
        versions = [entry.version for entry in entries if entry.name == name_of(wanted.name)]
        fits = [wanted.specifier.contains(version, prereleases=True) for version in versions]
        if wanted.name != "torch" and not (fits and all(fits)):
            unmet.append(f"{wanted} is required but not pinned")
    return unmet


def regenerate(environment: str, upgrade: Sequence[str]) -> bool:
    """Regenerate one lock file, keeping the pins that still fit; returns whether it changed."""
    path, inputs = lock_path(environment), inputs_of(environment)
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    entries = [entry for entry in resolve(inputs, *upgrade, old=old) if not _of_torch(entry)]
    return _write(path, header(inputs, load_environments()[environment].megabytes), entries)


def _text(comments: Sequence[str], entries: Sequence[Entry]) -> str:
    return "\n".join([*comments, *(entry.text for entry in entries), ""])


def _write(path: Path, comments: Sequence[str], entries: Sequence[Entry]) -> bool:
    text = _text(comments, entries)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    replace_text(path, text)
    return True


def resolve(requirements: Sequence[str], *flags: str, old: str = "") -> list[Entry]:
    """The pins and hashes of requirements; those of `old` are kept where they fit."""
    text = uv_pip_compile(requirements, *flags, "--generate-hashes", old=old)
    return [replace(entry, line=_plain(entry.line)) for entry in entries_in(text)]


def _plain(line: str) -> str:
    """Drop the markers that every line has. With them, pip would install nothing on another host."""
    for marker in HOST:
        line = line.replace(f" and {marker}", "").replace(f"{marker} and ", "").removesuffix(f" ; {marker}")
    return line


def wheels_of(line: str, *flags: str) -> set[str]:
    """The hashes of a pin's wheels; none where no index has this version, or it cannot be reached."""
    try:
        answer = uv_pip_compile([line], "--no-deps", *flags, output="pylock.toml", portable=False)
    except (UsageError, UpstreamError):
        return set()
    wheels = [wheel for package in toml.loads(answer)["packages"] for wheel in package["wheels"]]
    # pip would install none without a hash.
    return {f"sha256:{wheel['hashes']['sha256']}" for wheel in wheels if "hashes" in wheel}


def uv_pip_compile(
    requirements: Sequence[str], *flags: str, output: str = "lock.txt", old: str = "", portable: bool = True
) -> str:
    """If not `portable`, folders of this machine count too, which have the wheels of one platform."""
    with tempfile.TemporaryDirectory(prefix="qnn-ci-lock-") as scratch:
        folder = Path(scratch)
        # uv reads supported environments only from a project.
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "locks"\nversion = "0"\nrequires-python = ">={OLDEST_PYTHON}"\n'
            f'[tool.uv]\nenvironments = ["{SUPPORTED}"]\n',
            encoding="utf-8",
        )
        (folder / "inputs.in").write_text("\n".join(requirements) + "\n", encoding="utf-8")
        if old:
            (folder / output).write_text(old, encoding="utf-8")
        command = [require_uv(), "pip", "compile", "inputs.in", "--output-file", output, "--quiet"]
        command += ["--universal", "--python-version", OLDEST_PYTHON, "--python", sys.executable]
        command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
        environ = {**os.environ, **pip_settings.uv_variables(os.environ, portable=portable)}
        done = captured([*command, *pip_settings.uv_flags(os.environ), *flags], cwd=folder, env=environ)
        answer = done.stderr.strip()
        if "unsatisfiable" in answer or "No solution found" in answer:
            message = f"{', '.join(requirements)} cannot be resolved:\n{answer}"
            raise UsageError(message, fix="change the requirements in manifests/environments.toml")
        if done.returncode:
            raise UpstreamError(
                f"uv could not resolve {', '.join(requirements)}:\n{answer}",
                fix=Fix("check the package index that pip or uv is set to, then run `{}` again", ("lock",)),
            )
        return (folder / output).read_text(encoding="utf-8")


# The builds of torch


def torch_pin() -> str:
    """`torch==VERSION`, as the environments pin it; empty if none does."""
    pins = {line for name in lockable() for line in inputs_of(name) if name_of(line) == "torch"}
    if len(pins) > 1:
        found = " and ".join(sorted(pins))
        raise ManifestError(
            MANIFESTS / "environments.toml", "(environments)", expected="one version of torch", found=found
        )
    return "".join(pins)


def torch_problems(pin: str, folder: Path = TORCH) -> list[str]:
    """What the recorded builds of `torch_pin()` lack. Needs no network."""
    builds = ((folder / CPU, f"{pin}+cpu"), (folder / INDEX, pin))
    return [
        f"torch/{path.name}: has no {line} with a hash"
        for path, line in builds
        if pin and not any(entry.line == line and entry.hashes for entry in entries_of(path))
    ]


def record_builds_of_torch() -> int:
    pin = torch_pin()
    changed = record_torch(pin)
    sys.stdout.writelines(f"manifests/torch/{path.name}: written\n" for path in changed)
    if lacking := torch_problems(pin):
        raise UpstreamError(
            f"not every build of torch could be recorded: {'; '.join(lacking)}",
            fix="name an index that has it: PIP_EXTRA_INDEX_URL=URL before the same command",
        )
    if not changed:
        sys.stdout.write("manifests/torch: unchanged\n")
    return 0


def record_torch(pin: str, folder: Path = TORCH) -> list[Path]:
    """Record the builds that the user's index has, beside those on record; returns the files that changed."""
    line = f"{pin}+cpu"
    hashes = {value for entry in entries_of(folder / CPU) if entry.line == line for value in entry.hashes}
    for index in ((), (PYTORCHS_INDEX,)):
        hashes |= wheels_of(line, *index)
    own = [entry for entry in resolve([pin]) if _of_torch(entry)]
    # An index with both builds offers the CPU build for the plain pin too.
    own = own if pin in [entry.line for entry in own] else entries_of(folder / INDEX)
    files = {
        CPU: (
            "The CPU build of torch, of every index that was asked.",
            [Entry("torch", line, tuple(sorted(hashes)))],
        ),
        INDEX: ("The package index's own build of torch, and what only it needs.", own),
    }
    return [
        folder / name
        for name, (comment, entries) in files.items()
        if _write(folder / name, [f"# {comment}", "# Written by `nox -s lock -- --torch`."], entries)
    ]


def _of_torch(entry: Entry) -> bool:
    return entry.name == "torch" or CUDA_ONLY.fullmatch(entry.name) is not None


# Hashes of components


def record_components(
    store: Store, profiles: Sequence[str], names: Sequence[str], accept: Mapping[str, str]
) -> None:
    """Provision these components, and put into their profiles which bytes they are."""
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
                if sources[origin.part].type == "git":
                    keys: dict[str, str | int] = {"commit": origin.sha256}
                else:
                    keys = {"sha256": origin.sha256, "size": origin.size}
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


def record_wheels(store: Store) -> None:
    """Record the hash of each file in the profiles' wheels, by which a tree is proved without its wheel."""
    before = inventory.load_lists(inventory.LISTS)
    lists, absent = _listed([component for _, component in every_component()], store.downloads, before)
    if lists != before:
        data = {"schema": SCHEMA, **lists.model_dump(mode="json", exclude_defaults=True)}
        replace_text(inventory.LISTS, json.dumps(data, indent=1, sort_keys=True) + "\n")
        inventory.load_lists.cache_clear()
    sys.stdout.write(f"manifests/{inventory.LISTS.name}: {'unchanged' if lists == before else 'written'}\n")
    for name in absent:
        sys.stdout.write(f"note: the files of {name} are not recorded, because it was never fetched here\n")


def _listed(components: Iterable[Component], downloads: Path, before: Lists) -> tuple[Lists, list[str]]:
    """The lists of these components' wheels, read from what was fetched; and the wheels that never were."""
    lists: dict[str, dict[str, Listed]] = {}
    absent = []
    for source in {part.source for component in components for part in component.parts}:
        if not isinstance(source, Wheel) or source.pin is None:
            continue
        if source.pin in before.wheels:
            lists[source.pin] = before.wheels[source.pin]
        elif (wheel := source.landing_place(downloads)).is_file():
            folder = Path(tempfile.mkdtemp(dir=downloads))
            try:
                source.fetch(downloads)
                entries = source.unpack(wheel, folder, lambda member: member if member[-1] != "/" else None)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if len(entries) <= MOST_FILES:
                lists[source.pin] = {
                    entry.path: Listed(
                        sha256=entry.sha256, size=entry.size, executable=bool(entry.mode & 0o111)
                    )
                    for entry in entries
                }
        else:
            absent.append(source.name)
    return Lists(wheels=lists), sorted(absent)


def _strangers(components: Iterable[Component]) -> list[str]:
    """Lists of wheels that no profile names any more."""
    known = {part.source.pin for component in components for part in component.parts}
    strange = sorted(inventory.load_lists(inventory.LISTS).wheels.keys() - known)
    return [f"{inventory.LISTS.name}: no profile has a wheel of sha256 {pin}" for pin in strange]
