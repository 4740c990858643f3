"""A content-addressed cache of verdicts: the same inputs give the same verdict without running again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from provisioning.base.findings import Metric as Json

FORMAT = 1
"""Part of every key: a new value forgets everything that was kept."""

UNUSED_FOR = 60 * 86400.0
"""Seconds after which a verdict that nobody asked for goes."""


class VerdictCache:
    """Verdicts as small JSON files under `<store>/cache/<kind>/`. Damaged entries count as absent."""

    def __init__(self, store: Path, kind: str, *, enabled: bool = True) -> None:
        self.directory = store / "cache" / kind
        self.enabled = enabled

    def get(self, key: str) -> dict[str, Json] | None:
        verdict = self.peek(key) if self.enabled else None
        if verdict is not None:
            # When it was last of use, for `prune`.
            with contextlib.suppress(OSError):
                self._path(key).touch()
        return verdict

    def peek(self, key: str) -> dict[str, Json] | None:
        """What is kept, without making use of it."""
        path = self._path(key)
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            path.unlink(missing_ok=True)
            return None
        verdict = entry.get("verdict") if isinstance(entry, dict) and entry.get("key") == key else None
        if not isinstance(verdict, dict):
            path.unlink(missing_ok=True)
            return None
        return verdict

    def put(self, key: str, verdict: Mapping[str, Json]) -> None:
        """Replace in one step, so that a reader in another process or thread sees all or nothing."""
        if not self.enabled:
            return
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        part.write_text(json.dumps({"key": key, "verdict": dict(verdict)}, sort_keys=True), encoding="utf-8")
        part.replace(path)

    def through(self, key: str, make: Callable[[], dict[str, Json]]) -> dict[str, Json]:
        """The kept verdict, else the one `make` gives, kept from now on."""
        kept = self.get(key)
        if kept is None:
            kept = make()
            self.put(key, kept)
        return kept

    def prune(self) -> int:
        """Remove what nobody asked for in so long; returns how many that were."""
        removed = 0
        for path in self.directory.glob("??/*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > UNUSED_FOR:
                    path.unlink()
                    removed += 1
        return removed

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}.json"


def key_of(inputs: Mapping[str, Json]) -> str:
    """The key of named inputs; any changed value, and any added or removed name, gives another."""
    text = json.dumps({"format": FORMAT, "inputs": dict(inputs)}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_files(root: Path, files: Iterable[Path]) -> str:
    """One digest of names below `root` and contents; the order given does not matter."""
    whole = hashlib.sha256()
    for path in sorted(files):
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        whole.update(f"{path.relative_to(root).as_posix()}\0{digest.hexdigest()}\n".encode())
    return whole.hexdigest()
