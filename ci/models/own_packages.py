"""The environments in the store with packages of the user's own, beside the locked ones and never against
them.

`install_packages` finds the environment for what a suite needs, or creates it. It is known by all that
decides what is installed, so a suite that has not changed asks no package index. A conflict with a pin is an
error that names both."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.models.package_needs import Needs, texts_of
from ci.models.uv_packages import install_entries, locked_versions, resolve_packages
from ci.models.wheels import variables as located_wheels
from ci.work import LOCKED, Digests, key_of_declared
from provisioning.base.commands import capture
from provisioning.base.errors import (
    ToolkitError,
)
from provisioning.base.files import mutex, replace_text
from provisioning.base.findings import Metric
from provisioning.lock_files import entries_in

RESOLVED = "resolved.txt"
"""The file of an environment that lists its packages with their hashes, once it is complete."""
UNUSED_SECONDS = 60 * 86400.0
WRITTEN = re.compile(r"\.egg-info/|/__pycache__/|/build/|/dist/|/reports/|/\.git/")
"""A build, a stage or git writes these into a project."""


@dataclass(frozen=True, slots=True)
class OwnPackages:
    """The environment in which a suite's programs run, with its packages and variables."""

    folder: Path | None = None
    projects: tuple[Path, ...] = ()
    """These projects are installed editable."""
    variables: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    """The versions of its own packages, without the locked ones."""
    declared: Mapping[str, str] = field(default_factory=dict)
    """The digests of the declared variables' values."""
    lock: str = ""
    """The digest of the resolved packages, which is part of every key."""
    wheels: Mapping[str, str] = field(default_factory=dict)
    """The hashes of the wheels that the suite's models read."""

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python") if self.folder else sys.executable

    def key(self) -> dict[str, Metric]:
        parts: dict[str, Metric] = {"packages": {"lock": self.lock, **self.versions}} if self.lock else {}
        digests = {"variables": self.declared, "wheels": self.wheels}
        return parts | {name: dict(values) for name, values in digests.items() if values}


def install_packages(needs: Needs, store: Path) -> OwnPackages:
    """Return the environment with these packages. The package index is asked only if it has to be created."""
    variables = {**needs.environment(os.environ), **located_wheels(needs.wheels, store)}
    own = OwnPackages(
        variables=variables,
        declared=key_of_declared(needs.variables, os.environ),
        wheels={name: wheel.sha256 for name, wheel in needs.wheels.items()},
    )
    if not needs:
        return own
    home = _environment_home(needs, store)
    resolved = (home / RESOLVED).read_text(encoding="utf-8")
    return replace(
        own,
        folder=home / "environment",
        projects=needs.editable,
        variables={**variables, LOCKED: sysconfig.get_paths()["purelib"]},
        versions={entry.name: entry.version for entry in entries_in(resolved)},
        lock=hashlib.sha256(resolved.encode()).hexdigest(),
    )


def _environment_home(needs: Needs, store: Path) -> Path:
    """Return the folder of an environment with these packages, and create it if there is none. The files of a
    project that is installed editable decide, too: a build of an earlier state is not used."""
    pins = locked_versions()
    name = _name_of_environment(needs, pins)
    packages = store / "cache" / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    with mutex(packages / f"{name}.lock"):
        state = " ".join(_state_of(project, store) for project in needs.editable)
        build = _last_build(packages / f"{name}.json", state) if needs.editable else name
        home = packages / (build or f"{name}-{time.time_ns()}")
        if not (home / RESOLVED).is_file():
            _create_environment(needs, pins, home)
            if needs.editable:
                replace_text(packages / f"{name}.json", json.dumps({"home": home.name, "state": state}))
            _remove_unused(packages)
    os.utime(home / RESOLVED)
    return home


def _name_of_environment(needs: Needs, pins: Mapping[str, str]) -> str:
    """Return the digest of all that decides what is installed."""
    # The project's path too: what is installed editable points at one clone.
    platform, projects = sysconfig.get_platform(), [*map(str, needs.editable)]
    texts = list(texts_of(needs))
    parts = [2, sys.version, platform, texts, sorted(pins.items()), projects, needs.is_lenient]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _create_environment(needs: Needs, pins: Mapping[str, str], home: Path) -> None:
    """Resolve and install. RESOLVED is written last: without it the folder is no environment."""
    shutil.rmtree(home, ignore_errors=True)
    sys.stderr.write(f"installing the packages of {needs.origin}\n")
    try:
        entries = resolve_packages(needs, pins, home)
        install_entries(entries, needs, home)
    except ToolkitError:
        shutil.rmtree(home, ignore_errors=True)
        raise
    replace_text(home / RESOLVED, "".join(f"{entry.text}\n" for entry in entries))


def _last_build(record: Path, state: str) -> str:
    """Return the folder of the project's last build if the project has not changed since; else empty."""
    try:
        build = json.loads(record.read_text(encoding="utf-8"))
        home, before = str(build["home"]), str(build["state"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""
    os.utime(record)
    return home if state == before else ""


def _state_of(project: Path, store: Path) -> str:
    """Return the digest of the project's files, without what a build or a run of a suite writes."""
    digests, rows = Digests(store), []
    for path in sorted(_files_of(project)):
        name = path.relative_to(project).as_posix()
        if path.is_file() and not WRITTEN.search(f"/{name}"):
            rows.append(f"{name} {digests.of(path)}")
    digests.save()
    return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()


def _files_of(project: Path) -> list[Path]:
    """Return the files that git tracks or would add; all files if there is no git."""
    command = ["git", "-C", str(project), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        process = capture(command)
    except FileNotFoundError:
        return [*project.rglob("*")]
    names = process.stdout.split("\0") if not process.returncode else []
    return [project / name for name in names if name] or [*project.rglob("*")]


def _remove_unused(folder: Path) -> None:
    for stamp in (*folder.glob(f"*/{RESOLVED}"), *folder.glob("*.json")):
        if stamp.stat().st_mtime < time.time() - UNUSED_SECONDS:
            stamp.unlink()
            if stamp.parent != folder:
                shutil.rmtree(stamp.parent, ignore_errors=True)
