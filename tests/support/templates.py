"""Processes that have imported torch and ExecuTorch, shared by all commands and files of a run of tests.

A command starts such a process itself (ci.work.schedule.Template), which takes five seconds or more, and
tests type some hundred commands. Here a process of the whole run starts it for the first command that wants
it. Later commands with the same variables get the socket on which it takes orders, and use forks of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ci.work.schedule import Home, Orders

VARIABLE = "QNN_TEST_TEMPLATES"
"""Names the socket of the process that has them."""

SHARED = (
    "ci.lanes.executorch.worker:prepare",
    "ci.lanes.executorch.run_worker:prepare",
    *(f"ci.lanes.onnx.worker:{name}" for name in ("prepare", "prepare_exporting")),
    *(f"ci.lanes.llm.worker:{name}" for name in ("train", "generate", "lower")),
)
"""What takes long to import, in the processes of lanes. Those that stand in for them in tests are small."""

MOST = 6
"""More processes are not kept: one with torch has half a gigabyte."""

GRACE_SECONDS = 30

MOST_BYTES = 1 << 17

READY = b"ready"
"""As ci.work.template sends it: this process imports nothing of ours."""


@contextlib.contextmanager
def serving() -> Iterator[None]:
    """While this lasts, commands find a process that has templates, which ends with this one."""
    with (
        tempfile.TemporaryDirectory(prefix="qnn-test-") as folder,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        path = str(Path(folder, "templates"))
        listening.bind(path)
        listening.listen()
        os.environ[VARIABLE] = path
        command = [sys.executable, str(Path(__file__)), str(listening.fileno()), folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listening.fileno()]) as server:
            try:
                yield
            finally:
                os.environ.pop(VARIABLE, None)
                assert server.stdin
                server.stdin.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.wait(GRACE_SECONDS)
                server.kill()


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Within this context, this process takes templates from that one."""
    from ci.work import schedule

    own = schedule.Template
    use_shared()
    try:
        yield
    finally:
        setattr(schedule, "Template", own)  # noqa: B010


def use_shared() -> None:
    """Have this process take templates from that one, from now on."""
    from ci.work import schedule
    from provisioning.base.settings import ROOT

    path = os.environ.get(VARIABLE, "")
    if not path:
        return

    class SharedTemplate(schedule.Template):
        def _start(self) -> schedule.Orders:
            control = _ask(path, self.home, ROOT) if self.home.prepare in SHARED else None
            # One that cannot start says why in a process of its own.
            return schedule.Orders(control) if control else super()._start()

        def close(self) -> None:
            if self._process is None and self._orders is not None:
                _end(self._orders)
                self._orders = None
            super().close()

    setattr(schedule, "Template", SharedTemplate)  # noqa: B010


def _ask(path: str, home: Home, root: Path) -> socket.socket | None:
    """The socket of orders; None where the process could not start."""
    asked = {
        "python": home.python,
        "prepare": [home.prepare, *home.arguments],
        "cwd": str(root),
        "environ": dict(home.environment),
    }
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path)
        channel.sendall(json.dumps(asked).encode())
        channel.shutdown(socket.SHUT_WR)
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    return socket.socket(fileno=descriptors[0]) if descriptors else None


def _end(orders: Orders) -> None:
    """End what this process ordered, and nothing of others."""
    for entry in orders.entries:
        if entry.orders:
            entry.orders.close()
        with contextlib.suppress(OSError):
            entry.channel.settimeout(GRACE_SECONDS)
            entry.channel.shutdown(socket.SHUT_WR)
            while entry.channel.recv(1 << 12):
                pass
    orders.close()
    for entry in orders.entries:
        entry.remove()


class Server:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._templates: OrderedDict[str, _Started] = OrderedDict()

    def answer(self, channel: socket.socket) -> None:
        with channel:
            asked = b"".join(iter(lambda: channel.recv(MOST_BYTES), b"")).decode()
            with self._lock:
                template = self._templates.setdefault(asked, _Started())
                self._templates.move_to_end(asked)
                # One that still works for somebody ends when that has ended too.
                while len(self._templates) > MOST:
                    self._templates.popitem(last=False)
            if control := template.control(json.loads(asked), self._folder):
                socket.send_fds(channel, [b"x"], [control.fileno()])

    def close(self) -> None:
        with self._lock:
            self._templates.clear()


class _Started:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None

    def control(self, asked: dict[str, Any], folder: Path) -> socket.socket | None:
        with self._lock:
            self._control = self._control or _start(asked, folder)
            return self._control


def _start(asked: dict[str, Any], folder: Path) -> socket.socket | None:
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, tempfile.TemporaryFile(dir=folder) as log:
        subprocess.Popen(
            [asked["python"], "-m", "ci.work.template", str(theirs.fileno()), *asked["prepare"]],
            cwd=asked["cwd"],
            env=asked["environ"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return control if control.recv(len(READY)) == READY else None


def main(listening: socket.socket, folder: Path) -> None:
    """Answer, each in a thread as the start of a process takes long, until the process that started this one
    has gone."""
    server = Server(folder)
    while listening in select.select([listening, sys.stdin], [], [])[0]:
        channel = listening.accept()[0]
        threading.Thread(target=server.answer, args=[channel], daemon=True).start()
    server.close()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
