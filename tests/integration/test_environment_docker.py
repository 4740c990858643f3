"""The docker format, read by the docker client itself where there is one: a stand-in engine hears it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from provisioning.base.errors import UsageError
from provisioning.base.rendering.variables import docker
from tests.support.readers import HARD, read_docker


class _Engine(BaseHTTPRequestHandler):
    """Says yes to `docker create`, and keeps the environment that it was sent."""

    protocol_version = "HTTP/1.1"
    sent: list[str]

    def do_HEAD(self) -> None:
        self._answer(200, b"")

    def do_GET(self) -> None:
        self._answer(200, b"OK")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).sent = body["Env"]
        self._answer(201, b'{"Id": "0123456789abcdef", "Warnings": []}')

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Api-Version", "1.41")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _by_docker_client(text: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "env").write_text(text, encoding="utf-8", newline="")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        subprocess.run(
            ["docker", "create", "--env-file", str(tmp_path / "env"), "image"],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "DOCKER_HOST": f"tcp://127.0.0.1:{server.server_port}",
            },
            check=True,
            capture_output=True,
            timeout=60,
        )
    finally:
        server.shutdown()
        server.server_close()
    return dict(pair.split("=", 1) for pair in _Engine.sent)


def _by_rule(text: str, tmp_path: Path) -> dict[str, str]:
    return read_docker(text)


READERS = [_by_rule, *([_by_docker_client] if shutil.which("docker") else [])]


@pytest.mark.parametrize("read", READERS)
def test_every_hard_value_that_is_not_refused_arrives(
    read: Callable[[str, Path], dict[str, str]], tmp_path: Path
) -> None:
    variables: dict[str, str] = {}
    for number, value in enumerate(HARD):
        try:
            docker({"NAME": value})
        except UsageError:
            continue
        variables[f"NAME_{number}"] = value
    assert len(variables) > len(HARD) / 2
    assert read(docker(variables), tmp_path) == variables
