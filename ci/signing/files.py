"""Writing results: in one step or not at all, and never where an SDK is."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from provisioning.base.errors import EnvironmentLacking


def put(path: Path, content: bytes) -> None:
    """Write or replace the file in one step, readable for all; nothing is left of a failed try."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                os.fchmod(stream.fileno(), 0o644)
                stream.write(content)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise EnvironmentLacking(
            f"{path}: cannot be written: {error.strerror}", remedy="-o names another directory"
        ) from error
