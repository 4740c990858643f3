"""Files that are refused as compiled programs: those of torch that are none, by the names in their archive;
and one that is not what its record says.

`compile` writes the record beside what it compiled.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed
from provisioning.base.files import hash_file

EXPORTED, SCRIPT, SAVED = "an exported model", "TorchScript", "what torch.save writes"
SAVED_AS = (".ckpt", ".pt", ".pth")


def kind_of(path: Path) -> str:
    """Empty for another file."""
    if not path.is_file():
        # A named pipe would be waited for.
        return ""
    try:
        with zipfile.ZipFile(path) as archive:
            # All is in one folder, whose name is anything.
            names = {name.partition("/")[2] for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError, ValueError):
        # Until torch 1.6, torch.save wrote no archive.
        return SAVED if path.suffix in SAVED_AS else ""
    if "models/model.json" in names:
        return EXPORTED
    if "constants.pkl" in names:
        return SCRIPT
    return SAVED if "data.pkl" in names else ""


def as_model(kind: str, path: Path) -> Fix:
    """How `compile` takes it."""
    if kind == EXPORTED:
        return Fix("compile it: {}", session("compile", path, "-o", "out"))
    if kind == SCRIPT:
        return Fix(
            "torch.export does not support it: give the module that it was made of, by"
            " `def make_net(): return Net(), (x,)`; and name FILE.py:make_net"
        )
    load = f'torch.load("{path}", map_location="cpu"'
    return Fix(
        f"write `def make_net(): model = Net(); model.load_state_dict({load})); return model, (x,)` and name"
        f" FILE.py:make_net; if it holds the whole module, `model = {load}, weights_only=False)`"
    )


def refuse(path: Path) -> None:
    """For commands that take a compiled program."""
    if kind := kind_of(path):
        raise CheckFailed(f"{path}: expected a compiled program, found {kind}", fix=as_model(kind, path))


def record_path(artifact: Path) -> Path:
    return artifact.with_suffix(".json")


def require_recorded(artifact: Path, beside: Sequence[Path] = ()) -> None:
    """Raises CheckFailed if there is a record, and the artifact or a file of it is not what was written."""
    record = record_path(artifact)
    files = _files(record, artifact.name) if record.is_file() else None
    if files is None:
        return
    for path in (artifact, *beside):
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


def _files(record: Path, artifact: str) -> Mapping[str, str] | None:
    """SHA-256 by name, or that of the one program that it is about; None if the file is no record."""
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
