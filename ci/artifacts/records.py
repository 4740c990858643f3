"""`compile` writes a record beside what it compiled, which says whether a file is still the one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from provisioning.base.errors import CheckFailed
from provisioning.base.files import hash_file


def record_path(artifact: Path) -> Path:
    """Return the path of the record beside a compiled file."""
    return artifact.with_suffix(".json")


def require_recorded(artifact: Path, data_files: Sequence[Path] = ()) -> None:
    """Compare the artifact with its record, if it has one. Raises CheckFailed if the artifact or a file of it
    changed since the record was written."""
    record = record_path(artifact)
    files = _recorded_files(record, artifact.name) if record.is_file() else None
    if files is None:
        return
    for path in (artifact, *data_files):
        if path.name not in files:
            raise CheckFailed(
                f"{record} is a record of {', '.join(files) or 'nothing'}, not of {path.name}",
                fix="keep a model and its record under the names they were written with, or compile it again",
            )
        if (digest := hash_file(path)) != files[path.name]:
            raise CheckFailed(
                f"{path} was changed after it was compiled: expected SHA-256 {files[path.name]},"
                f" found {digest}",
                fix="copy it again, or compile it again",
            )


def _recorded_files(record: Path, artifact: str) -> Mapping[str, str] | None:
    """Return the SHA-256 of each file by its name; None if `record` is another kind of JSON file."""
    try:
        data = json.loads(record.read_text(encoding="utf-8"))
        if "files" not in data:
            return {artifact: str(data["sha256"])}
        if data["model"] != artifact:
            return {data["model"]: ""}
        return {str(name): str(digest) for name, digest in data["files"].items()}
    except (KeyError, TypeError, AttributeError):
        return None
    except (OSError, ValueError) as error:
        raise CheckFailed(
            f"{record}: expected the record that `compile` wrote, found something else ({error})",
            fix="compile the model again",
        ) from error
