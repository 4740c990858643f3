"""The lock files: manifests/environments.toml → manifests/locks/ENVIRONMENT.txt, by `uv pip compile`, with
hashes and without addresses.

Torch and what only its CUDA build needs are not in them, because its builds differ by index. Two files have
their hashes: manifests/torch/cpu.txt the CPU build, and index.txt the package index's own with its CUDA.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from packaging.requirements import Requirement
from pydantic import AfterValidator, Field, RootModel, StringConstraints

from provisioning import pip_settings
from provisioning.base import toml
from provisioning.base.commands import Fix, capture
from provisioning.base.documents import Model, Name, load
from provisioning.base.errors import ManifestError, UpstreamError, UsageError
from provisioning.base.files import replace_text
from provisioning.base.settings import MANIFESTS
from provisioning.lock_files import (
    CPU,
    CUDA_ONLY,
    PYTORCHS_INDEX,
    TORCH,
    Entry,
    entries_in,
    entries_of,
    lock_path,
    name_of,
    require_uv,
)
from provisioning.manifest import load_profile

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


class LockedEnvironment(Model):
    """The packages of one virtual environment, before it is locked."""

    include: tuple[Name, ...] = ()
    """Other environments whose requirements are taken too."""
    profile: Name | None = None
    """The profile whose [packages] are pinned exactly."""
    lane: Literal["packages", "onnx"] = "packages"
    """Which of the profile's tables that is."""
    python: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")] | None = None
    """The oldest Python that these packages are made for, where that is not the project's own."""
    requires: tuple[Annotated[str, AfterValidator(lambda text: Requirement(text) and text)], ...] = ()
    megabytes: Annotated[int, Field(gt=0)] | None = None
    """What it takes on disk, rounded up: so much must be free before it is made."""
    abstract: bool = False
    """Whether others only include it: never installed alone, so not locked."""


class Environments(RootModel[dict[Name, LockedEnvironment]]):
    """manifests/environments.toml."""


def load_environments() -> dict[str, LockedEnvironment]:
    return load(MANIFESTS / "environments.toml", Environments).root


def locked_environments() -> list[str]:
    return sorted(name for name, environment in load_environments().items() if not environment.abstract)


def inputs_of(environment: str) -> list[str]:
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
    return sorted(requirements)


def text_of(environment: str, entries: Iterable[Entry]) -> str:
    """A lock file: comments with all that its content follows from, and the pins with their hashes."""
    inputs, room = inputs_of(environment), load_environments()[environment].megabytes
    canonical = json.dumps([SCHEMA, OLDEST_PYTHON, SUPPORTED, *inputs])
    comments = [
        "# Written by `nox -s lock` from manifests/environments.toml; not to be edited.",
        f"# inputs-sha256: {hashlib.sha256(canonical.encode()).hexdigest()}",
        *(f"# input: {requirement}" for requirement in inputs),
        *(f"# torch: {requirement}" for requirement in inputs if name_of(requirement) == "torch"),
        *([f"# room: {room} MB"] if room else []),
    ]
    return "\n".join([*comments, *(entry.text for entry in entries), ""])


def regenerate(environment: str, upgrade: Sequence[str]) -> None:
    """Regenerate one lock file, keeping the pins that still fit."""
    path = lock_path(environment)
    entries = resolve(inputs_of(environment), *upgrade, old=text_at(path))
    write(path, text_of(environment, (entry for entry in entries if not _is_for_torch(entry))))


def text_at(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def write(path: Path, text: str) -> None:
    changed = text_at(path) != text
    if changed:
        replace_text(path, text)
    sys.stdout.write(f"{path.parent.name}/{path.name}: {'written' if changed else 'unchanged'}\n")


def stale() -> list[str]:
    """What is not as it would be written. Needs no network."""
    names = locked_environments()
    others = sorted({path.stem for path in (MANIFESTS / "locks").glob("*.txt")} - {*names})
    return [
        *(f"{name}.txt: {problem}" for name in names for problem in problems(name)),
        *(f"{name}.txt: no environment of that name" for name in others),
        *(problem for pin in torch_pins() for problem in torch_problems(pin)),
    ]


def problems(environment: str) -> Iterator[str]:
    """What is stale or wrong in its lock file."""
    text = text_at(lock_path(environment))
    entries, lines = entries_in(text), text.splitlines()
    expected = text_of(environment, entries).splitlines()
    yield from (f"lacks the line `{line}`" for line in sorted({*expected} - {*lines}))
    yield from (f"holds the line `{line}`" for line in sorted({*lines} - {*expected}))
    yield from (f"holds the address `{line}`" for line in lines if "://" in line)
    yield from (f"{entry.line} has no hash" for entry in entries if not entry.hashes)
    for wanted in map(Requirement, inputs_of(environment)):
        pins = [entry.version for entry in entries if entry.name == name_of(wanted.name)]
        fits = [wanted.specifier.contains(pin, prereleases=True) for pin in pins]
        if wanted.name != "torch" and not (fits and all(fits)):
            yield f"{wanted} is required but not pinned"


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
        done = capture([*command, *pip_settings.uv_flags(os.environ), *flags], cwd=folder, env=environ)
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


def torch_pins() -> list[str]:
    """`torch==VERSION`, as the environments pin it."""
    inputs = {requirement for name in locked_environments() for requirement in inputs_of(name)}
    return sorted(requirement for requirement in inputs if name_of(requirement) == "torch")


def torch_problems(pin: str, folder: Path = TORCH) -> list[str]:
    """What the recorded builds of torch lack."""
    return [
        f"torch/{name}: has no {line} with a hash"
        for name, line in ((CPU, f"{pin}+cpu"), (INDEX, pin))
        if not any(entry.line == line and entry.hashes for entry in entries_of(folder / name))
    ]


def record_torch(pin: str, folder: Path = TORCH) -> None:
    """Record the builds that the user's index has, beside those on record."""
    line = f"{pin}+cpu"
    hashes = {value for entry in entries_of(folder / CPU) if entry.line == line for value in entry.hashes}
    for index in ((), (PYTORCHS_INDEX,)):
        hashes |= wheels_of(line, *index)
    own = [entry for entry in resolve([pin]) if _is_for_torch(entry)]
    # An index with both builds offers the CPU build for the plain pin too.
    own = own if pin in [entry.line for entry in own] else entries_of(folder / INDEX)
    for name, about, entries in (
        (
            CPU,
            "The CPU build of torch, of every index that was asked.",
            [Entry("torch", line, tuple(sorted(hashes)))],
        ),
        (INDEX, "The package index's own build of torch, and what only it needs.", own),
    ):
        comments = [f"# {about}", "# Written by `nox -s lock -- --torch`."]
        write(folder / name, "\n".join([*comments, *(entry.text for entry in entries), ""]))
    if lacking := torch_problems(pin, folder):
        raise UpstreamError(
            f"not every build of torch could be recorded: {'; '.join(lacking)}",
            fix="name an index that has it: PIP_EXTRA_INDEX_URL=URL before the same command",
        )


def _is_for_torch(entry: Entry) -> bool:
    return entry.name == "torch" or CUDA_ONLY.fullmatch(entry.name) is not None
