"""An https zip from its vendor, or from the user's own mirror."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from provisioning.base.progress import SILENT, Progress
from provisioning.download import Fetched, fetch, file_name, mirrored
from provisioning.sources import FileSource, Https


class Archive(FileSource):
    """An https zip. Without `sha256` the component is unlocked."""

    type: Literal["archive"]
    url: Https
    strip: str = ""
    """The leading directory of every member, removed before placing: `qairt/2.37.0.250724/`."""

    @property
    def name(self) -> str:
        return file_name(self.url)

    @property
    def address(self) -> str:
        return self.url

    @property
    def prefix(self) -> str:
        return self.strip

    def fetch(self, downloads: Path, progress: Progress = SILENT) -> Fetched:
        return fetch(
            mirrored(self.url),
            self.landing_place(downloads),
            sha256=self.sha256,
            size=self.size,
            progress=progress,
            name=self.name,
        )
