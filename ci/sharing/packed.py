"""Results that a run packed for `cache push`, which signs and uploads them where no user code runs.

Each has a folder of its own, `TIME-DIGEST`: `entry.json` with its key and document, and its blobs by digest.
A job with other people's code wrote it, so it is read as any foreign file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file, open_regular, replace_text
from provisioning.base.secrets import RESULTS

SCHEMA = 1
MARK = "qnn-ci-results.json"
"""Says that a folder is one of results, also if it has none: GitHub uploads no empty folder."""
ENTRY = "entry.json"
LARGEST_ENTRY = 32 << 20
_DIGEST = re.compile("[0-9a-f]{64}")
_NAME = re.compile(r"\d{20}-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class PackedResult:
    key: str
    document: Mapping[str, Any]
    blobs: Mapping[str, Path]


def begin(folder: Path) -> None:
    try:
        replace_text(folder / MARK, json.dumps({"schema": SCHEMA}))
    except OSError as error:
        fix = f"{RESULTS}=FOLDER, with a folder to write to"
        raise UsageError(f"{RESULTS}={folder}: {error.strerror}", fix=fix) from None


def pack(folder: Path, key: str, document: Mapping[str, Any], blobs: Mapping[str, Path]) -> None:
    """Trouble changes no verdict: the result is not pushed, and that is said."""
    entry = json.dumps({"schema": SCHEMA, "key": key, "document": dict(document)})
    name = f"{time.time_ns():020}-{hashlib.sha256(entry.encode()).hexdigest()[:16]}"
    part = folder / f".{name}"
    try:
        part.mkdir(parents=True)
        for digest, path in blobs.items():
            try:
                os.link(path, part / digest)
            except OSError:
                shutil.copyfile(path, part / digest)
        replace_text(part / ENTRY, entry)
        part.rename(folder / name)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        sys.stderr.write(f"a result is not packed into {folder}: {error.strerror}; it will not be pushed\n")


def checked(folder: Path) -> None:
    """Raise UsageError for another folder: a wrong name must not look as if there were nothing to push."""
    if not (folder / MARK).is_file():
        raise UsageError(
            f"{folder} is no folder of results", fix=f"name the one that {RESULTS} named in the run"
        )


def packed(folder: Path) -> list[Path]:
    """Oldest first: what failed after it had passed is pushed later."""
    results = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    for path in results:
        if path.is_dir() and not path.is_symlink() and not os.path.lexists(path / ENTRY):
            remove(path)
    return [path for path in results if os.path.lexists(path)]


def remove(result: Path) -> None:
    """The entry first: without it, a kill leaves nothing that looks like a result."""
    (result / ENTRY).unlink(missing_ok=True)
    shutil.rmtree(result)


def read(result: Path) -> PackedResult:
    """Raises CheckFailed for what no run packs."""
    try:
        if result.is_symlink():
            raise _not_ours(result, "it is a link")
        with _opened(result / ENTRY) as stream:
            text = stream.read(LARGEST_ENTRY + 1)
        if len(text) > LARGEST_ENTRY:
            raise _not_ours(result, "its entry is too large")
        whole = json.loads(text)
        key, document = whole["key"], whole["document"]
        names = {*document["sets"], *document.get("files", {}).values()}
        if whole["schema"] != SCHEMA or not all(_DIGEST.fullmatch(digest) for digest in (key, *names)):
            raise _not_ours(result, "its entry is none")
        blobs = {digest: result / digest for digest in sorted(names)}
        for digest, path in blobs.items():
            _opened(path).close()
            if hash_file(path) != digest:
                raise _not_ours(result, f"{digest[:12]} is damaged")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _not_ours(result, getattr(error, "strerror", "") or "its entry is none") from None
    return PackedResult(key, document, blobs)


def _opened(path: Path) -> Any:
    if path.is_symlink():
        raise OSError(0, f"{path.name[:12]} is a link")
    return open_regular(path)


def _not_ours(result: Path, why: str) -> CheckFailed:
    return CheckFailed(f"{result} is not pushed: {why}")
