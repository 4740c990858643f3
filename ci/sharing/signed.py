"""A folder whose files one of several writers signed: of all others, nothing is left.

`signed` has the signature in its first line, and then each file's SHA-256. Whoever can write the folder can
take files away and put earlier ones back, and no other.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ci.sharing.remote import signed_by
from provisioning.base.files import hash_file, replace_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNED = "signed"
LIST = "files of a signed folder"
"""Tells what is signed here from what else is signed with these keys."""


def sign(folder: Path, names: Iterable[str], signer: Ed25519PrivateKey) -> int:
    """Sign these files; how many they are."""
    digests = {name: hash_file(folder / name) for name in names}
    payload = json.dumps({LIST: digests}, sort_keys=True)
    replace_text(folder / SIGNED, f"{signer.sign(payload.encode()).hex()}\n{payload}")
    return len(digests)


def keep_signed(folder: Path, writers: Sequence[Ed25519PublicKey]) -> int:
    """Remove every file that none of the writers signed, and every link; how many that were."""
    digests = _signed_digests(folder / SIGNED, writers)
    removed = 0
    for place, folders, files in os.walk(folder):
        for name in [*files, *(folder for folder in folders if Path(place, folder).is_symlink())]:
            path = Path(place, name)
            digest = digests.get(path.relative_to(folder).as_posix(), "")
            if not (digest and path.is_file() and not path.is_symlink() and hash_file(path) == digest):
                path.unlink()
                removed += path.name != SIGNED
    return removed


def _signed_digests(file: Path, writers: Sequence[Ed25519PublicKey]) -> dict[str, str]:
    """The list of files; empty if no writer signed it."""
    if file.is_symlink() or not file.is_file():
        return {}
    signature, _, payload = file.read_bytes().partition(b"\n")
    # First: nothing that is not ours is parsed.
    if any(signed_by(writer, signature, payload) for writer in writers):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return dict(json.loads(payload)[LIST])
    return {}
