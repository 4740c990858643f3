"""GitHub's list of caches, over HTTP, of what the stand-ins for its cache have saved."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit


def saved_caches(cache: Path, key: str, ref: str) -> list[dict[str, str]]:
    """Those of a ref whose key begins so, the newest first."""
    files = sorted(cache.glob("*/*/*"), key=lambda file: file.stat().st_mtime, reverse=True)
    rows = [{"key": unquote(file.name), "ref": unquote(file.parents[1].name)} for file in files]
    return [row for row in rows if row["key"].startswith(key) and ref in ("", row["ref"])]


@contextmanager
def listing(cache: Path) -> Iterator[str]:
    """The address of an API that lists these caches."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            place = urlsplit(self.path)
            known = place.path.startswith("/repos/") and place.path.endswith("/actions/caches")
            asked = {name: values[0] for name, values in parse_qs(place.query).items()}
            rows = saved_caches(cache, asked.get("key", ""), asked.get("ref", "")) if known else []
            body = json.dumps({"total_count": len(rows), "actions_caches": rows}).encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
