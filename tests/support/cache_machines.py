"""Machines that share a remote cache: a clone with one input, a store, and work that is remembered."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from ci.engine.inputs import Roots
from ci.engine.memo import CachedResult, Memo, Miss, WorkDone
from ci.engine.watch import Touched, stamp_of
from ci.sharing.packed import begin, packed, read, remove
from ci.sharing.remote import Remote

KEY = {"module": "net"}
OURS = Ed25519PrivateKey.generate()
COMMON = Touched(looked={"/etc/qnn-ci-nowhere": "absent"})


def pems(key: Ed25519PrivateKey) -> tuple[str, str]:
    """A public and a private key."""
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(), private


class Machine:
    """A clone and a store, and the remote cache as this machine knows it."""

    def __init__(
        self, folder: Path, url: str, token: str = "", *, writes: bool = False, pushes: bool = True
    ) -> None:
        self.folder, self.store = folder / "clone", folder / "store"
        (self.folder / ".git").mkdir(parents=True)
        self.shares, self.pushes = True, pushes
        self.remote = Remote(url, token, (OURS.public_key(),))
        self.results = folder / "results" if writes else None
        if self.results:
            begin(self.results)
        self.weights("1")

    def weights(self, text: str) -> None:
        (self.folder / "w.bin").write_text(text)
        os.utime(self.folder / "w.bin", (1e9, 1e9))

    def memo(self) -> Memo:
        memo = Memo(self.store, "test", Roots({"suite": self.folder, "store": self.store}))
        memo.exchange.remote = self.remote if self.shares else None
        memo.exchange.results = str(self.results or "")
        return memo

    def push(self) -> None:
        """As another command does after the work."""
        for path in packed(self.results) if self.results and self.pushes else ():
            result = read(path)
            self.remote.send(OURS, result.key, result.document, result.blobs)
            remove(path)

    def work(self, value: int = 7) -> None:
        memo = self.memo()
        folder = memo.scratch()
        (folder / "out").mkdir()
        (folder / "out" / "net.pte").write_text("program 1")
        assert not memo.remember(
            "net", KEY, {"value": value}, WorkDone(self.touched, COMMON), folder
        ).not_remembered
        memo.close()
        self.push()

    def fail(self) -> None:
        memo = self.memo()
        memo.forget(KEY, WorkDone(self.touched, COMMON))
        memo.close()
        self.push()

    @property
    def touched(self) -> Touched:
        path = self.folder / "w.bin"
        return Touched(opened={str(path): stamp_of(path.stat())})

    def find(self) -> CachedResult | Miss:
        return self.memo().find("net", KEY)
