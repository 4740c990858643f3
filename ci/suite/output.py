"""The folder that a command writes to: all of its files appear at once, and one process writes at a time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from provisioning.base.command_line import Parser
from provisioning.base.commands import quoted
from provisioning.base.errors import UsageError
from provisioning.base.files import replace_text

SCRATCH = ".qnn-ci-new-"
ORIGINS = ".qnn-ci-origins.json"
"""Of files that have no record of their own: whose they are."""

Publish = Callable[[Sequence[Path]], list[Path]]


@contextmanager
def writing_into(folder: Path, store: Path) -> Iterator[tuple[Path, Publish]]:
    """A scratch folder below `folder`, and a function that moves finished files from it into `folder`.

    After an error nothing is left there. The mutex is a file in the store, so that the folder contains only
    models."""
    with _mutex(folder, store):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Left by a killed process.
            for leftover in folder.glob(f"{SCRATCH}*"):
                shutil.rmtree(leftover)
            scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
        except OSError as error:
            raise UsageError(
                f"{folder} cannot be written: {error.strerror or error}",
                fix="name a folder that you may write with -o",
            ) from error
        try:
            yield scratch, lambda files: _publish(files, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextmanager
def _mutex(folder: Path, store: Path) -> Iterator[None]:
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    path = store / "locks" / f"output-{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path, timeout=0):
            yield
    except Timeout as error:
        raise UsageError(
            f"{folder}: another compile is writing there", fix="wait for it, or choose another -o"
        ) from error


def _publish(files: Sequence[Path], folder: Path) -> list[Path]:
    """Each file in one step, records (.json) last: until its record is there, a model does not count."""
    ordered = sorted(files, key=lambda path: (path.suffix == ".json", path.suffix == ".onnx", path.name))
    for path in ordered:
        try:
            path.replace(folder / path.name)
        except OSError as error:
            raise UsageError(
                f"{folder / path.name} cannot be written: {error.strerror or error}",
                fix="move what is there away, or name another folder with -o",
            ) from error
    return [folder / path.name for path in ordered]


def origin_of(typed: str, folder: Path) -> str:
    """By which a model is told apart from another one that writes to the same folder."""
    return os.path.relpath(Parser.user_folder() / typed, folder.absolute())


def require_own(files: Iterable[Path], typed: str) -> None:
    """Refuse to overwrite what was written for another model, and a folder of the user's own."""
    for path in files:
        own, known = origin_of(typed, path.parent), document_of(path.parent / ORIGINS)
        if path.name not in known and path.is_dir() and any(path.iterdir()):
            raise UsageError(
                f"{path} has files that were not written here",
                fix="name another place with -o, or move them away",
            )
        listed = known.get(path.name, own)
        record = document_of(path) if path.suffix == ".json" else {}
        other = record.get("origin", listed) if "schema" in record else listed
        if path.exists() and other != own:
            raise UsageError(
                f"{path} is of another model, {os.path.normpath(path.parent / str(other))}",
                fix=f"name another place with -o, or remove it: {quoted('rm', '-r', path)}",
            )


def keep_origins(files: Iterable[Path], typed: str) -> None:
    """Note whose files these are, which `require_own` allowed."""
    for path in files:
        place = path.parent / ORIGINS
        known = {
            name: origin for name, origin in document_of(place).items() if (place.parent / name).exists()
        }
        text = json.dumps({**known, path.name: origin_of(typed, path.parent)}, indent=2, sort_keys=True)
        replace_text(place, f"{text}\n")


def document_of(path: Path) -> dict[str, object]:
    """Empty if it is none of ours: a user's own file of this name was always replaced."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
