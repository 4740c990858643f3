"""Fetch one file over HTTP: resumed, retried, verified while it streams, and once for all processes.

A transfer writes `<into>.part`, with `<into>.part.json` beside it to say what the bytes belong to, and
renames it to `into` when size and hash fit. Whatever ends it (a fault, a kill, a full disk), the next call
goes on from there or starts over; it never trusts bytes it cannot account for.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import queue
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urljoin, urlsplit, urlunsplit

from provisioning.errors import EnvironmentLacking, IntegrityError, ToolkitError, UpstreamError, UsageError
from provisioning.progress import Silent

if TYPE_CHECKING:
    import requests

MIRROR_VARIABLE = "QNN_CI_MIRROR"
"""A base URL that takes the place of scheme and host of every archive and Maven URL. The path stays, after
the path of the base: with `https://mirror.example/sdk`, `https://vendor.example/a/b.zip` is fetched from
`https://mirror.example/sdk/a/b.zip`, and nothing else is asked."""

BLOCK = 1 << 20
CHECKPOINT = 64 << 20
"""Without a known hash, at most this much is fetched again after a kill."""

RETRIED = frozenset({408, 429, 500, 502, 503, 504})
ZIPS = (".zip", ".whl", ".aar", ".jar")
ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
BUNDLE_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT")
"""Where a custom CA bundle may be named; the first that is set counts."""


class Progress(Protocol):
    """What a long piece of work tells. One object may serve several threads, each with its own work."""

    def start(self, name: str, total: int | None, done: int = 0) -> None: ...

    def advance(self, count: int) -> None: ...

    def note(self, text: str) -> None: ...

    def finish(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Fetched:
    path: Path
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server is given before it counts as failed."""

    attempts: int = 6
    """In a row without progress, for each address."""
    first_delay: float = 0.5
    longest_delay: float = 30.0
    longest_retry_after: float = 120.0
    connect_timeout: float = 15.0
    stall_timeout: float = 60.0
    """Longest time in which nothing arrives."""
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random

    def delay(self, failures: int) -> float:
        """Exponential, and spread between half and full so that many clients do not return as one."""
        full = min(self.longest_delay, self.first_delay * 2.0 ** min(failures - 1, 30))
        return full * (0.5 + self.jitter() / 2)


PATIENCE = Patience()


def fetch(
    url: str,
    into: Path,
    *,
    mirrors: Sequence[str] = (),
    sha256: str | None,
    size: int | None,
    progress: Progress | None = None,
    name: str | None = None,
    patience: Patience = PATIENCE,
) -> Fetched:
    """Put the file at `url` (or the first mirror that gives it) at `into`, whole and verified.

    A file that is already there is used again when its hash fits. Without `sha256` the hash found is
    returned for the caller to record. Raises UpstreamError or IntegrityError for the network's faults and
    EnvironmentLacking for the disk's.
    """
    transfer = _Transfer(into, sha256, size, progress or Silent(), name or file_name(url), patience)
    with alone(into, transfer.progress):
        return transfer.reuse() or transfer.first_of((url, *mirrors))


def supplied(
    into: Path,
    supply: Callable[[], AbstractContextManager[Path]],
    *,
    sha256: str | None,
    size: int | None,
    progress: Progress | None = None,
    name: str,
) -> Fetched:
    """Like `fetch`, with the bytes copied from the file that `supply` gives.

    `supply` runs only when the file is needed, and while its lock is held.
    """
    transfer = _Transfer(into, sha256, size, progress or Silent(), name, PATIENCE)
    with alone(into, transfer.progress):
        found = transfer.reuse()
        if found is None:
            with supply() as local:
                found = transfer.copy(local)
        return found


def finished(into: Path, *, sha256: str | None, size: int | None, name: str) -> Fetched | None:
    """The file at `into` if an earlier call left it there and it is still whole."""
    return _Transfer(into, sha256, size, Silent(), name, PATIENCE).reuse(mend=False)


@contextlib.contextmanager
def alone(into: Path, progress: Progress | None = None) -> Iterator[None]:
    """Make `into`'s folder and hold `into`'s lock; other processes wait here, then find it finished."""
    from filelock import FileLock, Timeout

    with _disk_faults(into.parent, None):
        into.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(into.with_name(into.name + ".lock"))
        try:
            lock.acquire(timeout=1)
        except Timeout:
            if progress is not None:
                progress.note(f"{into.name}: waiting for another process that fetches it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def mirrored(url: str, environ: Mapping[str, str] = os.environ) -> str:
    """The address to ask instead of `url`, when QNN_CI_MIRROR says so."""
    base = environ.get(MIRROR_VARIABLE, "").strip()
    if not base:
        return url
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"{MIRROR_VARIABLE}: expected a base URL, found {redact(base)!r}",
            remedy=f"export {MIRROR_VARIABLE}=https://HOST/PREFIX, or unset it",
        )
    original = urlsplit(url)
    path = parts.path.rstrip("/") + original.path
    return urlunsplit((parts.scheme, parts.netloc, path, original.query, ""))


def redact(url: str) -> str:
    """The URL as it may be shown: without user, password, the values of its query, or fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(an address that cannot be parsed)"
    host = parts.netloc.rpartition("@")[2]
    netloc = f"***@{host}" if "@" in parts.netloc else host
    query = "&".join(
        f"{pair.partition('=')[0]}=***" if "=" in pair else "***" for pair in parts.query.split("&") if pair
    )
    return urlunsplit((parts.scheme, netloc, parts.path, query, ""))


@dataclass(frozen=True, slots=True)
class _ContentRange:
    start: int | None
    """None when the range was not satisfiable."""
    total: int | None


def parse_content_range(value: str | None) -> _ContentRange | None:
    """`bytes 5-9/10`, `bytes 5-9/*` or `bytes */10`; None for anything else."""
    match = re.fullmatch(r"\s*bytes\s+(?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)\s*", value or "", re.ASCII)
    if match is None:
        return None
    first, last, whole = match.groups()
    total = None if whole == "*" else int(whole)
    if first is None:
        return None if total is None else _ContentRange(None, total)
    if int(last) < int(first) or (total is not None and int(last) >= total):
        return None
    return _ContentRange(int(first), total)


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait, from a number or an HTTP date."""
    if not value:
        return None
    if re.fullmatch(r"\d{1,9}", value.strip(), re.ASCII):
        return float(value)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class _Partial:
    """What the part file's bytes belong to."""

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
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(json.dumps(asdict(self)), encoding="utf-8")
        fresh.replace(path)


class NotThere(UpstreamError):
    """The server answered that it has no such file."""


class _Fault(Exception):
    """A network fault that another attempt may mend. Its text holds no secret."""

    def __init__(self, reason: str, *, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait


class _StartOver(Exception):
    """What is in the part file does not go with what the server has now."""


class _Transfer:
    """One file on its way; holds the lock's promise that nobody else writes the part."""

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

    def reuse(self, *, mend: bool = True) -> Fetched | None:
        """The finished file, if it is there and is what the manifest names; another is removed."""
        if not self.into.is_file():
            return None
        with _disk_faults(self.into.parent, None):
            size = self.into.stat().st_size
            if self.size in (None, size):
                found = _hash_file(self.into).hexdigest()
                if self.sha256 in (None, found):
                    if mend:
                        self._discard()  # what a kill between the rename and its tidying left
                    return Fetched(self.into, found, size)
            if mend:
                self.progress.note(f"{self.name}: the copy in {self.into.parent} is damaged; fetching again")
                self.into.unlink()
        return None

    def copy(self, local: Path) -> Fetched:
        """A file of this machine through the same checks as one of the network."""
        size = local.stat().st_size
        if self.size not in (None, size):
            raise IntegrityError(
                f"{local}: expected {self.size} bytes, found {size}",
                remedy=f"remove {local}, it is another file",
            )
        digest = hashlib.sha256()
        self._discard()
        with local.open("rb") as stream, _disk_faults(self.into.parent, size), self.part.open("wb") as out:
            while block := stream.read(BLOCK):
                digest.update(block)
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
        return self._land(str(local), digest.hexdigest(), size, resumed=False)

    def first_of(self, urls: Sequence[str]) -> Fetched:
        failures: list[UpstreamError] = []
        with _session() as session:
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
            remedy=worst.remedy,
        )

    def _from(self, session: requests.Session, url: str) -> Fetched:
        """Attempt after attempt at one address, as long as there is progress or patience."""
        failures = 0
        furthest = 0
        restarts = 0
        while True:
            try:
                return self._attempt(session, url)
            except _StartOver as error:
                self._discard()
                restarts += 1
                if restarts > 2:
                    raise UpstreamError(
                        f"{redact(url)} changes while it is fetched ({error})", remedy="try again later"
                    ) from None
                self.progress.note(f"{self.name}: {error}; starting over")
            except _Fault as fault:
                done = self.part.stat().st_size if self.part.is_file() else 0
                failures = 1 if done > furthest else failures + 1
                furthest = max(furthest, done)
                if failures >= self.patience.attempts:
                    raise UpstreamError(
                        f"{redact(url)}: {fault.reason} ({failures} attempts without progress)",
                        remedy="check the network and the proxy variables, then run the same command again: "
                        "it goes on from where it stopped",
                    ) from None
                wait = self.patience.delay(failures)
                if fault.wait is not None:
                    wait = max(wait, min(fault.wait, self.patience.longest_retry_after))
                self.progress.note(f"{self.name}: {fault.reason}; again in {wait:.1f} s")
                self.patience.sleep(wait)

    def _attempt(self, session: requests.Session, url: str) -> Fetched:
        partial = self._resumable(url)
        offset = partial.done if partial else 0
        if partial and offset == (self.size or partial.total):
            # Killed between the last byte and the rename.
            with _disk_faults(self.into.parent, None):
                return self._land(url, _hash_file(self.part).hexdigest(), offset, resumed=True)
        headers = {"Accept-Encoding": "identity", "Accept": "*/*"}
        if partial:
            headers["Range"] = f"bytes={offset}-"
            if partial.validator and partial.url == redact(url):
                headers["If-Range"] = partial.validator
        with self._open(session, url, headers) as response:
            offset, total = self._agree(response, url, partial)
            with _disk_faults(self.into.parent, None if total is None else total - offset):
                self._check_space(offset, total)
            digest = hashlib.sha256()
            if offset:
                digest = _hash_file(self.part, offset)
            partial = _Partial(redact(url), _validator(response.headers), total, offset)
            received = self._stream(response, url, partial, digest, total)
        return self._land(url, digest.hexdigest(), received, resumed=offset > 0)

    def _resumable(self, url: str) -> _Partial | None:
        """The part that may be continued, and from where: the bytes that can be accounted for."""
        partial = _Partial.read(self.record)
        try:
            length = self.part.stat().st_size
        except FileNotFoundError:
            return None
        with _disk_faults(self.into.parent, None):
            if partial is not None and self.sha256 is None:
                # Without a known hash nothing would find a wrong byte, so only synced bytes count.
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
        """The response, with every fault of getting or reading it turned into ours."""
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
                    remedy="export REQUESTS_CA_BUNDLE=FILE with the CA certificates of your network",
                ) from None
            raise _Fault("the TLS connection failed") from None
        except (
            requests.exceptions.InvalidURL,
            requests.exceptions.InvalidSchema,
            requests.exceptions.MissingSchema,
        ):
            raise UsageError(
                f"not an address to fetch from: {redact(url)}", remedy="use an https:// address"
            ) from None
        except requests.exceptions.TooManyRedirects:
            raise UpstreamError(f"{redact(url)}: redirected in circles", remedy="try again later") from None
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
            raise _Fault(_reason(error, self.patience)) from None

    def _agree(
        self, response: requests.Response, url: str, partial: _Partial | None
    ) -> tuple[int, int | None]:
        """Where this response's bytes begin and how many there are in all; raises when it is not the file."""
        status = response.status_code
        offset = 0
        length = _number(response.headers.get("Content-Length"))
        if status == 206 and partial:
            found = parse_content_range(response.headers.get("Content-Range"))
            if found is None or found.start != partial.done:
                raise _StartOver("the server sent another range than the one asked for")
            fresh = _validator(response.headers)
            if partial.url == redact(url) and fresh and partial.validator and fresh != partial.validator:
                raise _StartOver("the file changed on the server")
            if None not in (found.total, partial.total) and found.total != partial.total:
                raise _StartOver("the file changed on the server")
            offset = partial.done
            total = found.total
            if total is None and length is not None:
                total = offset + length
        elif status == 200:
            total = length
        elif status == 416 and partial:
            raise _StartOver("the server has no more bytes after those already here")
        else:
            self._refuse(response, url)
        if status == 200 and not _zip_expected(url, self.name):
            _refuse_page(response, url)
        if self.size is not None and total is not None and total != self.size:
            if status == 200:
                _refuse_page(response, url)
            raise IntegrityError(
                f"{redact(url)}: expected {self.size} bytes, the server has {total}"
                + _excerpt(response, total),
                remedy="the file at this address is not the one the manifest names: try another mirror "
                f"({MIRROR_VARIABLE}), or report it",
            )
        return offset, total if total is not None else self.size

    def _refuse(self, response: requests.Response, url: str) -> None:
        status = response.status_code
        reason = f"the server answered {status} {response.reason or ''}".rstrip()
        if status in RETRIED:
            raise _Fault(reason, wait=parse_retry_after(response.headers.get("Retry-After"), time.time()))
        shown = redact(url)
        if response.history:
            shown += f" (redirected to {urlsplit(response.url).hostname})"
        remedies = {
            401: "the address needs credentials: put them in ~/.netrc",
            403: "this server refuses some networks: try another one, name a mirror in "
            f"{MIRROR_VARIABLE}, or download the file in a browser, unpack it, and point QNN_SDK_ROOT "
            "(ANDROID_NDK_ROOT, HEXAGON_SDK_ROOT) at it",
            404: f"the file has moved: name a mirror in {MIRROR_VARIABLE}, or correct the manifest",
            407: "the proxy needs credentials: put them in HTTPS_PROXY",
        }
        raise (NotThere if status in (404, 410) else UpstreamError)(
            f"{shown}: {reason}",
            remedy=remedies.get(status, f"try another mirror ({MIRROR_VARIABLE}) or try again later"),
        )

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
        """Write and hash what arrives; returns the size of the whole. The part stays when this fails."""
        received = synced = partial.done
        folder = self.into.parent
        self.progress.start(self.name, total, received)
        with _disk_faults(folder, None if total is None else total - received):
            # Unbuffered, so that a kill loses nothing that was counted.
            out = self.part.open("r+b" if received else "wb", buffering=0)
        with out, _hashing(digest) as hashed:
            try:
                with _disk_faults(folder, None):
                    out.seek(received)
                    partial.write(self.record)
                for block in _blocks(response):
                    if received == 0:
                        _check_start(block, response, url, self.name)
                    if total is not None and received + len(block) > total:
                        raise IntegrityError(
                            f"{redact(url)}: more bytes than the expected {total} arrived; nothing was kept",
                            remedy="this address has another file than the one named: try a mirror "
                            f"({MIRROR_VARIABLE})",
                        )
                    with _disk_faults(folder, None if total is None else total - received):
                        _write_all(out, block)
                        received += len(block)
                        if received - synced >= CHECKPOINT:
                            self._checkpoint(out, partial, received)
                            synced = received
                    hashed(block)
                    self.progress.advance(len(block))
                with _disk_faults(folder, None):
                    os.fsync(out.fileno())
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
                f"{redact(url)}: the server sent an empty file", remedy=f"try a mirror ({MIRROR_VARIABLE})"
            )
        if total is not None and received < total:
            raise _Fault(f"the transfer ended after {received} of {total} bytes")
        return received

    def _checkpoint(self, out: FileIO, partial: _Partial, received: int) -> None:
        """Make what was received count even without a known hash."""
        if self.sha256 is None:
            os.fsync(out.fileno())
            replace(partial, done=received).write(self.record)

    def _land(self, url: str, found: str, size: int, *, resumed: bool) -> Fetched:
        if self.sha256 not in (None, found):
            self._discard()
            if resumed:
                raise _StartOver("the resumed file has another hash than expected")
            raise IntegrityError(
                f"{redact(url)}: expected sha256 {self.sha256}, found {found}; nothing was kept",
                remedy=f"try another mirror ({MIRROR_VARIABLE}); if every network gives this hash, the file "
                "was replaced at its source: do not use it before its publisher explains why",
            )
        with _disk_faults(self.into.parent, None):
            self.part.replace(self.into)
            self.record.unlink(missing_ok=True)
            _sync_folder(self.into.parent)
        return Fetched(self.into, found, size)

    def _discard(self) -> None:
        self.record.unlink(missing_ok=True)
        self.part.unlink(missing_ok=True)


@contextlib.contextmanager
def _disk_faults(folder: Path, needed: int | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, (ConnectionError, TimeoutError)):
            raise
        raise _disk_error(error, folder, needed) from error


def _disk_error(error: OSError, folder: Path, needed: int | None) -> ToolkitError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        try:
            free = f"{shutil.disk_usage(folder).free:,} bytes free"
        except OSError:
            free = "free space unknown"
        need = f"{needed:,} bytes more needed" if needed else "more needed"
        why = {errno.EDQUOT: "the disk quota is used up", errno.EFBIG: "files may not grow this large"}.get(
            error.errno, "the disk is full"
        )
        return EnvironmentLacking(
            f"{folder}: {why}: {need}, {free}",
            remedy="free some space, or choose another disk with QNN_CI_STORE=FOLDER, and run the same "
            "command again: what was fetched is kept",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return EnvironmentLacking(
            f"{folder}: cannot be written to ({error.strerror})",
            remedy="choose a folder of your own with QNN_CI_STORE=FOLDER, or mend its permissions",
        )
    return EnvironmentLacking(
        f"{folder}: {error.strerror or error}", remedy="check the folder, or choose another with QNN_CI_STORE"
    )


def _session() -> requests.Session:
    import requests

    session = requests.Session()
    session.headers["User-Agent"] = f"qnn-ci (python-requests/{requests.__version__})"
    session.max_redirects = 10
    session.hooks["response"].append(_stay_encrypted)
    logging.getLogger("urllib3.connectionpool").addFilter(_without_queries)
    for variable in BUNDLE_VARIABLES:
        if bundle := os.environ.get(variable):
            if not Path(bundle).exists():
                raise EnvironmentLacking(
                    f"{variable}: there is no CA bundle at {bundle}",
                    remedy=f"correct or unset {variable}",
                )
            session.verify = bundle
            break
    return session


def _stay_encrypted(response: requests.Response, **_: object) -> None:
    """Refuse a redirect that gives up TLS."""
    target = urljoin(response.url, response.headers.get("Location", ""))
    if response.is_redirect and response.url.startswith("https:") and not target.startswith("https:"):
        response.close()
        raise UpstreamError(
            f"{redact(response.url)}: redirects to an address without TLS ({redact(target)})",
            remedy=f"name a mirror in {MIRROR_VARIABLE}",
        )


def _without_queries(record: logging.LogRecord) -> bool:
    """Signed addresses carry their secret in the query, and urllib3 logs whole paths at DEBUG."""
    if isinstance(record.args, tuple):
        record.args = tuple(a.partition("?")[0] if isinstance(a, str) else a for a in record.args)
    return True


def _blocks(response: requests.Response) -> Iterator[bytes]:
    """The body as it arrives, never decoded: sizes and hashes speak of the bytes on the wire."""
    while block := response.raw.read1(BLOCK, decode_content=False):
        yield block


def _validator(headers: Mapping[str, str]) -> str:
    """What If-Range may carry: a strong ETag, else the date. Weak tags do not promise equal bytes."""
    etag = headers.get("ETag", "").strip()
    if re.fullmatch(r'"[\x21\x23-\x7e]*"', etag):
        return etag
    return headers.get("Last-Modified", "").strip()


def _check_start(block: bytes, response: requests.Response, url: str, name: str) -> None:
    if not _zip_expected(url, name) or any(start.startswith(block[:4]) for start in ZIP_STARTS):
        return
    kind = "a web page" if _is_page(response) or block.lstrip()[:1] == b"<" else "something else"
    text = _printable(block)
    raise IntegrityError(
        f"{redact(url)}: expected a zip file, the server sent {kind}" + (f": {text}" if text else ""),
        remedy=f"open the address in a browser to see what it says; another network or a mirror "
        f"({MIRROR_VARIABLE}) may have the file",
    )


def _is_page(response: requests.Response) -> bool:
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return kind in ("text/html", "application/xhtml+xml")


def _refuse_page(response: requests.Response, url: str) -> None:
    if _is_page(response) and not urlsplit(url).path.endswith((".html", ".htm")):
        raise IntegrityError(
            f"{redact(url)}: the server sent a web page instead of the file",
            remedy="open the address in a browser to see what it says (a sign-in, a licence, an error)",
        )


def _excerpt(response: requests.Response, total: int) -> str:
    """What a short textual answer says: servers explain themselves in bodies with status 200."""
    import requests
    import urllib3

    if total > 4096:
        return ""
    try:
        text = _printable(response.raw.read(512, decode_content=False))
    except (urllib3.exceptions.HTTPError, requests.exceptions.RequestException, OSError):
        return ""
    return f": {text}" if text else ""


def _printable(block: bytes) -> str:
    text = block[:200].decode("ascii", errors="ignore")
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) > len(block[:200]) // 2 else ""


def _zip_expected(url: str, name: str) -> bool:
    return urlsplit(url).path.lower().endswith(ZIPS) or name.lower().endswith(ZIPS)


def file_name(url: str) -> str:
    """The last piece of the path, safe to show and to use as a file name."""
    last = urlsplit(url).path.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._+-]", "_", last).lstrip(".")[-150:] or "download"


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and re.fullmatch(r"\d{1,18}", value.strip(), re.ASCII) else None


def _reason(error: BaseException, patience: Patience) -> str:
    """The fault in words, without the URL that libraries put in theirs."""
    import requests
    import urllib3

    if isinstance(error, requests.exceptions.ConnectTimeout):
        return f"no connection within {patience.connect_timeout:g} s"
    for inner in _chain(error):
        if isinstance(inner, (requests.exceptions.ProxyError, urllib3.exceptions.ProxyError)):
            return "the proxy could not be used (see HTTPS_PROXY, HTTP_PROXY, NO_PROXY)"
        if isinstance(inner, (urllib3.exceptions.ReadTimeoutError, requests.exceptions.ReadTimeout)):
            return f"nothing arrived for {patience.stall_timeout:g} s"
        if isinstance(inner, urllib3.exceptions.IncompleteRead):
            return "the transfer ended early"
        if isinstance(inner, urllib3.exceptions.NameResolutionError):
            return "the host name could not be resolved"
        if isinstance(inner, OSError) and inner.errno and inner.strerror:
            return inner.strerror.lower()
    return f"the connection failed ({type(error).__name__})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and everything it came from or carries, once each."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [a for a in current.args if isinstance(a, BaseException)]
        waiting += [getattr(current, "reason", None)] if isinstance(current, Exception) else []
        waiting += [current.__cause__, current.__context__]


@contextlib.contextmanager
def _hashing(digest: hashlib._Hash) -> Iterator[Callable[[bytes], None]]:
    """Feed the digest from a thread of its own, so that the network does not wait for it."""
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


def _write_all(out: FileIO, block: bytes) -> None:
    """Unbuffered files may take less than they are given."""
    view = memoryview(block)
    while view:
        view = view[out.write(view) :]


def _hash_file(path: Path, length: int | None = None) -> hashlib._Hash:
    """SHA-256 of the first `length` bytes (all by default), in constant memory."""
    digest = hashlib.sha256()
    left = length if length is not None else path.stat().st_size
    with path.open("rb", buffering=0) as stream:
        while left > 0 and (block := stream.read(min(BLOCK, left))):
            digest.update(block)
            left -= len(block)
    return digest


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
