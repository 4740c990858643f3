"""An adb server with one phone, whose shell is this machine's: for the real adb client to talk to.

It speaks what the client uses: host requests to find the device, `shell,v2` to run commands there with an
exit code, and `sync` to move files. The paths on the phone are ours: tests give it a folder of their own.
"""

from __future__ import annotations

import os
import socket
import socketserver
import stat
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

VERSION = 41
SERIAL = "stand-in"
FEATURES = "shell_v2,cmd"
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = 0, 1, 2, 3, 4


@dataclass
class Phone:
    """`state` is what `adb devices` would say."""

    path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))
    state: str = "device"
    corrupt: bool = False
    """Lose the last byte of each file that is sent, as a full disk would."""


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, phone: Phone) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.phone = phone

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Connection(socketserver.BaseRequestHandler):
    server: Server
    request: socket.socket

    def handle(self) -> None:
        try:
            while self._request():
                pass
        except (ConnectionError, EOFError):
            pass

    def _request(self) -> bool:
        """One request of the host; whether another may follow on this connection."""
        text = self._take(int(self._take(4), 16)).decode()
        phone = self.server.phone
        if text == "host:version":
            return self._answer(f"{VERSION:04x}")
        if text in ("host:features", f"host-serial:{SERIAL}:features", "host:host-features"):
            return self._answer(FEATURES)
        if text.startswith("host-serial:"):
            return self._fail(f"device '{text.split(':')[1]}' not found")
        if text in ("host:devices", "host:devices-l"):
            return self._answer(f"{SERIAL}\t{phone.state}\n")
        if text.startswith(("host:transport", "host:tport")):
            wanted = text.rpartition(":")[2]
            if wanted not in (SERIAL, "any", "host:transport-any"):
                return self._fail(f"device '{wanted}' not found")
            if phone.state != "device":
                return self._fail(f"device {phone.state}.")
            self.request.sendall(b"OKAY" + (struct.pack("<Q", 1) if "tport" in text else b""))
            return True
        if text.startswith("shell,v2"):
            self.request.sendall(b"OKAY")
            self._shell(text.partition(":")[2])
            return False
        if text == "sync:":
            self.request.sendall(b"OKAY")
            self._sync()
            return False
        return self._fail(f"unknown request {text!r}")

    def _answer(self, text: str) -> bool:
        self.request.sendall(b"OKAY" + f"{len(text):04x}".encode() + text.encode())
        return False

    def _fail(self, text: str) -> bool:
        self.request.sendall(b"FAIL" + f"{len(text):04x}".encode() + text.encode())
        return False

    def _shell(self, command: str) -> None:
        phone = self.server.phone
        with subprocess.Popen(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": phone.path},
        ) as process:
            assert process.stdout is not None
            while block := os.read(process.stdout.fileno(), 65536):
                self._packet(STDOUT, block)
        self._packet(EXIT, bytes([process.returncode & 0xFF]))

    def _packet(self, kind: int, content: bytes) -> None:
        self.request.sendall(struct.pack("<BI", kind, len(content)) + content)

    def _sync(self) -> None:
        while True:
            request = self._take(4).decode()
            size = struct.unpack("<I", self._take(4))[0]
            if request == "QUIT":
                return
            path = self._take(size).decode()
            if request == "STAT":
                self.request.sendall(b"STAT" + struct.pack("<III", *_status(Path(path))))
            elif request == "LIST":
                for child in sorted(Path(path).iterdir()):
                    name = child.name.encode()
                    entry = struct.pack("<IIII", *_status(child), len(name))
                    self.request.sendall(b"DENT" + entry + name)
                self.request.sendall(b"DONE" + bytes(16))
            elif request == "SEND":
                self._receive(path)
            elif request == "RECV":
                self._send(Path(path))
            else:
                raise ConnectionError(f"unknown sync request {request}")

    def _receive(self, described: str) -> None:
        name, _, mode = described.rpartition(",")
        content = b""
        while (kind := self._take(4)) == b"DATA":
            content += self._take(struct.unpack("<I", self._take(4))[0])
        assert kind == b"DONE"
        self._take(4)
        path = Path(name)
        try:
            path.write_bytes(content[:-1] if self.server.phone.corrupt else content)
            path.chmod(stat.S_IMODE(int(mode)))
        except OSError as error:
            text = (error.strerror or "").encode()
            self.request.sendall(b"FAIL" + struct.pack("<I", len(text)) + text)
            return
        self.request.sendall(b"OKAY" + bytes(4))

    def _send(self, path: Path) -> None:
        content = path.read_bytes()
        for start in range(0, len(content), 65536):
            block = content[start : start + 65536]
            self.request.sendall(b"DATA" + struct.pack("<I", len(block)) + block)
        self.request.sendall(b"DONE" + bytes(4))

    def _take(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size:
            block = self.request.recv(size - len(taken))
            if not block:
                raise EOFError
            taken += block
        return taken


def _status(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_mode, status.st_size & 0xFFFFFFFF, int(status.st_mtime) & 0xFFFFFFFF


@contextmanager
def adb_server(phone: Phone) -> Iterator[Mapping[str, str]]:
    """What adb must find in its environment to talk to the phone."""
    with Server(phone) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield {"ANDROID_ADB_SERVER_PORT": str(server.port), "ANDROID_SERIAL": ""}
        finally:
            server.shutdown()
            thread.join()
