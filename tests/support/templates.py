"""Processes that have imported torch and ExecuTorch, shared by all commands and files of a run of tests.

A command starts such a process itself (ci.work.processes.Template), which takes five seconds or more, and
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ci.work.processes import Home, Orders

VARIABLE = "QNN_TEST_TEMPLATES"
"""Names the socket of the process that has them."""

_EXECUTORCH = (
    *("numpy", "torch", "executorch.backends.qualcomm.utils.utils", "executorch.exir"),
    "torchao.quantization.pt2e.quantize_pt2e",
)
SHARED = {
    "ci.lanes.executorch.worker:prepare": _EXECUTORCH,
    "tests.support.exporting_worker:prepare": _EXECUTORCH,
    "ci.lanes.executorch.run_worker:prepare": (),
    "ci.lanes.onnx.worker:prepare": (),
    "ci.lanes.onnx.worker:prepare_exporting": ("numpy", "torch"),
    **dict.fromkeys(
        [f"ci.lanes.llm.worker:{name}" for name in ("train", "generate", "lower")], ("numpy", "torch")
    ),
}
"""What takes long to import, in the processes of lanes, and the libraries that are imported once for all of
them. Those that stand in for them in tests are small."""

IMPORTED = Path(__file__).with_name("imported.py")
READ_LATER = ("HOME", "HF_HOME", "HUB_TOKEN", "OMP_NUM_THREADS", "PATH", "QNN_SDK_ROOT", "XDG_CACHE_HOME")
"""No library reads these variables when it is imported, or the number of threads is always the same then."""

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
    from ci.work import processes

    own = processes.Template
    use_shared()
    try:
        yield
    finally:
        setattr(processes, "Template", own)  # noqa: B010


def use_shared() -> None:
    """Have this process take templates from that one, from now on."""
    from ci.work import processes
    from provisioning.base.settings import ROOT

    path = os.environ.get(VARIABLE, "")
    if not path:
        return

    class SharedTemplate(processes.Template):
        def _start(self) -> processes.Orders:
            control = _ask(path, self.home, ROOT) if self.home.prepare in SHARED else None
            # One that cannot start says why in a process of its own.
            return processes.Orders(control) if control else super()._start()

        def close(self) -> None:
            if self._process is None and self._orders is not None:
                _end(self._orders)
                self._orders = None
            super().close()

    setattr(processes, "Template", SharedTemplate)  # noqa: B010


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
        self._libraries: dict[str, _Imported] = {}

    def answer(self, channel: socket.socket) -> None:
        with channel:
            asked = b"".join(iter(lambda: channel.recv(MOST_BYTES), b"")).decode()
            with self._lock:
                template = self._templates.setdefault(asked, _Started())
                self._templates.move_to_end(asked)
                # One that still works for somebody ends when that has ended too.
                while len(self._templates) > MOST:
                    self._templates.popitem(last=False)
            if control := template.control(json.loads(asked), self._start):
                socket.send_fds(channel, [b"x"], [control.fileno()])

    def _start(self, asked: dict[str, Any]) -> socket.socket | None:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryFile(dir=self._folder) as log:
            if libraries := SHARED.get(asked["prepare"][0]):
                self._imported(asked, libraries).become(asked, theirs.fileno(), log.fileno())
            else:
                command = ["-m", "ci.work.template", str(theirs.fileno()), *asked["prepare"]]
                _popen(asked, command, theirs.fileno(), log)
        return control if control.recv(len(READY)) == READY else None

    def _imported(self, asked: dict[str, Any], libraries: Sequence[str]) -> _Imported:
        kept = {name: value for name, value in asked["environ"].items() if name not in READ_LATER}
        home = {**asked, "environ": kept, "prepare": libraries}
        with self._lock:
            return self._libraries.setdefault(json.dumps({**home, "cwd": ""}), _Imported(home))

    def close(self) -> None:
        with self._lock:
            self._templates.clear()
            self._libraries.clear()


class _Started:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None

    def control(
        self, asked: dict[str, Any], start: Callable[..., socket.socket | None]
    ) -> socket.socket | None:
        with self._lock:
            self._control = self._control or start(asked)
            return self._control


class _Imported:
    """A process that has imported libraries, from when it is first needed."""

    def __init__(self, home: dict[str, Any]) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._orders: socket.socket | None = None

    def become(self, asked: dict[str, Any], *files: int) -> None:
        """Let a fork of it become a template, with its socket and its log."""
        with self._lock:
            if self._orders is None:
                self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    command = [str(IMPORTED), str(theirs.fileno()), *self._home["prepare"]]
                    _popen(self._home, command, theirs.fileno(), subprocess.DEVNULL)
            socket.send_fds(self._orders, [json.dumps(asked).encode()], files)


def _popen(asked: dict[str, Any], command: Sequence[str], socket_of_it: int, output: Any) -> None:
    subprocess.Popen(
        [asked["python"], *command],
        cwd=asked["cwd"],
        env=asked["environ"],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[socket_of_it],
        start_new_session=True,
    )


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
