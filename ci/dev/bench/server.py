"""A loopback server for one directory, in its own process so that it shares no contender's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

from provisioning.base.settings import ROOT


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """The base URL under which the directory's files are served while the context lasts."""
    server = subprocess.Popen(
        [sys.executable, "-m", "ci.dev.bench.server", str(directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.terminate()
        server.communicate()


class _Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None: ...

    def copyfile(self, source: BinaryIO, outputfile: object) -> None:  # type: ignore[override]
        count = os.fstat(source.fileno()).st_size
        at = 0
        while at < count:
            at += os.sendfile(self.connection.fileno(), source.fileno(), at, count - at)


def main(directory: str) -> None:
    os.chdir(directory)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Quiet) as server:
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
