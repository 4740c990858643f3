"""The folder that a command writes to: all of its files appear at once, and one process writes at a time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from provisioning.base.errors import UsageError

SCRATCH = ".qnn-ci-new-"

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
