"""Fetch one file over HTTP: resumed, retried, verified while it streams.

A transfer writes `<into>.part`, and renames it to `into` when size and hash are right. Whatever ends it (an
error, a kill, a full disk), the next call continues from there, or starts over where no hash says whether the
bytes are the right ones.

`fetch` is what others call. What a server's answer means is in `http_answers`, how an address may be shown in
`addresses`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from provisioning.addresses import MIRROR_VARIABLE, file_name, redact
from provisioning.base import units
from provisioning.base.errors import IntegrityError, UpstreamError, UsageError
from provisioning.base.files import ANOTHER_STORE, digest_of, disk_errors, hash_file, open_regular, write_all
from provisioning.base.progress import SILENT, Progress
from provisioning.http_answers import (
    DEFAULT_PATIENCE,
    NetworkError,
    Patience,
    describe_error,
    open_session,
    parse_content_range,
    refuse,
    refuse_page,
    whole_number,
)

if TYPE_CHECKING:
    import requests


BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    path: Path
    sha256: str
    size: int


class _StartOver(Exception):
    """The part file is of no use: what the server has does not continue it."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The transfer of one file. The caller sees to it that no other process writes the part file."""

    into: Path
    sha256: str | None
    size: int | None
    progress: Progress
    name: str
    patience: Patience = DEFAULT_PATIENCE

    @property
    def part(self) -> Path:
        return self.into.with_name(self.into.name + ".part")

    def reuse(self) -> Fetched | None:
        """The finished file, if it is there and the manifest's own. A damaged one is removed."""
        if not self.into.is_file():
            return None
        with disk_errors(ANOTHER_STORE, self.into.parent):
            size = self.into.stat().st_size
            if self.size in (None, size):
                digest = hash_file(self.into)
                if self.sha256 in (None, digest):
                    return Fetched(self.into, digest, size)
            self.progress.note(f"{self.name}: the copy in {self.into.parent} is damaged; fetching again")
            self.into.unlink()
        return None

    def run(self, url: str) -> Fetched:
        if url.startswith("file:"):
            return self._from_this_machine(Path(unquote(urlsplit(url).path)))
        with open_session() as session:
            try:
                return self._from(session, url)
            finally:
                self.progress.finish()

    def _from_this_machine(self, local: Path) -> Fetched:
        try:
            stream = open_regular(local)
        except OSError as error:
            message = f"{local}: cannot be read: {error.strerror}"
            raise UpstreamError(message, fix="put the file there, or correct the address") from error
        with stream:
            size = os.fstat(stream.fileno()).st_size
            with disk_errors(ANOTHER_STORE, self.into.parent, size), self.part.open("wb") as part:
                shutil.copyfileobj(stream, part, 1 << 20)
        return self._land(str(local), hash_file(self.part), self.part.stat().st_size, resumed=False)

    def _from(self, session: requests.Session, url: str) -> Fetched:
        """Try until it succeeds, or until too many attempts in a row made no progress."""
        import urllib3

        retry = self.patience.retry()
        furthest = restarts = 0
        while True:
            try:
                return self._attempt(session, url)
            except _StartOver as error:
                self.part.unlink(missing_ok=True)
                retry, furthest = self.patience.retry(), 0
                restarts += 1
                if restarts > 2:
                    raise UpstreamError(
                        f"{redact(url)} changes while it is fetched ({error})", fix="try again later"
                    ) from None
                self.progress.note(f"{self.name}: {error}; starting over")
                continue
            except NetworkError as error:
                failure = error
            size = self.part.stat().st_size if self.part.is_file() else 0
            if size > furthest:
                retry, furthest = self.patience.retry(), size
            try:
                retry = retry.increment("GET", redact(url), error=failure)
            except urllib3.exceptions.MaxRetryError:
                raise UpstreamError(
                    f"{redact(url)}: {failure.reason} ({self.patience.attempts} attempts without progress)",
                    fix="check the network and the proxy variables, then run the same command again: "
                    "it goes on from where it stopped",
                ) from None
            wait = max(retry.get_backoff_time(), min(failure.wait, self.patience.longest_retry_after))
            self.progress.note(f"{self.name}: {failure.reason}; again in {units.seconds(wait)}")
            self.patience.sleep(wait)

    def _attempt(self, session: requests.Session, url: str) -> Fetched:
        offset, digest = self._continuation()
        if digest.hexdigest() == self.sha256:
            # Killed between the last byte and the rename.
            return self._land(url, digest.hexdigest(), offset, resumed=True)
        headers = {"Accept-Encoding": "identity", "Accept": "*/*"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with self._open(session, url, headers) as response:
            total = self._agreed_size(response, url, offset)
            if response.status_code == 200:
                offset, digest = 0, hashlib.sha256()
            if total is not None:
                with disk_errors(ANOTHER_STORE, self.into.parent, total - offset):
                    if shutil.disk_usage(self.into.parent).free < total - offset:
                        raise OSError(errno.ENOSPC, "too little space")
            size = self._stream(response, url, offset, digest, total)
        return self._land(url, digest.hexdigest(), size, resumed=offset > 0)

    def _continuation(self) -> tuple[int, hashlib._Hash]:
        """Return how many bytes of the part file can be continued, and their hash. Without a known hash
        nothing is continued, as a wrong byte would stay unnoticed."""
        with disk_errors(ANOTHER_STORE, self.into.parent):
            length = self.part.stat().st_size if self.part.is_file() else 0
            if self.sha256 is None or (self.size is not None and length > self.size):
                length = 0
            return length, digest_of(self.part) if length else hashlib.sha256()

    @contextlib.contextmanager
    def _open(
        self, session: requests.Session, url: str, headers: Mapping[str, str]
    ) -> Iterator[requests.Response]:
        """Get the response. Errors of the request and of reading the body become ours."""
        import requests
        import urllib3

        timeout = (self.patience.connect_timeout, self.patience.stall_timeout)
        # `from None` throughout: these exceptions quote whole URLs, secrets included.
        try:
            with session.get(url, headers=dict(headers), stream=True, timeout=timeout) as response:
                yield response
        except requests.exceptions.SSLError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise UpstreamError(
                    f"{redact(url)}: the server's certificate is not trusted here",
                    fix="export REQUESTS_CA_BUNDLE=FILE with the CA certificates of your network",
                ) from None
            raise NetworkError("the TLS connection failed") from None
        except (
            requests.exceptions.InvalidURL,
            requests.exceptions.InvalidSchema,
            requests.exceptions.MissingSchema,
        ):
            raise UsageError(
                f"not an address to fetch from: {redact(url)}", fix="use an https:// address"
            ) from None
        except requests.exceptions.TooManyRedirects:
            raise UpstreamError(f"{redact(url)}: redirected in circles", fix="try again later") from None
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
            raise NetworkError(describe_error(error, self.patience)) from None

    def _agreed_size(self, response: requests.Response, url: str, offset: int) -> int | None:
        """The file's size, if it is known. Raises if it is another file, or not the range that was asked."""
        status = response.status_code
        total = whole_number(response.headers.get("Content-Length"))
        if status == 206 and offset:
            start, full_size = parse_content_range(response.headers.get("Content-Range")) or (None, None)
            if start != offset:
                raise _StartOver("the server sent another range than the requested one")
            total = full_size or (None if total is None else offset + total)
        elif status == 416 and offset:
            raise _StartOver("the server has no more bytes after those already here")
        elif status != 200:
            refuse(response, url)
        else:
            refuse_page(response, url)
        if self.size is not None and total is not None and total != self.size:
            raise IntegrityError(
                f"{redact(url)}: expected {self.size} bytes, the server has {total}",
                fix="the file at this address is not the one the manifest names: try another mirror "
                f"({MIRROR_VARIABLE}), or report it",
            )
        return total if total is not None else self.size

    def _stream(
        self, response: requests.Response, url: str, offset: int, digest: hashlib._Hash, total: int | None
    ) -> int:
        """Write and hash the body; returns the size of the file. After an error the part file stays."""
        size, folder = offset, self.into.parent
        self.progress.start(self.name, total, size)
        with disk_errors(ANOTHER_STORE, folder, None if total is None else total - size):
            # Unbuffered: a kill loses no byte that was counted.
            out = self.part.open("ab" if size else "wb", buffering=0)
        with out:
            try:
                for block in body_of(response, self.patience):
                    if total is not None and size + len(block) > total:
                        raise IntegrityError(
                            f"{redact(url)}: more bytes than the expected {total} arrived; nothing was kept",
                            fix="this address has another file than the one named: try a mirror "
                            f"({MIRROR_VARIABLE})",
                        )
                    with disk_errors(ANOTHER_STORE, folder, None if total is None else total - size):
                        write_all(out.fileno(), block)
                    size += len(block)
                    digest.update(block)
                    self.progress.advance(len(block))
            except IntegrityError:
                self.part.unlink(missing_ok=True)
                raise
        if size == 0:
            self.part.unlink(missing_ok=True)
            raise IntegrityError(
                f"{redact(url)}: the server sent an empty file", fix=f"try a mirror ({MIRROR_VARIABLE})"
            )
        if total is not None and size < total:
            raise NetworkError(f"the transfer ended after {size} of {total} bytes")
        return size

    def _land(self, url: str, digest: str, size: int, *, resumed: bool) -> Fetched:
        if self.sha256 not in (None, digest):
            self.part.unlink(missing_ok=True)
            if resumed:
                raise _StartOver("the resumed file has another hash than expected")
            raise IntegrityError(
                f"{redact(url)}: expected sha256 {self.sha256}, found {digest}; nothing was kept",
                fix=f"try another mirror ({MIRROR_VARIABLE}); if every network gives this hash, the file "
                "was replaced at its source: do not use it before its publisher explains why",
            )
        with disk_errors(ANOTHER_STORE, self.into.parent):
            if self.sha256 is None:
                # With a hash, the next use notices what a crash cut off.
                with self.part.open("rb") as stream:
                    os.fsync(stream.fileno())
            self.part.replace(self.into)
        return Fetched(self.into, digest, size)


def body_of(response: requests.Response, patience: Patience) -> Iterator[bytes]:
    """The body as it arrives, never decoded: sizes and hashes are of the bytes on the wire.

    A server that sends a few bytes a second is given up: a job would wait for hours."""
    since, count = time.monotonic(), 0
    while block := response.raw.read1(BLOCK, decode_content=False):
        yield block
        count += len(block)
        if (duration := time.monotonic() - since) >= patience.stall_timeout:
            if count < patience.least_speed * duration:
                raise UpstreamError(
                    f"{redact(response.url)}: {count} bytes arrived in {duration:.0f} s",
                    fix=f"try again later: it goes on from there; or name a mirror in {MIRROR_VARIABLE}",
                )
            since, count = time.monotonic(), 0


def fetch(
    url: str,
    into: Path,
    *,
    sha256: str | None,
    size: int | None,
    progress: Progress = SILENT,
    name: str | None = None,
    patience: Patience = DEFAULT_PATIENCE,
) -> Fetched:
    """Put the file at `url`, which may be a file:// one, at `into`, whole and verified.

    A file that is already there is used again if its hash is right. Without `sha256` the hash found is
    returned for the caller to record. Raises UpstreamError or IntegrityError for errors of the network and
    EnvironmentLacking for errors of the disk. Two processes may not fetch the same file at once.
    """
    transfer = Transfer(into, sha256, size, progress, name or file_name(url), patience)
    with disk_errors(ANOTHER_STORE, into.parent):
        into.parent.mkdir(parents=True, exist_ok=True)
    return transfer.reuse() or transfer.run(url)
