"""A bundle's manifest.json: what it is for, and every file that goes to the device with its hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file
from provisioning.dist import RUNNER
from provisioning.environment import DEVICE_DIRECTORIES

NAME = "manifest.json"
SCHEMA = 1
AGAIN = Fix("make it again: {}", ("bundle",))


@dataclass(frozen=True, slots=True)
class BundledFile:
    path: str
    kind: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Bundle:
    target: str
    soc: str
    profile: str
    qnn_build_id: str
    files: tuple[BundledFile, ...]
    runner: str = RUNNER.name
    schema: int = SCHEMA

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files if file.kind == "model")

    def encode(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


def read_bundle(folder: Path) -> Bundle:
    """Raises UsageError if it is no bundle, CheckFailed if a file differs from its manifest."""
    path = folder / NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}, expected {SCHEMA}")
        bundle = Bundle(**{**data, "files": tuple(BundledFile(**file) for file in data["files"])})
        if bundle.target not in DEVICE_DIRECTORIES:
            raise ValueError(f"target {bundle.target}, expected {' or '.join(DEVICE_DIRECTORIES)}")
        for file in bundle.files:
            if PurePosixPath(file.path).is_absolute() or ".." in PurePosixPath(file.path).parts:
                raise ValueError(f"{file.path} is outside the bundle")
    except FileNotFoundError as error:
        raise UsageError(f"{folder} holds no {NAME}", fix=AGAIN) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not a bundle's manifest: {error}", fix=AGAIN) from error
    check_files(folder, {file.path: file.sha256 for file in bundle.files}, AGAIN)
    return bundle


def check_files(folder: Path, recorded: Mapping[str, str], fix: str) -> None:
    """Raise CheckFailed for a file that is missing, or has another hash than its manifest says."""
    for place, sha256 in recorded.items():
        path = folder / place
        actual = hash_file(path) if path.is_file() else "no such file"
        if actual != sha256:
            message = f"{path}: expected {sha256} as {folder / NAME} says, found {actual}"
            raise CheckFailed(message, fix=fix)
