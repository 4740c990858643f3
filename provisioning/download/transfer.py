"""The transfer of one file: attempts, and the part file that the next attempt continues."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base import units
from provisioning.base.errors import IntegrityError, UpstreamError, UsageError
from provisioning.base.files import hash_file, remove_interrupted, replace_text, write_all
from provisioning.base.progress import Progress
from provisioning.download.address import MIRROR_VARIABLE, redact
from provisioning.download.disk import BLOCK, digest_of, disk_errors, sync_folder
from provisioning.download.server import (
    NetworkError,
    Patience,
    body_of,
    check_start,
    excerpt,
    in_words,
    open_session,
    parse_content_range,
    refuse,
    refuse_page,
    strong_validator,
    whole_number,
    zip_expected,
)

if TYPE_CHECKING:
    import requests

CHECKPOINT = 64 << 20
"""At most so many bytes are fetched again after a kill, where the hash is not known."""


@dataclass(frozen=True, slots=True)
class Fetched:
    path: Path
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class _Partial:
    """The record beside a part file: which file its bytes belong to."""

    url: str
    validator: str
    """A strong ETag or a Last-Modified date, as If-Range takes it; empty when the server gave neither."""
    total: int | None
    done: int
    """How many bytes were known to be on disk."""

    @classmethod
    def read(cls, path: Path) -> _Partial | None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            partial = cls(**data)
            sound = (
                isinstance(partial.url, str)
                and isinstance(partial.validator, str)
                and isinstance(partial.done, int)
                and (partial.total is None or isinstance(partial.total, int))
            )
        except (OSError, ValueError, TypeError):
            return None
        return partial if sound else None

    def write(self, path: Path) -> None:
        replace_text(path, json.dumps(asdict(self)))


_REPLACED = "the file changed on the server"


class _StartOver(Exception):
    """The server now has another file than the one that the part file belongs to."""


class Transfer:
    """The transfer of one file. The caller holds its mutex, so no other process writes the part file."""

    def __init__(
        self,
        into: Path,
        sha256: str | None,
        size: int | None,
        progress: Progress,
        name: str,
        patience: Patience,
    ) -> None:
        self.into = into
        self.sha256 = sha256
        self.size = size
        self.progress = progress
        self.name = name
        self.patience = patience
        self.part = into.with_name(into.name + ".part")
        self.record = into.with_name(into.name + ".part.json")

    def reuse(self, *, tidy: bool = True) -> Fetched | None:
        """The finished file, if it is there and the manifest's own. A damaged one is removed."""
        if not self.into.is_file():
            return None
        with disk_errors(self.into.parent, None):
            size = self.into.stat().st_size
            if self.size in (None, size):
                digest = hash_file(self.into)
                if self.sha256 in (None, digest):
                    if tidy:
                        self._discard()  # left by a kill just after the rename
                    return Fetched(self.into, digest, size)
            if tidy:
                self.progress.note(f"{self.name}: the copy in {self.into.parent} is damaged; fetching again")
                self.into.unlink()
        return None

    def copy(self, local: Path) -> Fetched:
        """Copy a file of this machine, with the same checks as for a download."""
        size = local.stat().st_size
        if self.size not in (None, size):
            raise IntegrityError(
                f"{local}: expected {self.size} bytes, found {size}",
                fix=f"remove {local}, it is another file",
            )
        digest = hashlib.sha256()
        self._discard()
        self.progress.start(self.name, size)
        try:
            with local.open("rb") as stream, disk_errors(self.into.parent, size), self.part.open("wb") as out:
                while block := stream.read(BLOCK):
                    digest.update(block)
                    out.write(block)
                    self.progress.advance(len(block))
                out.flush()
                self._sync(out.fileno())
        finally:
            self.progress.finish()
        return self._land(str(local), digest.hexdigest(), size, resumed=False)

    def first_of(self, urls: Sequence[str]) -> Fetched:
        failures: list[UpstreamError] = []
        with open_session() as session:
            for url in urls:
                if failures:
                    self.progress.note(f"{self.name}: {failures[-1].message}; trying {redact(url)}")
                try:
                    return self._from(session, url)
                except UpstreamError as error:
                    failures.append(error)
                finally:
                    self.progress.finish()
        if len(failures) == 1:
            raise failures[0]
        worst = next((f for f in failures if isinstance(f, IntegrityError)), failures[0])
        raise type(worst)(
            f"{self.name}: no address gave it: " + "; ".join(f.message for f in failures),
            fix=worst.fix,
        )

    def _from(self, session: requests.Session, url: str) -> Fetched:
        """Try one address until it succeeds, or until too many attempts in a row made no progress."""
        import urllib3

        retry = self.patience.retry()
        furthest = restarts = 0
        while True:
            before = _Partial.read(self.record)
            failure: NetworkError | None = None
            try:
                return self._attempt(session, url)
            except _StartOver as error:
                self._discard()
                reason = str(error)
            except NetworkError as error:
                failure = error
                reason = _REPLACED if self._was_replaced(before) else ""
            if reason:
                retry, furthest = self.patience.retry(), 0
                restarts += 1
                if restarts > 2:
                    raise UpstreamError(
                        f"{redact(url)} changes while it is fetched ({reason})", fix="try again later"
                    )
                self.progress.note(f"{self.name}: {reason}; starting over")
            if failure is None:
                continue
            done = self.part.stat().st_size if self.part.is_file() else 0
            if done > furthest:
                retry, furthest = self.patience.retry(), done
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

    def _was_replaced(self, before: _Partial | None) -> bool:
        """Whether the last attempt received another file than the attempt before it."""
        now = _Partial.read(self.record)
        if before is None or now is None:
            return False
        return any(
            one != other
            for one, other in ((before.validator, now.validator), (before.total, now.total))
            if one and other
        )

    def _attempt(self, session: requests.Session, url: str) -> Fetched:
        partial = self._resumable(url)
        offset = partial.done if partial else 0
        if partial and offset == (self.size or partial.total):
            # Killed between the last byte and the rename.
            with disk_errors(self.into.parent, None):
                return self._land(url, hash_file(self.part), offset, resumed=True)
        headers = {"Accept-Encoding": "identity", "Accept": "*/*"}
        if partial:
            headers["Range"] = f"bytes={offset}-"
            if partial.validator and partial.url == redact(url):
                headers["If-Range"] = partial.validator
        with self._open(session, url, headers) as response:
            offset, total = self._agree(response, url, partial)
            with disk_errors(self.into.parent, None if total is None else total - offset):
                self._check_space(offset, total)
            digest = hashlib.sha256()
            if offset:
                digest = digest_of(self.part, offset)
            partial = _Partial(redact(url), strong_validator(response.headers), total, offset)
            received = self._stream(response, url, partial, digest, total)
        return self._land(url, digest.hexdigest(), received, resumed=offset > 0)

    def _resumable(self, url: str) -> _Partial | None:
        """The part file's record if it can be continued, with the number of bytes that are surely on disk."""
        partial = _Partial.read(self.record)
        try:
            length = self.part.stat().st_size
        except FileNotFoundError:
            return None
        with disk_errors(self.into.parent, None):
            if partial is not None and self.sha256 is None:
                # Without a known hash a wrong byte would stay unnoticed, so only synced bytes count.
                same = partial.url == redact(url) and partial.validator
                length = min(length, partial.done) if same else 0
            if partial is None or length == 0 or (self.size is not None and length > self.size):
                self._discard()
                return None
        return replace(partial, done=length)

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
            raise NetworkError(in_words(error, self.patience)) from None

    def _agree(
        self, response: requests.Response, url: str, partial: _Partial | None
    ) -> tuple[int, int | None]:
        """The offset of this response's first byte, and the file's size. Raises if it is another file."""
        status = response.status_code
        offset = 0
        length = whole_number(response.headers.get("Content-Length"))
        if status == 206 and partial:
            content_range = parse_content_range(response.headers.get("Content-Range"))
            if content_range is None or content_range.start != partial.done:
                raise _StartOver("the server sent another range than the one asked for")
            fresh = strong_validator(response.headers)
            if partial.url == redact(url) and fresh and partial.validator and fresh != partial.validator:
                raise _StartOver(_REPLACED)
            if None not in (content_range.total, partial.total) and content_range.total != partial.total:
                raise _StartOver(_REPLACED)
            offset = partial.done
            total = content_range.total
            if total is None and length is not None:
                total = offset + length
        elif status == 200:
            total = length
        elif status == 416 and partial:
            raise _StartOver("the server has no more bytes after those already here")
        else:
            refuse(response, url)
        if status == 200 and not zip_expected(url, self.name):
            refuse_page(response, url)
        if self.size is not None and total is not None and total != self.size:
            if status == 200:
                refuse_page(response, url)
            raise IntegrityError(
                f"{redact(url)}: expected {self.size} bytes, the server has {total}"
                + excerpt(response, total),
                fix="the file at this address is not the one the manifest names: try another mirror "
                f"({MIRROR_VARIABLE}), or report it",
            )
        return offset, total if total is not None else self.size

    def _check_space(self, offset: int, total: int | None) -> None:
        if total is None:
            return
        free = shutil.disk_usage(self.into.parent).free
        if free < total - offset:
            raise OSError(errno.ENOSPC, "too little space")

    def _stream(
        self,
        response: requests.Response,
        url: str,
        partial: _Partial,
        digest: hashlib._Hash,
        total: int | None,
    ) -> int:
        """Write and hash the body; returns the size of the file. After an error the part file stays."""
        received = synced = partial.done
        folder = self.into.parent
        self.progress.start(self.name, total, received)
        with disk_errors(folder, None if total is None else total - received):
            # Unbuffered: a kill loses no byte that was counted.
            out = self.part.open("r+b" if received else "wb", buffering=0)
        with out, _hashing(digest) as hashed:
            try:
                with disk_errors(folder, None):
                    out.seek(received)
                    partial.write(self.record)
                for block in body_of(response, self.patience):
                    if received == 0:
                        check_start(block, response, url, self.name)
                    if total is not None and received + len(block) > total:
                        raise IntegrityError(
                            f"{redact(url)}: more bytes than the expected {total} arrived; nothing was kept",
                            fix="this address has another file than the one named: try a mirror "
                            f"({MIRROR_VARIABLE})",
                        )
                    with disk_errors(folder, None if total is None else total - received):
                        write_all(out.fileno(), block)
                        received += len(block)
                        if received - synced >= CHECKPOINT:
                            self._checkpoint(out, partial, received)
                            synced = received
                    hashed(block)
                    self.progress.advance(len(block))
                with disk_errors(folder, None):
                    self._sync(out.fileno())
            except IntegrityError:
                self._discard()
                raise
            except BaseException:
                with contextlib.suppress(OSError):
                    self._checkpoint(out, partial, received)
                raise
        if received == 0:
            self._discard()
            raise IntegrityError(
                f"{redact(url)}: the server sent an empty file", fix=f"try a mirror ({MIRROR_VARIABLE})"
            )
        if total is not None and received < total:
            raise NetworkError(f"the transfer ended after {received} of {total} bytes")
        return received

    def _sync(self, descriptor: int) -> None:
        """Flush a file without a known hash; with one, the next use notices what a crash cut off."""
        if self.sha256 is None:
            os.fsync(descriptor)

    def _checkpoint(self, out: FileIO, partial: _Partial, received: int) -> None:
        """Sync the received bytes, so that they count without a known hash."""
        if self.sha256 is None:
            os.fsync(out.fileno())
            replace(partial, done=received).write(self.record)

    def _land(self, url: str, digest: str, size: int, *, resumed: bool) -> Fetched:
        if self.sha256 not in (None, digest):
            self._discard()
            if resumed:
                raise _StartOver("the resumed file has another hash than expected")
            raise IntegrityError(
                f"{redact(url)}: expected sha256 {self.sha256}, found {digest}; nothing was kept",
                fix=f"try another mirror ({MIRROR_VARIABLE}); if every network gives this hash, the file "
                "was replaced at its source: do not use it before its publisher explains why",
            )
        with disk_errors(self.into.parent, None):
            self.part.replace(self.into)
            self._discard()
            if self.sha256 is None:
                sync_folder(self.into.parent)
        return Fetched(self.into, digest, size)

    def _discard(self) -> None:
        self.record.unlink(missing_ok=True)
        self.part.unlink(missing_ok=True)
        remove_interrupted(self.record)


@contextlib.contextmanager
def _hashing(digest: hashlib._Hash) -> Iterator[Callable[[bytes], None]]:
    """Feed the digest in its own thread, so that the network does not wait for it."""
    blocks: queue.Queue[bytes | None] = queue.Queue(8)

    def work() -> None:
        while (block := blocks.get()) is not None:
            digest.update(block)

    worker = threading.Thread(target=work, name="sha256", daemon=True)
    worker.start()
    try:
        yield blocks.put
    finally:
        blocks.put(None)
        worker.join()
