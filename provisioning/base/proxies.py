"""Find which proxy cannot be reached, by its variable.

This module uses the standard library only: noxfile.py imports it before any environment exists."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
NO_PROXY = re.compile(r"ProxyError|Cannot connect to proxy|tunnel error", re.IGNORECASE)


def dead_proxy(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the variable whose proxy pip, uv or a library says that it could not reach; else empty."""
    proxies = {name: urlsplit(value).hostname for name in PROXIES if (value := environ.get(name))}
    named = [name for name, host in proxies.items() if host and f"host='{host}'" in text]
    return next(iter(named or (proxies if NO_PROXY.search(text) else ())), "")
