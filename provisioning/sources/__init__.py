"""Where a part's bytes come from: one module a kind of source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.errors import UsageError
from provisioning.base.progress import Progress
from provisioning.download import Fetched

if TYPE_CHECKING:
    from provisioning.manifest import Part


def fetch_part(part: Part, downloads: Path, *, progress: Progress | None = None) -> Fetched:
    """The part's one file, verified, somewhere in `downloads`; what is there already is used again."""
    from provisioning.manifest import Archive, Maven, Wheel

    source = part.source
    if isinstance(source, Archive):
        from provisioning.sources import archive

        return archive.fetch_archive(source, downloads, progress=progress)
    if isinstance(source, Wheel):
        from provisioning.sources import wheel

        return wheel.fetch_wheel(source, downloads, progress=progress)
    if isinstance(source, Maven):
        from provisioning.sources import maven

        return maven.fetch_maven(source, downloads, progress=progress)
    raise UsageError(
        f"{part.name}: a git source is a tree, not a file", remedy="use provisioning.sources.git.checkout"
    )


def landing_place(downloads: Path, sha256: str | None, url: str, name: str) -> Path:
    """Where a file is kept: under its hash, or under its name and address while no hash is known.

    A file fetched before its hash was recorded is taken over, so that locking costs no second download.
    """
    import contextlib
    import hashlib

    unlocked = downloads / f"{hashlib.sha256(url.encode()).hexdigest()[:12]}-{name}"
    if sha256 is None:
        return unlocked
    locked = downloads / sha256
    if unlocked.is_file() and not locked.exists():
        with contextlib.suppress(FileNotFoundError):  # another process was first
            unlocked.replace(locked)
    return locked
