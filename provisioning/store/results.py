"""Cached results as files of a store: how much room they take, and which of them go.

What a result holds is the business of `ci/work/results.py`. Here it is a record, `<kind>/<2>/<digest>.json`,
and where it has files a folder beside it, `<digest>-<content>`. The record's time is that of its last use."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.errors import UsageError
from provisioning.base.units import size

LIMIT = "QNN_CI_RESULTS_GB"
"""The variable that sets how many gigabytes of results a store keeps."""
DEFAULT_GIGABYTES = 20.0

UNUSED_SECONDS = 60 * 86400.0
LEFTOVER_SECONDS = 86400.0
"""What has no record may belong to a process that has not written it yet, for as long as this."""
IN_USE_SECONDS = 3600.0
"""A result that was used so recently may be open in another process, and stays whatever the limit says."""
SWEPT_EACH = 86400.0


@dataclass(frozen=True, slots=True)
class Removed:
    """The results that are removed for one reason."""

    reason: str
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """One result, or what a killed run left of one."""

    paths: tuple[Path, ...]
    """The record comes first: without it nobody finds the result any more."""
    used: float
    size: int
    leftover: bool = False


def results_folder(store: Path) -> Path:
    return store / "cache" / "results"


def results_limit(environ: Mapping[str, str] = os.environ) -> int:
    """The bytes that results may take."""
    text = environ.get(LIMIT) or f"{DEFAULT_GIGABYTES:g}"
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes < float("inf"):
        raise UsageError(
            f"{LIMIT}: expected a number of gigabytes, found {text!r}", fix=f"set it to {DEFAULT_GIGABYTES:g}"
        )
    return int(gigabytes * 1e9)


def remove_results(
    store: Path,
    limit: int,
    *,
    unused_for: float = UNUSED_SECONDS,
    used_since: float = math.inf,
    dry_run: bool = False,
) -> list[Removed]:
    """Remove what killed runs left, what was not used for so many seconds, and beyond the limit what was not
    used for longest. What was used since the moment `used_since` stays whatever the limit says.
    With `dry_run`, only say what would go."""
    rows = []
    entries_by_reason = _choose_entries(list(_entries(results_folder(store))), limit, unused_for, used_since)
    for reason, entries in entries_by_reason.items():
        if not dry_run:
            for entry in entries:
                _remove(entry.paths)
        rows.append(Removed(reason, len(entries), sum(entry.size for entry in entries)))
    return rows


def sweep_is_due(store: Path) -> bool:
    """Whether a sweep is due: true once a day, and then not for the other processes of that day."""
    stamp = results_folder(store) / "swept"
    try:
        if time.time() - stamp.stat().st_mtime < SWEPT_EACH:
            return False
    except FileNotFoundError:
        stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.touch()
    return True


def _choose_entries(
    entries: list[_Entry], limit: int, unused_for: float, used_since: float
) -> dict[str, list[_Entry]]:
    """Select the entries that are removed, by the reason for it."""
    now = time.time()
    in_use_since = min(used_since, now - IN_USE_SECONDS)
    chosen: defaultdict[str, list[_Entry]] = defaultdict(list)
    kept = []
    for entry in entries:
        age = now - entry.used
        if entry.leftover:
            if age > LEFTOVER_SECONDS:
                chosen["left by a run that was killed"].append(entry)
        elif age > unused_for:
            chosen["not used for long"].append(entry)
        else:
            kept.append(entry)
    room = sum(entry.size for entry in kept)
    for entry in sorted(kept, key=lambda entry: entry.used):
        if room <= limit or entry.used > in_use_since:
            break
        chosen[f"not used for longest, beyond {size(limit)} ({LIMIT})"].append(entry)
        room -= entry.size
    return chosen


def _entries(results: Path) -> Iterator[_Entry]:
    for place in results.glob("*/??"):
        yield from _entries_in(place)
    for path in results.glob("*/last/*.json"):
        yield _Entry((path,), *_use_of([path]))
    for folder in results.glob("*/work/*"):
        yield _Entry((folder,), *_use_of([folder]), leftover=True)


def _entries_in(place: Path) -> Iterator[_Entry]:
    by_digest: defaultdict[str, list[Path]] = defaultdict(list)
    for path in place.iterdir():
        by_digest[path.name.partition(".")[0].partition("-")[0]].append(path)
    for digest, paths in by_digest.items():
        record = place / f"{digest}.json"
        # A result that was made again has a new folder; the one that is used has the newest time.
        folders = sorted((path for path in paths if path != record), key=_time_of, reverse=True)
        current = folders[:1] if record in paths else []
        if record in paths:
            yield _Entry((record, *current), *_use_of([record, *current]))
        for folder in folders[len(current) :]:
            yield _Entry((folder,), *_use_of([folder]), leftover=True)


def _use_of(paths: Iterable[Path]) -> tuple[float, int]:
    """Return the last use of the first path, and the bytes of all. Another process may remove them
    meanwhile."""
    total, times = 0, []
    for path in paths:
        times.append(_time_of(path))
        files = path.rglob("*") if path.is_dir() else [path]
        for file in files:
            try:
                total += 0 if file.is_dir() else file.lstat().st_size
            except FileNotFoundError:
                continue
    return times[0], total


def _time_of(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
