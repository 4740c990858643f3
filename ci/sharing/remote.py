"""A cache that machines share, by Bazel's HTTP cache protocol; every entry is signed by its writer.

Blobs are at /cas/SHA256. At /ac/KEY is an ActionResult, which names the blobs of one key's entries. A reader
trusts no server: an entry counts only with a known writer's signature over its key and its digests. Trouble
with a server changes no verdict: it costs some seconds and one message.

A run only reads. `cache push` writes, where no user code runs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ci.artifacts.bounds import Malformed
from ci.artifacts.protobuf import Message
from provisioning.base.errors import UpstreamError, UsageError
from provisioning.base.files import hash_file
from provisioning.base.secrets import PUBLIC_KEYS, READ_TOKEN, SIGNING_KEY, TOKEN, URL

if TYPE_CHECKING:
    import requests
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SCHEMA = 2
ENTRIES = 8
"""How many entries one key may have, here and on a server."""
PATIENCE = 10.0
"""Seconds that a server may cost in all, beyond what a good one takes."""
GOOD_ANSWER, LEAST_SPEED = 0.5, 1 << 20
"""A good one's seconds for an answer, and bytes in a second."""
LARGEST_LIST, LARGEST_TEXT, LARGEST_FILE = 1 << 20, 32 << 20, 4 << 30

Blob = bytes | Path


class _Off(Exception):
    """The server does not behave as it should; the message says how."""


class _TooLarge(Exception):
    """An answer with more bytes than one of ours has."""


@dataclass
class Remote:
    url: str
    token: str = ""
    writers: Sequence[Ed25519PublicKey] = ()
    off: str = ""
    """Why the server is no longer asked."""
    patience: float = PATIENCE
    """What is left of it."""
    good_answer: float = GOOD_ANSWER
    largest_text: int = LARGEST_TEXT
    _messages: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        parts = urlsplit(self.url)
        self.shown = f"{parts.scheme}://{parts.hostname}"

    def find(self, key: str) -> Iterator[Mapping[str, Any]]:
        """The entries of a key that a known writer signed, the newest first. Their digests are signed, so any
        files with these digests may be used."""
        if self.off or not self.writers:
            return
        try:
            answer = self.get(f"ac/{key}", LARGEST_LIST)
            for digest in list(_entries(answer))[:ENTRIES]:
                if (entry := self._verified(key, digest)) is not None:
                    yield entry
        except _Off as why:
            self._switch_off(str(why))

    def _verified(self, key: str, digest: str) -> Mapping[str, Any] | None:
        text = self._small_blob(digest)
        if text is None:
            return None
        signature, _, payload = text.partition(b"\n")
        # First: nothing of an entry that is not ours is parsed.
        if not any(signed_by(writer, signature, payload) for writer in self.writers):
            self._say(f"{self.shown} has an entry that no known writer signed; it is not used")
            return None
        signed: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            signed = json.loads(payload)
        if not isinstance(signed, dict) or (signed.get("schema"), signed.get("key")) != (SCHEMA, key):
            self._say(f"{self.shown} has an entry in another's place; it is not used")
            return None
        document: Mapping[str, Any] = signed["document"]
        return document

    def _small_blob(self, digest: str) -> bytes | None:
        content = self.get(f"cas/{digest}", self.largest_text)
        return content if content is None or self._is(digest, hashlib.sha256(content).hexdigest()) else None

    def _is(self, digest: str, actual: str) -> bool:
        if actual != digest:
            self._say(f"{self.shown} answers other bytes than it was given; they are not used")
        return actual == digest

    def text(self, digest: str) -> bytes | None:
        """A small blob, with its digest."""
        try:
            return None if self.off else self._small_blob(digest)
        except _Off as why:
            self._switch_off(str(why))
            return None

    def download(self, digest: str, into: Path) -> bool:
        """Fetch a blob into a new file; False if it is missing or has another digest."""
        try:
            if self.off or self.get(f"cas/{digest}", LARGEST_FILE, into) is None:
                return False
        except (_Off, OSError) as why:
            self._switch_off(str(why))
            return False
        return self._is(digest, hash_file(into))

    def send(
        self, signer: Ed25519PrivateKey, key: str, document: Mapping[str, Any], blobs: Mapping[str, Path]
    ) -> None:
        """Sign an entry and upload what the server has not of it. `blobs` by digest are all that it names."""
        try:
            self._send(signer, key, document, blobs)
        except _Off as why:
            raise UpstreamError(
                f"the remote cache {self.shown} {why}", fix=f"see to the server and {TOKEN}, then push again"
            ) from None

    def _send(
        self, signer: Ed25519PrivateKey, key: str, document: Mapping[str, Any], blobs: Mapping[str, Path]
    ) -> None:
        payload = json.dumps({"schema": SCHEMA, "key": key, "document": document}, sort_keys=True).encode()
        entry = b"%s\n%s" % (signer.sign(payload).hex().encode(), payload)
        digest = hashlib.sha256(entry).hexdigest()
        sizes = {digest: len(entry)}
        whole: dict[str, Blob] = {**blobs, digest: entry}
        for name, blob in whole.items():
            sizes[name] = len(blob) if isinstance(blob, bytes) else blob.stat().st_size
            if not self._has(name):
                self.put(f"cas/{name}", blob)
        older = _entries(self.get(f"ac/{key}", LARGEST_LIST))
        named = [(f"entries/{digest}", digest, len(entry))]
        named += [(f"blobs/{name}", name, sizes[name]) for name in blobs]
        # What the other entries name is unknown here, so they are looked up one by one.
        others = [(f"entries/{name}", name, size) for name, size in older.items() if name != digest]
        self.put(f"ac/{key}", action_result([*named, *others[: ENTRIES - 1]]))

    def _has(self, digest: str) -> bool:
        return self._request("HEAD", f"cas/{digest}").status_code == 200

    def put(self, path: str, blob: Blob) -> None:
        with contextlib.ExitStack() as stack:
            data: Any = blob if isinstance(blob, bytes) else stack.enter_context(blob.open("rb"))
            done = self._request("PUT", path, data=data)
        if done.status_code >= 300:
            raise _Off(f"answers {done.status_code} to an upload")

    def get(self, path: str, most: int, into: Path | None = None) -> bytes | None:
        """The content of an address, or its path in `into`; None if there is nothing, or nothing of ours.

        In a thread of its own, as a socket's time-out bounds each pause and not their sum."""
        from concurrent.futures import Future, wait

        answer: Future[bytes | None] = Future()
        received, began, session = [0], time.monotonic(), _session()

        def receive() -> None:
            try:
                answer.set_result(self._received(session, path, most, into, received))
            except BaseException as error:
                answer.set_exception(error)

        def over() -> float:
            """The seconds that this answer has taken beyond those of a good one."""
            return time.monotonic() - began - self.good_answer - sum(received) / LEAST_SPEED

        threading.Thread(target=receive, daemon=True).start()
        while not wait([answer], max(0.0, self.patience - over())).done:
            if over() > self.patience:
                raise _Off("is too slow")
        with self._lock:
            self.patience -= max(0.0, over())
        try:
            return answer.result()
        except _TooLarge:
            self._say(f"{self.shown} has an entry that is too large; it is not used")
            return None

    def _received(
        self, session: requests.Session, path: str, most: int, into: Path | None, received: list[int]
    ) -> bytes | None:
        import requests

        with self._request("GET", path, session, stream=True) as done, contextlib.ExitStack() as stack:
            if done.status_code in (404, 410):
                return None
            if done.status_code != 200:
                raise _Off(f"answers {done.status_code}")
            file = stack.enter_context(into.open("wb") if into else io.BytesIO())
            try:
                for block in done.iter_content(1 << 16):
                    received[0] += len(block)
                    if received[0] > most:
                        raise _TooLarge
                    file.write(block)
            except requests.RequestException as error:
                raise _Off(f"broke off: {type(error).__name__}") from None
            return file.getvalue() if isinstance(file, io.BytesIO) else b""

    def _request(
        self, method: str, path: str, session: requests.Session | None = None, **more: Any
    ) -> requests.Response:
        import requests

        user, colon, password = self.token.partition(":")
        headers = {} if colon or not self.token else {"Authorization": f"Bearer {self.token}"}
        try:
            return (session or _session()).request(
                method,
                f"{self.url}/{path}",
                timeout=(PATIENCE, PATIENCE),
                auth=(user, password) if colon else None,
                headers=headers,
                allow_redirects=False,
                **more,
            )
        except requests.RequestException as error:
            # Not the error's own text, which has the address with its password.
            raise _Off(f"cannot be reached: {type(error).__name__}") from None

    def _switch_off(self, why: str) -> None:
        if not self.off:
            self.off = why
            self._say(f"the remote cache {self.shown} {why}; going on without it")

    def _say(self, text: str) -> None:
        if text not in self._messages:
            self._messages.add(text)
            sys.stderr.write(f"{text}\n")


def _session() -> requests.Session:
    """One for each thread."""
    import requests

    if not hasattr(_sessions, "session"):
        _sessions.session = requests.Session()
    session: requests.Session = _sessions.session
    return session


_sessions = threading.local()


def signed_by(writer: Ed25519PublicKey, signature: bytes, payload: bytes) -> bool:
    """`signature` is in hexadecimal digits."""
    from cryptography.exceptions import InvalidSignature

    try:
        writer.verify(bytes.fromhex(signature.decode()), payload)
    except (InvalidSignature, ValueError):
        return False
    return True


# Bazel's ActionResult. Only the output files matter: a path, a digest and a size each.


def action_result(files: Sequence[tuple[str, str, int]]) -> bytes:
    def message(number: int, content: bytes) -> bytes:
        return _varint(number << 3 | 2) + _varint(len(content)) + content

    encoded = b""
    for path, digest, size in files:
        place = message(1, digest.encode()) + (_varint(2 << 3) + _varint(size) if size else b"")
        encoded += message(2, message(1, path.encode()) + message(2, place))
    return encoded


def _entries(result: bytes | None) -> dict[str, int]:
    """The digests of a key's entries, the newest first, with their sizes."""
    return {digest: size for path, digest, size in files_of(result or b"") if path.startswith("entries/")}


def files_of(result: bytes) -> list[tuple[str, str, int]]:
    """Path, digest and size of each output file; empty if it is no ActionResult."""
    files = []
    try:
        for file in Message(memoryview(result)).messages(2):
            digest = file.message(2)
            files.append((file.text(1), digest.text(1), digest.number(2)))
    except Malformed:
        return []
    return [file for file in files if len(file[1]) == 64 and set(file[1]) <= set("0123456789abcdef")]


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


def remote_of(environ: Mapping[str, str]) -> Remote | None:
    """The cache that the user's variables name, to read; one for the process, so that trouble is reported
    once."""
    url = environ.get(URL, "")
    if not url:
        return None
    return _remote(url, *(_secret(environ, name) for name in (READ_TOKEN, PUBLIC_KEYS)))


@functools.cache
def _remote(url: str, token: str, public: str) -> Remote:
    writers = _public_keys(public)
    if not writers:
        raise UsageError(
            f"{URL} is set, and no public key: whatever a server says would be believed",
            fix=f"{PUBLIC_KEYS}_FILE=FILE, with the public keys of those who write",
        )
    return Remote(_address(url), token, writers)


def writing(environ: Mapping[str, str]) -> tuple[Remote, Ed25519PrivateKey]:
    """The cache that the user's variables name and the key to sign with."""
    token, private, public = (_secret(environ, name) for name in (TOKEN, SIGNING_KEY, PUBLIC_KEYS))
    if not (url := environ.get(URL, "")):
        raise UsageError(f"{URL} is not set", fix=f"{URL}=https://cache.example.com")
    if not private:
        raise UsageError(f"{SIGNING_KEY} is not set", fix=f"{SIGNING_KEY}_FILE=signing-key.pem")
    signer = _private_key(private)
    own = signer.public_key()
    writers = _public_keys(public)
    if writers and own not in writers:
        raise UsageError(
            f"the public half of {SIGNING_KEY} is not among {PUBLIC_KEYS}: no reader would believe this key",
            fix="openssl pkey -in signing-key.pem -pubout >> writers.pem",
        )
    return Remote(_address(url), token, writers or (own,)), signer


def keys_of(environ: Mapping[str, str]) -> tuple[Ed25519PrivateKey | None, list[Ed25519PublicKey]]:
    """The writer's own key, if this is a writer, and the public keys of all writers."""
    private = _secret(environ, SIGNING_KEY)
    return _private_key(private) if private else None, list(_public_keys(_secret(environ, PUBLIC_KEYS)))


def _private_key(text: str) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    signer = None
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        signer = load_pem_private_key(text.encode(), None)
    if not isinstance(signer, Ed25519PrivateKey):
        raise _no_key(SIGNING_KEY)
    return signer


def _address(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise UsageError(f"{URL}: expected the address of a server", fix=f"{URL}=https://cache.example.com")
    return url


def _public_keys(text: str) -> tuple[Ed25519PublicKey, ...]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    end = "-----END PUBLIC KEY-----"
    try:
        keys = [load_pem_public_key((part + end).encode()) for part in text.split(end) if part.strip()]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _no_key(PUBLIC_KEYS) from None
    known = tuple(key for key in keys if isinstance(key, Ed25519PublicKey))
    if len(known) != len(keys):
        raise _no_key(PUBLIC_KEYS)
    return known


def _no_key(name: str) -> UsageError:
    fix = "openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout"
    return UsageError(f"{name}: expected Ed25519 keys in PEM, without a password", fix=fix)


def _secret(environ: Mapping[str, str], name: str) -> str:
    if value := environ.get(name):
        return value
    if file := environ.get(f"{name}_FILE"):
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            message = f"{name}_FILE={file}: {error.strerror}"
            raise UsageError(message, fix="name a file that can be read") from error
    return ""
