"""The folder that a command writes to: all files appear at once, and only one process writes at a time. Also
write the outputs of `run`, and compare them with those of another program."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from ci.one_model.named_files import RECORD, require_no_file_name, require_outputs
from ci.suite.accuracy import Pair, Unusable, compare
from ci.suite.figures import describe_figures
from ci.suite.limits import missed_thresholds
from ci.suite.suite_file import Thresholds
from provisioning.base.commands import quote_command
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import ANOTHER_STORE, disk_errors, replace_text
from provisioning.base.parser import Parser

ELSEWHERE = "name another folder with -o"
SCRATCH = ".qnn-ci-new-"
ORIGINS = ".qnn-ci-origins.json"
"""This file records the model of each file that has no record of its own."""

Publish = Callable[[Sequence[Path]], list[Path]]


@contextmanager
def writing_into(folder: Path, store: Path) -> Iterator[tuple[Path, Publish]]:
    """Yield a scratch folder below `folder`, and a function that moves finished files from it into `folder`.

    After an error, nothing stays there; an error of the machine becomes EnvironmentLacking. The mutex is a
    file in the store, so that the folder contains only models."""
    require_no_file_name(folder)
    with disk_errors(ELSEWHERE), _mutex(folder, store):
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
    with disk_errors(ANOTHER_STORE, where=store):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path, timeout=0):
            yield
    except Timeout as error:
        raise UsageError(
            f"{folder}: another compile is writing there", fix="wait for it, or choose another -o"
        ) from error


def _publish(files: Sequence[Path], folder: Path) -> list[Path]:
    """Move each file in one step, and records (.json) last: a model counts only when its record is there."""
    paths = sorted(files, key=lambda path: (path.suffix == ".json", path.suffix == ".onnx", path.name))
    for path in paths:
        try:
            path.replace(folder / path.name)
        except OSError as error:
            raise UsageError(
                f"{folder / path.name} cannot be written: {error.strerror or error}",
                fix="move what is there away, or name another folder with -o",
            ) from error
    return [folder / path.name for path in paths]


def origin_of(typed: str, folder: Path) -> str:
    """The path that distinguishes a model from others whose files are in the same folder."""
    return os.path.relpath(Parser.user_folder() / typed, folder.absolute())


def require_own(files: Iterable[Path], typed: str) -> None:
    """Refuse to overwrite files that were written for another model, or a folder of the user's own."""
    for path in files:
        own, origins = origin_of(typed, path.parent), document_of(path.parent / ORIGINS)
        if path.name not in origins and path.is_dir() and any(path.iterdir()):
            raise UsageError(
                f"{path} has files that were not written here",
                fix="name another place with -o, or move them away",
            )
        default = origins.get(path.name, own)
        record = document_of(path) if path.suffix == ".json" else {}
        origin = record.get("origin", default) if "schema" in record else default
        if path.exists() and origin != own:
            raise UsageError(
                f"{path} is of another model, {os.path.normpath(path.parent / str(origin))}",
                fix=f"name another place with -o, or remove it: {quote_command('rm', '-r', path)}",
            )


def keep_origins(files: Iterable[Path], typed: str) -> None:
    """Record which model these files belong to, after `require_own` allowed them."""
    for path in files:
        place = path.parent / ORIGINS
        origins = {
            name: origin for name, origin in document_of(place).items() if (place.parent / name).exists()
        }
        text = json.dumps({**origins, path.name: origin_of(typed, path.parent)}, indent=2, sort_keys=True)
        replace_text(place, f"{text}\n")


def document_of(path: Path) -> dict[str, object]:
    """Read a JSON object; empty if the file has none: a user's own file of this name was always replaced."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


if TYPE_CHECKING:
    from ci.models.inputs import Sample

SCHEMA = 1
SHOWN = 4


@dataclass(frozen=True, slots=True)
class Ran:
    inputs: Sample
    outputs: Sample
    where: str


def output_lines(ran: Ran) -> Iterator[str]:
    yield ran.where
    for name, array in ran.outputs.items():
        values = ", ".join(f"{value:.5g}" for value in array.ravel()[:SHOWN])
        more = ", …" if array.size > SHOWN else ""
        yield f"{name}: {array.dtype}[{', '.join(map(str, array.shape))}]  {values}{more}"


def write(ran: Ran, folder: Path, typed: str) -> None:
    """Write an .npy for each output of a program, and the record."""
    import numpy

    folder.mkdir(parents=True, exist_ok=True)
    files = {name: f"{re.sub(r'[^-.A-Za-z0-9_]', '_', name)}.npy" for name in ran.outputs}
    if len(set(files.values())) < len(files):
        files = {name: f"output_{index}.npy" for index, name in enumerate(files)}
    require_own([folder / RECORD], typed)
    for name, array in ran.outputs.items():
        numpy.save(folder / files[name], array)
    record = {
        "schema": SCHEMA,
        "outputs": [{"name": name, "file": file} for name, file in files.items()],
        "where": ran.where,
        "origin": origin_of(typed, folder),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def outputs_in(folder: Path) -> Sample:
    from ci.models.inputs import read_array

    require_outputs(folder)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return {str(output["name"]): read_array(folder / output["file"]) for output in record["outputs"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckFailed(
            f"{folder}: expected what run wrote with -o, found {error}",
            fix="name the folder that `run PROGRAM -o` wrote",
        ) from error


@dataclass(frozen=True, slots=True)
class Compared:
    figures: Mapping[str, Mapping[str, float]]
    """Maps an output to its figures."""
    lines: Sequence[str]
    differ: bool
    """Whether outputs have little in common; the last line then says so."""


def compare_outputs(ours: Sample, other: Sample, title: str) -> Compared:
    """Compare the outputs by name if both have the same names, else in order."""
    if len(ours) != len(other):
        raise CheckFailed(
            f"{title} has {len(other)} outputs, but this one {len(ours)}", fix="compare with the same model"
        )
    if set(ours) != set(other):
        other = dict(zip(ours, other.values(), strict=True))
    lines, strange, all_figures = list[str](), list[str](), dict[str, Mapping[str, float]]()
    for name, array in ours.items():
        try:
            figures = compare([Pair(name, other[name], array)], non_finite=True)
        except Unusable as error:
            fix = "compare with the same model"
            raise CheckFailed(f"against {title}: {error}", fix=fix) from error
        all_figures[name] = figures
        apart = f", at most {figures['max_abs']:.3g} apart" if figures.get("max_abs") else ""
        lines.append(f"against {title}: {name} {describe_figures(figures)}{apart}")
        strange += [name] if missed_thresholds(Thresholds(), figures) else []
    if strange:
        lines.append(f"{', '.join(strange)}: too different from {title} at the same inputs")
    return Compared(all_figures, lines, bool(strange))


def file_line(path: Path) -> str:
    """A line with the size of a written file, and its path as the user would type it."""
    folder, file = Parser.user_folder().absolute(), path.absolute()
    if file.is_relative_to(folder):
        file = file.relative_to(folder)
    return f"{path.stat().st_size:>12,}  {file}"
