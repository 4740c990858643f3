"""Where a part's bytes come from: a vendor's zip here, and a module for each other kind of source.

A source is both the manifest's table and the code that fetches and unpacks it.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints

from provisioning.base.documents import Model
from provisioning.base.progress import SILENT, Progress
from provisioning.download.server import file_name, mirrored
from provisioning.download.transfer import Fetched, fetch

if TYPE_CHECKING:
    from provisioning.archive import Entry

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Https = Annotated[str, StringConstraints(pattern=r"^(https://|http://127\.0\.0\.1[:/])\S+$")]
Place = Callable[[str], str | None]
"""Where a member of what was fetched is put; None leaves it out."""
Version = Annotated[str, StringConstraints(pattern=r"^[0-9][0-9A-Za-z.+-]*$")]


class FileSource(Model):
    """One zip file (also .whl, .aar, .jar), named by its sha256 where that is known."""

    sha256: Sha256 | None = None
    size: Annotated[int, Field(gt=0)] | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in messages and inventories."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Identifies the file while its hash is not known."""

    @property
    def pin(self) -> str | None:
        """The digest that identifies the bytes; None until one is recorded."""
        return self.sha256

    @property
    def prefix(self) -> str:
        """The folder with all its files, which is left out of a tree."""
        return ""

    def landing_place(self, downloads: Path) -> Path:
        """Where it is kept: under its hash, or under its name and address while no hash is known.

        A file that was fetched before its hash was recorded is renamed, so that recording costs no download.
        """
        unpinned = downloads / f"{hashlib.sha256(self.address.encode()).hexdigest()[:12]}-{self.name}"
        if self.pin is None:
            return unpinned
        pinned = downloads / self.pin
        if unpinned.is_file() and not pinned.exists():
            with suppress(FileNotFoundError):  # another process was first
                unpinned.replace(pinned)
        return pinned

    def unpack(self, fetched: Path, into: Path, place: Place, progress: Progress = SILENT) -> list[Entry]:
        """Put the files that `place` gives a destination below `into`."""
        from provisioning.archive import extract

        return extract(fetched, into, place, progress=progress, name=self.name)


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
