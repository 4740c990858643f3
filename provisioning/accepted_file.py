"""Accepted results: values that were measured, and that a person agreed to. One form of file has them all."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from provisioning.base.errors import ManifestError
from provisioning.base.files import replace_text
from provisioning.base.findings import Metric

SCHEMA = 3

Values = Mapping[str, Metric]
"""What was accepted of one subject, such as a program, by name."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The accepted values of a file. A subject is any text; the names of its values have no spaces."""

    path: Path
    subjects: Mapping[str, Values] = field(default_factory=dict)

    def of(self, subject: str) -> Values:
        """Return the accepted values of a subject; empty if there are none."""
        return self.subjects.get(subject, {})

    def updated(self, changes: Mapping[str, Values]) -> Accepted:
        """Return a copy with these values of these subjects. A value of None is removed, and all else
        stays."""
        subjects = dict(self.subjects)
        for subject, values in changes.items():
            union = {**subjects.pop(subject, {}), **values}
            if entries := {name: value for name, value in union.items() if value is not None}:
                subjects[subject] = entries
        return replace(self, subjects=subjects)

    def only(self, is_kept: Callable[[str], bool]) -> Accepted:
        """Return a copy that has only the subjects for which `is_kept` is true."""
        subjects = {subject: values for subject, values in self.subjects.items() if is_kept(subject)}
        return replace(self, subjects=subjects)

    def to_text(self) -> str:
        """Write one line for each value, sorted: a diff says what changed from which value to which."""
        rows = ",\n".join(
            f"    {json.dumps(f'{subject} {name}', ensure_ascii=False)}: {_json(values[name])}"
            for subject, values in sorted(self.subjects.items())
            for name in sorted(values)
        )
        return f'{{\n  "schema": {SCHEMA},\n  "accepted": {{\n{rows}\n  }}\n}}\n'


def _json(value: Metric) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)


SHIPPED = "put the file back as qnn-ci has it: install it again, or `git checkout` it in a clone"
"""The fix of a file that no user writes."""


def load_accepted(path: Path, again: str = "remove it, then --accept") -> Accepted:
    """Load a file; the result is empty if there is no such file. `again` is the fix for a file that cannot be
    read."""
    if not path.is_file():
        return Accepted(path)

    def refuse(key: str, expected: str, found: str) -> ManifestError:
        return ManifestError(path, key, expected=expected, found=found, fix=again)

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        counts = Counter(key for key, _ in pairs)
        twice = [key for key, count in counts.items() if count > 1]
        if twice:
            raise refuse(twice[0], "each value once", "it twice, as a merge may leave it")
        return dict(pairs)

    try:
        file = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise refuse("(syntax)", "JSON", str(error)) from error
    if (
        not isinstance(file, dict)
        or file.get("schema") != SCHEMA
        or not isinstance(file.get("accepted"), dict)
    ):
        raise refuse("schema", f'{SCHEMA}, and "accepted" with the values', f"another file: {str(file)[:80]}")
    subjects: dict[str, dict[str, Metric]] = {}
    for key, value in file["accepted"].items():
        subject, _, name = key.rpartition(" ")
        if not subject or not name:
            raise refuse(key, "a subject, a space and the value's name", repr(key))
        subjects.setdefault(subject, {})[name] = value
    return Accepted(path, subjects)


def accept(path: Path, change: Callable[[Accepted], Accepted]) -> Accepted:
    """Change what is on disk now: values that another run accepted meanwhile stay."""
    with lock(path.parent):
        results = change(load_accepted(path))
        replace_text(path, results.to_text())
    return results


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other runs from writing there. It locks the folder: a file for it would show up in git."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # On a file system without locks, one run at a time still works.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
