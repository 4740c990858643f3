"""Which executorch a stage runs: the profile's wheel, a tree's wheel, or a tree as `build_x86` built it.

`choose` decides it, and every stage that runs executorch asks the choice for `current` before it starts."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.base.commands import Fix, session
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import DEFAULT_PROFILE, OFFICIAL_PROFILE, WHEEL, Selection
from provisioning.components import COMPONENT_VARIABLES, EXECUTORCH_SOURCE, QNN_SDK
from provisioning.dist import OURS, OVERLAY, RUNNER, BuiltFrom, description_of, staleness
from provisioning.own_installation import adopt
from provisioning.python_environments import IN_IMAGE
from provisioning.source_tree import state_of

PYTHON_PATH = "PYTHONPATH"
BY_WORD = ("--executorch", WHEEL)
"""The flags by which a user takes the wheel although a variable names a tree."""


@dataclass(frozen=True, slots=True)
class Executorch:
    """The executorch that a stage runs."""

    build: BuiltFrom | None = None
    """The tree that it was built of; None for the profile's wheel."""
    overlay: Path | None = None
    """The folder that Python has first on its path; None for a wheel."""
    refused: str = ""
    """Why it is not the one that a variable names."""
    fix: str = ""

    def current(self) -> Executorch:
        """The same with the tree's present state. Raises EnvironmentLacking if a variable names another one,
        or the tree has changed since it was built."""
        if self.refused:
            raise EnvironmentLacking(self.refused, fix=self.fix)
        if self.build is None or not (self.overlay or self.build.tree.is_dir()):
            return self
        if stale := staleness(self.build):
            raise EnvironmentLacking(stale, fix=self.again)
        return replace(self, build=replace(self.build, state=state_of(self.build.tree)))

    @property
    def again(self) -> Fix:
        """Return the command that builds its tree."""
        assert self.build is not None
        return building(self.build.profile, *([] if self.overlay else ["--wheel"]))

    @property
    def runner_command(self) -> Fix:
        """The command that builds the runner that belongs to it."""
        return self.again if self.overlay else session("build_runner")

    def runner(self, dist: Path) -> Path:
        """Return the path of the runner for this machine that belongs to it; `dist` is the folder of the
        target."""
        return self.overlay.parent / RUNNER if self.overlay else dist / OURS / RUNNER

    def python_path(self, environ: Mapping[str, str]) -> str:
        """Return the user's PYTHONPATH with this overlay first, and without others."""
        entries = environ.get(PYTHON_PATH, "").split(os.pathsep)
        rest = [entry for entry in entries if not entry or description_of(Path(entry)) is None]
        if self.overlay is None:
            return os.pathsep.join(rest)
        return os.pathsep.join([str(self.overlay), *filter(None, rest)])

    def describe(self, version: str) -> str:
        """Describe it in words. `version` is the one that its Python finds."""
        if self.build is None:
            return f"{version} (wheel)"
        return f"{version} ({'build' if self.overlay else 'wheel'} of {self.build})"


PROFILES_WHEEL = Executorch()


def building(profile: str, *flags: str) -> Fix:
    """Return the command that builds the tree that a variable names."""
    return session("build_x86", *([] if profile == DEFAULT_PROFILE else ["--profile", profile]), *flags)


def choose(
    selection: Selection,
    environ: Mapping[str, str],
    named: tuple[str, str] | None,
    stored: Path | None,
    *,
    overlay: Path = OVERLAY,
    prefix: Path | None = None,
) -> Executorch:
    """The executorch of a stage whose Python is in `prefix`. The first of these counts:

    1. the wheel of that Python, if `--executorch wheel` asks for it;
    2. what was built of the tree that the user's variable `named` names;
    3. the build whose folders the variables already name;
    4. what was built of the store's tree, `stored`;
    5. in an image, the wheel that lies beside this Python; else this Python's own."""
    wheel = Executorch(description_of(prefix or Path(sys.prefix)))
    if selection.executorch == WHEEL:
        if wheel.build is None:
            return wheel
        message = f"--executorch {WHEEL}: {sys.executable} has the wheel of {wheel.build}"
        return replace(wheel, refused=message, fix=f"unset {IN_IMAGE}")
    exported, built = _overlays(_entries(environ)), _overlays([overlay])
    if named:
        build_command = building(_profile_with_headers(selection, environ))
        return _choose_named_tree(named, [*exported, *built, wheel], build_command)
    if exported:
        return exported[0]
    for candidate in built:
        if stored and candidate.build and is_same_folder(candidate.build.tree, stored):
            return candidate
    in_image = description_of(Path(environ.get(IN_IMAGE) or os.devnull, "executorch"))
    if in_image and wheel.build is None:
        if importlib.util.find_spec("executorch") is None:
            # This Python runs no stage that needs it.
            return Executorch(in_image)
        message = f"{IN_IMAGE} names the wheel of {in_image}, and {sys.executable} has another executorch"
        return replace(wheel, refused=message, fix=Fix("unset {}, or add {}", IN_IMAGE, BY_WORD))
    return wheel


def _choose_named_tree(
    named: tuple[str, str], candidates: Sequence[Executorch], build_command: Fix
) -> Executorch:
    """The candidate that was built of the user's tree; none is refused."""
    variable, value = named
    try:
        tree = adopt(EXECUTORCH_SOURCE, value, variable).path
    except EnvironmentLacking as error:
        return Executorch(refused=error.message, fix=error.fix)
    for candidate in candidates:
        if candidate.build and is_same_folder(candidate.build.tree, tree):
            return candidate
    builds = [f"; what is built is of {candidate.build}" for candidate in candidates if candidate.build]
    message = f"{variable}={value} is not built for this machine{''.join(builds[:1])}"
    return Executorch(refused=message, fix=Fix("{}; {} takes the profile's wheel", build_command, BY_WORD))


def _entries(environ: Mapping[str, str]) -> list[Path]:
    return [Path(entry) for entry in environ.get(PYTHON_PATH, "").split(os.pathsep) if entry]


def _overlays(folders: Iterable[Path]) -> list[Executorch]:
    """Select the folders that build_x86 has made."""
    described = [(folder, description_of(folder)) for folder in folders]
    return [Executorch(build, folder) for folder, build in described if build]


def _profile_with_headers(selection: Selection, environ: Mapping[str, str]) -> str:
    """Name a profile with headers. The default profile has none, but the user's own SDK may."""
    is_without = selection.profile == DEFAULT_PROFILE and not environ.get(COMPONENT_VARIABLES[QNN_SDK])
    return OFFICIAL_PROFILE if is_without else selection.profile


def is_same_folder(one: str | Path, other: str | Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
