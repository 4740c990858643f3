"""Files of torch that are no compiled program, by the names in their archive."""

from __future__ import annotations

import zipfile
from pathlib import Path

from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed

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
