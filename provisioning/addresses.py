"""Addresses to fetch from: which one to ask instead (QNN_CI_MIRROR), and how one may be shown, without its
secrets."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit, urlunsplit

from provisioning.base.errors import UsageError

MIRROR_VARIABLE = "QNN_CI_MIRROR"
"""A base URL that takes the place of scheme and host of every archive's URL. The path stays, after
the path of the base: with `https://mirror.example/sdk`, `https://vendor.example/a/b.zip` is fetched from
`https://mirror.example/sdk/a/b.zip`, and from nowhere else."""


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
