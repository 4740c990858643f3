"""A server that speaks Bazel's HTTP cache protocol as strictly as bazel-remote, and one that misbehaves."""

from __future__ import annotations

import hashlib
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ci.sharing.remote import files_of

SLOW = 60.0
"""Seconds that a slow server takes for an answer; one that trickles takes more."""
LATE = 0.7
"""Seconds that a late one takes for each answer."""


@dataclass
class CacheServer:
    """`fault`: slow, late, trickle, trickling-head, full, cut, endless, error, other-bytes, or `interrupt N`
    (us, at the Nth upload)."""

    url: str = ""
    token: str = ""
    fault: str = ""
    kept: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def refusal(self, path: str, content: bytes) -> int:
        kind, _, name = path.strip("/").partition("/")
        if kind not in ("ac", "cas") or not re.fullmatch("[0-9a-f]{64}", name):
            return 400
        if kind == "cas" and hashlib.sha256(content).hexdigest() != name:
            return 400
        named = files_of(content) if kind == "ac" else []
        lacking = any(f"/cas/{digest}" not in self.kept for _, digest, _ in named)
        return 400 if kind == "ac" and (not named or lacking) else 0


@contextmanager
def serving() -> Iterator[CacheServer]:
    known = CacheServer()
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def reply(self, code: int, content: bytes = b"") -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def do_GET(self) -> None:
            known.requests.append(f"{self.command} {self.path}")
            content = known.kept.get(self.path)
            if known.fault == "error":
                return self.reply(500)
            if content is None:
                return self.reply(404)
            if known.fault in ("slow", "late"):
                closing.wait(SLOW if known.fault == "slow" else LATE)
            if known.fault.startswith("trickl"):
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode()
                at_once = head if known.fault == "trickle" else b""
                self.wfile.write(at_once)
                for byte in (head + content)[len(at_once) :]:
                    self.wfile.write(bytes([byte]))
                    if closing.wait(0.05):
                        break
                self.close_connection = True
                return None
            if known.fault == "other-bytes" and self.path.startswith("/cas/"):
                content = content.replace(b"1", b"2") if b"1" in content else content + b"x"
            if known.fault in ("cut", "endless"):
                self.send_response(200)
                length = 1 << 40 if known.fault == "endless" else len(content) + 9
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(content)
                while known.fault == "endless":
                    self.wfile.write(b"x" * (1 << 16))
                self.close_connection = True
                return None
            return self.reply(200, content)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            known.requests.append(f"PUT {self.path}")
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if known.token and self.headers.get("Authorization") != f"Bearer {known.token}":
                return self.reply(401)
            if known.fault == "full":
                return self.reply(507)
            uploads = sum(request.startswith("PUT ") for request in known.requests)
            if known.fault == f"interrupt {uploads}":
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                self.close_connection = True
                return None
            if code := known.refusal(self.path, content):
                return self.reply(code)
            known.kept[self.path] = content
            return self.reply(200)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    known.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True)
    thread.start()
    try:
        yield known
    finally:
        known.fault = ""
        closing.set()
        server.shutdown()
        server.server_close()
