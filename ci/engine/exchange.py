"""Entries that machines share: what the remote cache offers, and what is packed for it.

Which entry counts, and which holds for this machine alone, is the memo's affair."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from ci.engine.entries import Document, Entries, name_of
from ci.engine.inputs import key_of
from ci.sharing.packed import begin, pack
from ci.sharing.remote import ENTRIES, Remote, remote_of
from provisioning.base.files import replace_text
from provisioning.base.findings import Metric as Json
from provisioning.base.secrets import RESULTS, handed_on


class Exchange:
    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self.remote = remote_of(handed_on(os.environ))
        self.results = os.environ.get(RESULTS, "")
        """Where what is remembered here is packed for `cache push`, if anywhere."""
        if self.results:
            begin(Path(self.results))

    def pack(self, key: Mapping[str, Json], document: Document) -> None:
        if self.results:
            blobs = {name: self._entries.set_file(name) for name in document["sets"]}
            if document.get("folder"):
                folder = self._entries.folder(key) / document["folder"]
                blobs |= {digest: folder / file for file, digest in document["files"].items()}
            pack(Path(self.results), self._name(key), document, blobs)

    def offered(self, key: Mapping[str, Json]) -> Iterator[Document]:
        """Other machines' entries of this key, with their sets of inputs in our own store."""
        if self.remote is None:
            return
        for document in self.remote.find(self._name(key)):
            with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
                if all(self._has_set(name, self.remote) for name in document["sets"]):
                    yield dict(document)

    def taken(self, key: Mapping[str, Json], document: Document) -> Document | None:
        """An entry put into our own store with its files; None if it has not all of them."""
        files: dict[str, str] = dict(document["files"])
        if self.remote is None or any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            return None
        folder = self._entries.place(key, document, files) if document["folder"] else None
        if folder and self._entries.damage(folder, files):
            scratch = self._entries.scratch()
            for file, digest in files.items():
                (scratch / file).parent.mkdir(parents=True, exist_ok=True)
                if not self.remote.download(digest, scratch / file):
                    shutil.rmtree(scratch, ignore_errors=True)
                    return None
            self._entries.put(scratch, folder, files)
        kept: Document = {**document, "folder": folder.name if folder else None}
        self._entries.write(key, f"{name_of(kept)}.json", kept, ENTRIES)
        return kept

    def _has_set(self, name: str, remote: Remote) -> bool:
        if self._entries.set(name) is None:
            text = remote.text(name)
            if text is None:
                return False
            replace_text(self._entries.set_file(name), text.decode())
        return True

    def _name(self, key: Mapping[str, Json]) -> str:
        return hashlib.sha256(f"{self._entries.kind.name} {key_of(key)}".encode()).hexdigest()
