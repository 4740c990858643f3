"""Results that a run packs for the cache that machines share: `cache push` signs and uploads them, where no
user code runs.

A folder has blobs/SHA256, and entries/NAME.json with an entry, its key, and the blobs that it names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.engine.inputs import key_of
from provisioning.base.errors import CheckFailed
from provisioning.base.files import hash_file, replacing
from provisioning.base.foreign import in_line
from provisioning.base.rendering.text import plural

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from ci.engine.remote import Remote

ENTRIES, BLOBS = "entries", "blobs"
LARGEST_ENTRY = 32 << 20
DIGEST = re.compile("[0-9a-f]{64}")


def pack(folder: Path, key: str, document: Mapping[str, Any], blobs: Mapping[str, Path]) -> None:
    """`blobs` by digest are all that the entry names. The entry comes last: it is whole or not there."""
    for name in (ENTRIES, BLOBS):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for digest, blob in blobs.items():
        if not (folder / BLOBS / digest).exists():
            with replacing(folder / BLOBS / digest) as part:
                shutil.copyfile(blob, part)
    entry = {"key": key, "document": dict(document), "blobs": sorted(blobs)}
    with replacing(folder / ENTRIES / f"{key_of(entry)[:32]}.json") as part:
        part.write_text(json.dumps(entry), encoding="utf-8")


def push(folder: Path, remote: Remote, signer: Ed25519PrivateKey) -> int:
    """Sign and upload each entry, and remove it: what was not sent is still there. How many they were."""
    entries = sorted((folder / ENTRIES).glob("*.json"))
    for number, path in enumerate(entries, 1):
        key, document, blobs = _entry(folder, path)
        remote.send(signer, key, document, blobs)
        path.unlink()
        sys.stderr.write(f"[{number}/{len(entries)}] {key[:16]}: {plural(len(blobs), 'file')}\n")
    for blob in (folder / BLOBS).glob("*"):
        blob.unlink()
    return len(entries)


def _entry(folder: Path, path: Path) -> tuple[str, Mapping[str, Any], dict[str, Path]]:
    """Written where user code ran: no other file than its blobs may go out, whatever it names."""
    if not _is_file(path) or path.stat().st_size > LARGEST_ENTRY:
        raise _refused(path, "it is no entry")
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        key, document, names = entry["key"], entry["document"], entry["blobs"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refused(path, f"it is no entry ({type(error).__name__})") from None
    if not isinstance(document, dict) or not isinstance(names, list):
        raise _refused(path, "it is no entry")
    for digest in [key, *names]:
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            raise _refused(path, f"{in_line(str(digest))[:80]!r} is no digest")
    blobs = {digest: folder / BLOBS / digest for digest in names}
    for digest, blob in blobs.items():
        if not _is_file(blob) or hash_file(blob) != digest:
            raise _refused(path, f"{digest} is not there, or has other bytes")
    return key, document, blobs


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _refused(path: Path, why: str) -> CheckFailed:
    return CheckFailed(f"{in_line(str(path))}: {why}", fix="remove it, or have a run pack its results again")
