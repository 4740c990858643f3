"""Fetch one file over HTTP: resumed, retried, verified while it streams.

A transfer writes `<into>.part`, and renames it to `into` when size and hash are right. Whatever ends it (an
error, a kill, a full disk), the next call continues from there, or starts over where no hash says whether the
bytes are the right ones.

Below it: which address to ask, how one may be shown, and the meaning of a server's answers.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from provisioning.base import units
from provisioning.base.errors import EnvironmentLacking, IntegrityError, UpstreamError, UsageError, causes
from provisioning.base.files import ANOTHER_STORE, digest_of, disk_errors, hash_file, open_regular, write_all
from provisioning.base.progress import SILENT, Progress
from provisioning.base.proxies import dead_proxy

if TYPE_CHECKING:
    import logging

    import requests
    from urllib3.util import Retry

MIRROR_VARIABLE = "QNN_CI_MIRROR"
"""A base URL that takes the place of scheme and host of every archive's URL. The path stays, after
the path of the base: with `https://mirror.example/sdk`, `https://vendor.example/a/b.zip` is fetched from
`https://mirror.example/sdk/a/b.zip`, and from nowhere else."""


BLOCK = 1 << 20

RETRIED = frozenset({408, 429, 500, 502, 503, 504})

BUNDLE_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT")
"""Variables that may name a custom CA bundle; the first that is set counts."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a server before it counts as failed."""

    attempts: int = 6
    """Tries in a row without progress, at each address."""
    first_delay: float = 0.5
    longest_delay: float = 30.0
    longest_retry_after: float = 120.0
    connect_timeout: float = 15.0
    stall_timeout: float = 60.0
    """Longest time in which nothing arrives, or less than `least_speed`."""
    least_speed: int = 1000
    """The speed, in bytes a second, below which a transfer counts as stalled."""
    sleep: Callable[[float], None] = time.sleep

    def retry(self) -> Retry:
        """urllib3's counter of attempts: the first waits for nothing, later ones longer and longer."""
        from urllib3.util import Retry

        return Retry(
            self.attempts - 1,
            backoff_factor=self.first_delay,
            backoff_max=self.longest_delay,
            backoff_jitter=self.first_delay,
        )


DEFAULT_PATIENCE = Patience()


class NetworkError(Exception):
    """The network failed in a way that another attempt may not. Its text holds no secret."""

    def __init__(self, reason: str, *, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait


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
            total = self._agree(response, url, offset)
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

    def _agree(self, response: requests.Response, url: str, offset: int) -> int | None:
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


# Addresses and answers


def mirror_of(url: str) -> str:
    """The address to ask instead of `url`, when QNN_CI_MIRROR says so."""
    base = os.environ.get(MIRROR_VARIABLE, "").strip()
    if not base:
        return url
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"{MIRROR_VARIABLE}: expected a base URL, found {redact(base)!r}",
            fix=f"export {MIRROR_VARIABLE}=https://HOST/PREFIX, or unset it",
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


def redact_text(text: str) -> str:
    """A program's output as it may be shown: every address in it redacted."""
    return re.sub(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)]+", lambda match: redact(match.group()), text)


def file_name(url: str) -> str:
    """The last piece of the path, safe to show and to use as a file name."""
    last = urlsplit(url).path.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._+-]", "_", last).lstrip(".")[-150:] or "download"


def parse_content_range(value: str | None) -> tuple[int, int | None] | None:
    """The first byte and the file's size of `bytes 5-9/10` or `bytes 5-9/*`; None for anything else."""
    match = re.fullmatch(r"\s*bytes\s+(\d{1,18})-(\d{1,18})/(\d{1,18}|\*)\s*", value or "", re.ASCII)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    total = None if match[3] == "*" else int(match[3])
    return (first, total) if first <= last and (total is None or last < total) else None


def retry_after(value: str | None) -> float:
    """Seconds to wait, from a number or an HTTP date; 0 where it says nothing that can be read."""
    from urllib3.exceptions import InvalidHeader
    from urllib3.util import Retry

    try:
        return Retry().parse_retry_after(value or "0")
    except (InvalidHeader, ValueError, OverflowError):
        return 0.0


def open_session() -> requests.Session:
    import logging

    import requests

    from provisioning.base.slow_headers import Adapter

    session = requests.Session()
    session.mount("http://", Adapter())
    session.mount("https://", Adapter())
    session.headers["User-Agent"] = f"qnn-ci (python-requests/{requests.__version__})"
    session.max_redirects = 10
    session.hooks["response"].append(_stay_encrypted)
    logging.getLogger("urllib3.connectionpool").addFilter(_remove_queries)
    for variable in BUNDLE_VARIABLES:
        if bundle := os.environ.get(variable):
            if not Path(bundle).exists():
                raise EnvironmentLacking(
                    f"{variable}: there is no CA bundle at {bundle}",
                    fix=f"correct or unset {variable}",
                )
            session.verify = bundle
            break
    return session


def _stay_encrypted(response: requests.Response, **_: object) -> None:
    """Refuse a redirect from https to http, and one that leaves the network."""
    target = urljoin(response.url, response.headers.get("Location", ""))
    schemes = ("https:",) if response.url.startswith("https:") else ("https:", "http:")
    if response.is_redirect and not target.startswith(schemes):
        response.close()
        where = "an address without TLS" if target.startswith("http:") else "what is no address of a server"
        raise UpstreamError(
            f"{redact(response.url)}: redirects to {where} ({redact(target)})",
            fix=f"name a mirror in {MIRROR_VARIABLE}",
        )


def _remove_queries(record: logging.LogRecord) -> bool:
    """Remove the queries of addresses from a log record: signed addresses carry their secret there, and
    urllib3 logs whole paths at DEBUG."""
    if isinstance(record.args, tuple):
        record.args = tuple(a.partition("?")[0] if isinstance(a, str) else a for a in record.args)
    return True


def whole_number(value: str | None) -> int | None:
    return int(value) if value is not None and re.fullmatch(r"\d{1,18}", value.strip(), re.ASCII) else None


def refuse(response: requests.Response, url: str) -> NoReturn:
    """Raise NetworkError if another attempt may help, else an error with its fix."""
    status = response.status_code
    reason = f"the server answered {status} {response.reason or ''}".rstrip()
    if status in RETRIED:
        raise NetworkError(reason, wait=retry_after(response.headers.get("Retry-After")))
    address = redact(url)
    if response.history:
        address += f" (redirected to {urlsplit(response.url).hostname})"
    fixes = {
        401: "the address needs credentials: put them in ~/.netrc",
        403: "this server refuses some networks: try another one, name a mirror in "
        f"{MIRROR_VARIABLE}, or download the file in a browser, unpack it, and point QNN_SDK_ROOT "
        "(ANDROID_NDK_ROOT, HEXAGON_SDK_ROOT) at it",
        404: f"the file has moved: name a mirror in {MIRROR_VARIABLE}, or correct the manifest",
        407: "the proxy needs credentials: put them in HTTPS_PROXY",
    }
    raise UpstreamError(
        f"{address}: {reason}",
        fix=fixes.get(status, f"try another mirror ({MIRROR_VARIABLE}) or try again later"),
    )


def refuse_page(response: requests.Response, url: str) -> None:
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml"):
        raise IntegrityError(
            f"{redact(url)}: the server sent a web page instead of the file",
            fix="open the address in a browser to see what it says (a sign-in, a licence, an error)",
        )


def describe_error(error: BaseException, patience: Patience) -> str:
    """The error in words, without the URL that libraries put into theirs."""
    import requests
    import urllib3

    if isinstance(error, requests.exceptions.ConnectTimeout):
        return f"no connection within {patience.connect_timeout:g} s"
    for inner in causes(error):
        if isinstance(inner, (requests.exceptions.ProxyError, urllib3.exceptions.ProxyError)):
            name = dead_proxy(str(error)) or "HTTPS_PROXY"
            return f"the proxy that {name} names does not answer: correct it, or unset {name}"
        if isinstance(inner, (urllib3.exceptions.ReadTimeoutError, requests.exceptions.ReadTimeout)):
            return f"nothing arrived for {patience.stall_timeout:g} s"
        if isinstance(inner, urllib3.exceptions.IncompleteRead):
            return "the transfer ended early"
        if isinstance(inner, urllib3.exceptions.NameResolutionError):
            return "the host name could not be resolved"
        if isinstance(inner, OSError) and inner.errno and inner.strerror:
            return inner.strerror.lower()
    return f"the connection failed ({type(error).__name__})"
