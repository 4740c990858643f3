"""Files that torch writes are no compiled programs. They are known by the names in their archive, and each
has a way to be compiled."""

from __future__ import annotations

import zipfile
from pathlib import Path

from provisioning.archive import DAMAGE
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed

EXPORTED, SCRIPT, SAVED = "an exported model", "TorchScript", "what torch.save writes"
SAVED_AS = (".ckpt", ".pt", ".pth")


def torch_kind_of(path: Path) -> str:
    """Say which kind of torch's files this is; empty if it is another kind of file."""
    if not path.is_file():
        # A named pipe would be waited for.
        return ""
    try:
        with zipfile.ZipFile(path) as archive:
            # All is in one folder, whose name is anything.
            names = {name.partition("/")[2] for name in archive.namelist()}
    except (*DAMAGE, OSError):
        # Until torch 1.6, torch.save wrote no archive.
        return SAVED if path.suffix in SAVED_AS else ""
    if "models/model.json" in names:
        return EXPORTED
    if "constants.pkl" in names:
        return SCRIPT
    return SAVED if "data.pkl" in names else ""


def fix_for_torch_file(kind: str, path: Path) -> Fix:
    """Say how to give a file of torch to `compile`."""
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


def refuse_torch_file(path: Path) -> None:
    """Raise CheckFailed for a file of torch where a compiled program is needed."""
    if kind := torch_kind_of(path):
        raise CheckFailed(
            f"{path}: expected a compiled program, found {kind}", fix=fix_for_torch_file(kind, path)
        )
