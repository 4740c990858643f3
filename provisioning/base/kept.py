"""What takes long to make of files of ours, kept in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from provisioning.base.errors import UsageError
from provisioning.base.files import open_regular
from provisioning.base.settings import derived_folder, root_digest

LARGEST = 64 << 20


def kept(name: str, sources: Iterable[Path], make: Callable[[], Any]) -> Any:
    """What `make` makes of these files, as JSON has it: from the cache if they are the same. That it is at
    work is shown.

    JSON cannot run anything. A file in the cache that was cut short, is of other sources or another user, or
    may be written by one, is made anew. Where nothing can be written, nothing is kept."""
    whole = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in sources)
    try:
        path = derived_folder() / f"{name}-{root_digest()}.json"
    except UsageError:  # The user has no home folder.
        return json.loads(_made(name, make))
    digest, _, text = _own(path).partition(b"\n")
    if digest != _digest(whole + text):
        text = _made(name, make)
        _write(path, _digest(whole + text) + b"\n" + text)
    return json.loads(text)


def _made(name: str, make: Callable[[], Any]) -> bytes:
    from provisioning.base.progress import QUIET_FOR, at_work

    with at_work(f"making the table {name!r}, once for each version", every=QUIET_FOR):
        return json.dumps(make()).encode()


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _own(path: Path) -> bytes:
    """The content of a file that nobody but this user can have written, else nothing."""
    try:
        with open_regular(path) as file:
            facts = os.fstat(file.fileno())
            mine = facts.st_uid == os.geteuid() and not stat.S_IMODE(facts.st_mode) & 0o022
            return file.read() if mine and facts.st_size <= LARGEST else b""
    except OSError:
        return b""


def _write(path: Path, content: bytes) -> None:
    """Replaces a link, and does not follow it."""
    import tempfile

    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(part).replace(path)
        finally:
            # Also if it was interrupted.
            Path(part).unlink(missing_ok=True)
