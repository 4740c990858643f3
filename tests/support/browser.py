"""A page in a real browser: a headless Chromium, which a script asks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_server import FileServer, Reply
from tests.support.needs import program

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
NEEDS = pytest.mark.needs("chromium")


def browse(
    questions: str, files: Mapping[str, str | bytes], folder: Path, *flags: str, milliseconds: int = 20000
) -> dict[str, Any]:
    """What a page of questions becomes, as JSON, with what the browser wrote on the console and requested. It
    asks about the files in frames."""
    every = {**files, "": questions}
    paths = {
        f"/{name}": Reply(
            body=text.encode() if isinstance(text, str) else text,
            headers={"Content-Type": KINDS.get(Path(name).suffix or ".html", "text/plain")},
        )
        for name, text in every.items()
    }
    own = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1400,900"]
    own += ["--enable-logging=stderr", f"--virtual-time-budget={milliseconds}"]
    own += [f"--user-data-dir={folder}/home", *flags]
    with FileServer(b"", paths=paths) as server:
        done = subprocess.run(
            [program("chromium"), *own, "--dump-dom", server.url("/")],
            capture_output=True,
            text=True,
            timeout=250,
            check=True,
        )
        requested = {request.path for request in server.requests}
    body = done.stdout.partition("<body>")[2].partition("</body>")[0]
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return {**json.loads(unescape(body)), "console": console, "requested": requested}
