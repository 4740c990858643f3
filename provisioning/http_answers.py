"""Speak HTTP for a download: open a session that stays encrypted, wait for a server with `Patience`, and say
what an answer or an error of it means.

A `NetworkError` may pass with another attempt; every other error names its fix."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urljoin, urlsplit

from provisioning.addresses import MIRROR_VARIABLE, redact
from provisioning.base.errors import EnvironmentLacking, IntegrityError, UpstreamError, causes
from provisioning.base.proxies import dead_proxy

if TYPE_CHECKING:
    import logging

    import requests
    from urllib3.util import Retry


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
