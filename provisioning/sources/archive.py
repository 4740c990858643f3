"""An https zip from its vendor, from a mirror the manifest names, or from the user's own mirror."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.progress import Progress
from provisioning.download import Fetched, fetch, file_name, mirrored
from provisioning.sources import landing_place

if TYPE_CHECKING:
    from provisioning.manifest import Archive


def fetch_archive(source: Archive, downloads: Path, *, progress: Progress | None = None) -> Fetched:
    url = mirrored(source.url)
    name = file_name(source.url)
    return fetch(
        url,
        landing_place(downloads, source.sha256, source.url, name),
        # The user's mirror is the only host asked, so that a closed network stays closed.
        mirrors=source.mirrors if url == source.url else (),
        sha256=source.sha256,
        size=source.size,
        progress=progress,
        name=name,
    )
