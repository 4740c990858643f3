"""Store cached results in one file, which the cache of a CI system can keep: a plain tar of regular files.

An archive from elsewhere is read member by member. A record goes into the store only if it and all its files
are as they were written; only the one who wrote it can say whether it is true."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

from ci.work.results import whole
from provisioning.archive import unsafe
from provisioning.store.results import UNUSED_SECONDS

__all__ = ["Unpacked", "pack_results", "unpack_results"]

MOST_BYTES = 2 << 30
"""The most bytes of an archive, which has the results that were used last. A repository on GitHub has 10 GB
for all its caches."""
MOST_MEMBERS = 200_000

RECORD = re.compile(r"[a-z][a-z0-9 _-]{0,40}/[0-9a-f]{2}/[0-9a-f]{64}\.json")
FILE = re.compile(r"[a-z][a-z0-9 _-]{0,40}/[0-9a-f]{2}/[0-9a-f]{64}-[0-9a-f]{16}/.{1,1000}")


@dataclass(frozen=True, slots=True)
class Unpacked:
    results: int = 0
    problem: str = ""
    """The reason why nothing was taken from the archive."""
    refused: int = 0
    """The number of records that are not complete."""


def pack_results(top: Path, archive: Path, since: float = 0.0, most: int = MOST_BYTES) -> int:
    """Write the results below `top` that were used at `since` or later, and not too long ago: the latest ones
    for which `most` bytes have room. Returns how many.

    The same results give the same bytes."""
    oldest = max(since, time.time() - UNUSED_SECONDS)
    records = [path for path in top.rglob("*.json") if RECORD.fullmatch(path.relative_to(top).as_posix())]
    used = {path: path.stat().st_mtime for path in records}
    latest = sorted((path for path in used if used[path] >= oldest), key=lambda path: (-used[path], path))
    archive.parent.mkdir(parents=True, exist_ok=True)
    room, count = most, 0
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as out:
        for record in latest:
            files = whole(record)
            room -= sum(path.stat().st_size for path in files)
            if room < 0:
                break
            for path in files:
                _add(out, path, path.relative_to(top).as_posix(), used[record])
            count += bool(files)
    return count


def _add(out: tarfile.TarFile, path: Path, name: str, used: float) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = path.stat().st_size, int(used)
    with path.open("rb") as stream:
        out.addfile(info, stream)


def unpack_results(archive: Path, top: Path) -> Unpacked:
    """Take the results of an archive that anybody may have written, and keep the times of their last use."""
    staging = top / f"unpack-{os.getpid()}-{time.monotonic_ns()}"
    staging.mkdir(parents=True)
    try:
        with archive.open("rb") as stream:
            times = dict(_members(stream, staging))
        return _take_results(staging, top, times)
    except (OSError, ValueError, EOFError, tarfile.TarError) as error:
        return Unpacked(problem=f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _members(stream: BufferedIOBase, into: Path) -> Iterator[tuple[str, float]]:
    """Write each member below `into`; yields its name and time."""
    room = MOST_BYTES
    with tarfile.open(fileobj=stream, mode="r|") as source:
        for number, member in enumerate(source):
            known = RECORD.fullmatch(member.name) or FILE.fullmatch(member.name)
            if not member.isreg() or not known or unsafe(member.name):
                raise ValueError(f"a member that no result has: {member.name!r:.200}")
            room -= member.size
            if room < 0 or number >= MOST_MEMBERS:
                raise ValueError(f"more than {MOST_BYTES:,} bytes or {MOST_MEMBERS:,} members")
            content = source.extractfile(member)
            assert content is not None
            path = into / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as out:
                shutil.copyfileobj(content, out)
            yield member.name, member.mtime


def _take_results(staging: Path, top: Path, times: dict[str, float]) -> Unpacked:
    """Move complete results to their places; a result that is already there stays, and gets the later
    time."""
    results, refused, now = 0, 0, time.time()
    for name in filter(RECORD.fullmatch, times):
        record, place = staging / name, top / name
        files = whole(record)
        if not files:
            refused += 1
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        used = min(times[name], now)
        if place.exists():
            used = max(used, place.stat().st_mtime)
        else:
            for path in files[1:]:
                to = top / path.relative_to(staging)
                to.parent.mkdir(parents=True, exist_ok=True)
                path.rename(to)
            record.rename(place)
        os.utime(place, (used, used))
        results += 1
    return Unpacked(results, refused=refused)
