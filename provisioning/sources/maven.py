"""An AAR or JAR from a Maven repository, checked against its published sums when the manifest has none."""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.errors import IntegrityError
from provisioning.base.progress import Progress
from provisioning.download import Fetched, NotThere, fetch, mirrored, redact
from provisioning.sources import landing_place

if TYPE_CHECKING:
    from provisioning.manifest import Maven


def artifact_url(source: Maven) -> str:
    folder = "/".join(
        (source.repository.rstrip("/"), *source.group.split("."), source.artifact, source.version)
    )
    return f"{folder}/{source.artifact}-{source.version}.{source.packaging}"


def fetch_maven(source: Maven, downloads: Path, *, progress: Progress | None = None) -> Fetched:
    original = artifact_url(source)
    url = mirrored(original)
    name = f"{source.artifact}-{source.version}.{source.packaging}"
    into = landing_place(downloads, source.sha256, original, name)
    fetched = fetch(url, into, sha256=source.sha256, size=source.size, progress=progress, name=name)
    if source.sha256 is None:
        _check_sidecar(url, fetched, progress)
    return fetched


def _check_sidecar(url: str, fetched: Fetched, progress: Progress | None) -> None:
    for kind, digits in (("sha256", 64), ("sha1", 40)):
        expected = _sidecar(f"{url}.{kind}", digits)
        if expected is None:
            continue
        found = fetched.sha256 if kind == "sha256" else _sha1(fetched.path)
        if found != expected:
            fetched.path.unlink()
            raise IntegrityError(
                f"{redact(url)}: expected {kind} {expected} (the repository's own sum), found {found}; "
                "nothing was kept",
                remedy="run the same command again; if it stays so, the repository is at fault",
            )
        return
    if progress is not None:
        progress.note(f"{redact(url)}: the repository has no sum to check it against")


def _sidecar(url: str, digits: int) -> str | None:
    """The sum that the repository publishes, or None when it publishes none of this kind."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            text = fetch(url, Path(folder) / "sum", sha256=None, size=None).path.read_text(errors="replace")
        except NotThere:
            return None
    words = text.split()
    if not words or not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", words[0]):
        raise IntegrityError(
            f"{redact(url)}: expected {digits} hexadecimal digits, found {text[:60]!r}",
            remedy="record the artifact's sha256 in the manifest",
        )
    return words[0].lower()


def _sha1(path: Path) -> str:
    # Old repositories publish nothing stronger: it tells of damage, only the manifest's sha256 of malice.
    digest = hashlib.sha1(usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
