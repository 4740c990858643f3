"""A real HTTP server on the loopback interface that misbehaves as told, one request after another."""

from __future__ import annotations

import http.server
import re
import socket
import ssl
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Reply:
    """How to answer one request. By default: the server's body, ranges honoured."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent as they are, in place of what the server would send under these names."""
    body: bytes | None = None
    """Instead of the server's body; ranges do not apply to it."""
    ranges: bool = True
    cut: int | None = None
    """Stop after this many bytes of the body …"""
    reset: bool = False
    """… with a TCP reset instead of an orderly end …"""
    stall: bool = False
    """… or by saying nothing more, with the connection open."""
    pause: float = 0.0
    """Seconds between chunks of the body."""
    chunk: int = CHUNK
    drip: float = 0.0
    """Seconds between the bytes of a header that never ends."""
    chunked: bool = False
    """Transfer-Encoding: chunked, and so no Content-Length."""
    fresh_body: bytes | None = None
    """Becomes the server's body before this answer: the content changed."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    """With names in lower case."""


class FileServer:
    """Serves one body at every path. `replies` are used up in turn; after them every answer is `usual`.

    With `paths`, each path has its own reply and any other path is not found.
    """

    def __init__(
        self,
        body: bytes | Path,
        replies: Sequence[Reply] = (),
        *,
        usual: Reply | None = None,
        paths: Mapping[str, Reply] | None = None,
        certificate: Path | None = None,
    ) -> None:
        self.body = body
        self.usual = usual or Reply()
        self.paths = paths
        self.requests: list[Request] = []
        self.body_bytes = 0
        """How many bytes of bodies went out."""
        self._replies = list(replies)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        server = self

        class Handler(_Handler):
            owner = server

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.scheme = "http"
        if certificate is not None:
            self.scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # The handshake is left to the connection's own thread.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.002,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "/file.bin", *, host: str = "127.0.0.1", userinfo: str = "") -> str:
        return f"{self.scheme}://{userinfo}{host}:{self.port}{path}"

    def script(self, *replies: Reply) -> None:
        """Add answers to those not given yet."""
        with self._lock:
            self._replies.extend(replies)

    def __enter__(self) -> FileServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def next_reply(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
            if self._replies:
                reply = self._replies.pop(0)
            elif self.paths is not None:
                reply = self.paths.get(request.path.partition("?")[0], Reply(status=404, body=b"not here"))
            else:
                reply = self.usual
            if reply.fresh_body is not None:
                self.body = reply.fresh_body
            return reply

    def count(self, sent: int) -> None:
        with self._lock:
            self.body_bytes += sent

    def wait_for_closing(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def size(self) -> int:
        return len(self.body) if isinstance(self.body, bytes) else self.body.stat().st_size


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away are what these tests are about."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: FileServer

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.owner.next_reply(Request("GET", self.path, headers))
        body = reply.body if reply.body is not None else self.owner.body
        whole = len(body) if isinstance(body, bytes) else body.stat().st_size
        status, first, end = reply.status, 0, whole
        out: dict[str, str] = {}
        if status == 200 and reply.body is None:
            status, first = self._range(reply, headers, whole)
            if status == 206:
                out["Content-Range"] = f"bytes {first}-{end - 1}/{whole}"
            elif status == 416:
                out["Content-Range"] = f"bytes */{whole}"
                first = end
        if reply.chunked:
            out["Transfer-Encoding"] = "chunked"
        else:
            out["Content-Length"] = str(end - first)
        out.update(reply.headers)
        self.send_response_only(status)
        for name, value in out.items():
            self.send_header(name, value)
        if reply.drip:
            self.flush_headers()
            self._drip(reply.drip)
            return
        self.end_headers()
        self._send(body, first, end, reply)

    def do_HEAD(self) -> None:
        """Refused, as some vendors do; an index (a server with `paths`) answers."""
        reply = self.owner.next_reply(Request("HEAD", self.path, {}))
        self.send_response_only(reply.status if self.owner.paths is not None else 403)
        for name, value in {"Content-Length": str(len(reply.body or b"")), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _drip(self, seconds: float) -> None:
        """Send the bytes of a header until the client hangs up."""
        self.close_connection = True
        self.wfile.write(b"X-Slow: ")
        while True:
            self.wfile.write(b"x")
            self.owner.wait_for_closing(seconds)

    def _range(self, reply: Reply, headers: Mapping[str, str], whole: int) -> tuple[int, int]:
        match = re.fullmatch(r"bytes=(\d+)-", headers.get("range", ""))
        if match is None or not reply.ranges:
            return 200, 0
        first = int(match.group(1))
        return (206, first) if first < whole else (416, 0)

    def _send(self, body: bytes | Path, first: int, end: int, reply: Reply) -> None:
        stop = end if reply.cut is None else min(end, first + reply.cut)
        stream: BinaryIO | None = None if isinstance(body, bytes) else body.open("rb")
        try:
            if stream is not None:
                stream.seek(first)
            at = first
            while at < stop:
                size = min(reply.chunk, stop - at)
                block = body[at : at + size] if isinstance(body, bytes) else stream.read(size)  # type: ignore[union-attr]
                framed = b"%x\r\n%b\r\n" % (len(block), block) if reply.chunked else block
                self.wfile.write(framed)
                self.owner.count(len(block))
                at += len(block)
                if reply.pause:
                    self.owner.wait_for_closing(reply.pause)
            if reply.stall:
                self.owner.wait_for_closing(60)
            if reply.cut is not None or reply.stall:
                self.close_connection = True
                if reply.reset:
                    self.wfile.flush()
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
            elif reply.chunked:
                self.wfile.write(b"0\r\n\r\n")
        finally:
            if stream is not None:
                stream.close()

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""
