"""An AAR or JAR from a Maven repository, checked against its published sums when the manifest has none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from provisioning.base.errors import IntegrityError
from provisioning.base.files import hash_file
from provisioning.base.progress import SILENT, Progress
from provisioning.download import Fetched, NotThere, fetch, mirrored, redact
from provisioning.sources import FileSource, Https, Version


class Maven(FileSource):
    """An AAR or JAR from a Maven repository."""

    type: Literal["maven"]
    repository: Https
    group: str
    artifact: str
    version: Version
    packaging: Literal["aar", "jar"] = "aar"

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.{self.packaging}"

    @property
    def address(self) -> str:
        folders = (self.repository.rstrip("/"), *self.group.split("."), self.artifact, self.version)
        return "/".join((*folders, self.name))

    def fetch(self, downloads: Path, progress: Progress = SILENT) -> Fetched:
        url = mirrored(self.address)
        into = self.landing_place(downloads)
        fetched = fetch(url, into, sha256=self.sha256, size=self.size, progress=progress, name=self.name)
        if self.sha256 is None:
            _check_sidecar(url, fetched, progress)
        return fetched


def _check_sidecar(url: str, fetched: Fetched, progress: Progress) -> None:
    for kind, digits in (("sha256", 64), ("sha1", 40)):
        expected = _sidecar(f"{url}.{kind}", digits)
        if expected is None:
            continue
        # Old repositories publish only SHA-1, which shows damage but not malice.
        digest = fetched.sha256 if kind == "sha256" else hash_file(fetched.path, kind)
        if digest != expected:
            fetched.path.unlink()
            raise IntegrityError(
                f"{redact(url)}: expected {kind} {expected} (the repository's own sum), found {digest}; "
                "nothing was kept",
                fix="run the same command again; if it stays so, the repository is wrong",
            )
        return
    progress.note(f"{redact(url)}: the repository has no sum to check it against")


def _sidecar(url: str, digits: int) -> str | None:
    """The sum that the repository publishes, or None when it publishes none of this kind."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        try:
            text = fetch(url, Path(folder) / "sum", sha256=None, size=None).path.read_text(errors="replace")
        except NotThere:
            return None
    words = text.split()
    if not words or not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", words[0]):
        raise IntegrityError(
            f"{redact(url)}: expected {digits} hexadecimal digits, found {text[:60]!r}",
            fix="record the artifact's sha256 in the manifest",
        )
    return words[0].lower()
