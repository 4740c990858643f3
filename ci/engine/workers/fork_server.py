"""A process that has imported what its kind of worker needs, and forks a worker for each client.

`forked` is the stage's side. A client sends the descriptors of its worker. The worker answers with its
number, the server later with how it ended. Until the client closes the connection, the number stays taken."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ci.engine.interpreter import opened_names
from ci.engine.jobs import available_memory
from ci.engine.watch import LOADER_CACHE, YOUNG_SECONDS, Stamp, listing_of, modules_of, stamp_of_installed

FORK_SERVERS = "QNN_CI_FORK_SERVERS"
"""The folder of the servers' sockets. In the first line of a process's stdin it makes it a server."""

OWNER = "owner"
"""The file in that folder that names the process with which its servers end."""

DESCRIPTORS = 3
"""A worker's orders, replies and log."""

IDLE_SECONDS = 900.0
LOOK_SECONDS = 5.0
"""How often an idle server looks whether it should end."""

LEAST_MEMORY = 3 << 30
"""With less free memory than this, an idle server ends."""

CLIENT_SECONDS = 2.0
"""How long a client may take to send its descriptors."""


@dataclass(frozen=True)
class Client:
    connection: socket.socket
    worker: int
    ended: int
    """A descriptor that is readable when the worker has ended."""

    def report(self) -> None:
        """Say how the worker ended. Its number stays taken."""
        info = os.waitid(os.P_PID, self.worker, os.WEXITED | os.WNOWAIT)
        assert info is not None
        code = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        with contextlib.suppress(OSError):
            self.connection.send(str(code).encode())

    def end(self) -> None:
        # At its very beginning it has no group of its own yet.
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(self.worker, signal.SIGKILL)
        os.waitpid(self.worker, 0)
        self.close()

    def close(self) -> None:
        self.connection.close()
        os.close(self.ended)


class ForkServer:
    """Made before the imports, so that the process ends if its owner ends meanwhile."""

    def __init__(self, listener: int, folder: str) -> None:
        self._listener, self._number = socket.socket(fileno=listener), listener
        self._owner = pidfd_of_owner(Path(folder))
        self._poll = select.poll()
        self._ready = threading.Event()
        self._clients: dict[int, Client] = {}
        """By each of their two descriptors."""
        self._waiting: list[socket.socket] = []
        """Connections of those who wait for the end of this process."""
        threading.Thread(target=self._end_with_owner, args=[Path(folder)], daemon=True).start()

    def fork_for_clients(self, touched: Mapping[str, Any], orders: TextIO) -> None:
        """Returns in every worker, where the descriptors have the numbers that they have here. The server
        itself ends when nobody needs it, or when what it `touched` has changed and its last client has gone.
        """
        state = _state_of(touched)
        if max(map(_changed, touched["opened"]), default=0) > _trusted_before():
            # What it has of this file may be older.
            os._exit(0)
        self._ready.set()
        for file in (self._number, self._owner):
            self._poll.register(file, select.POLLIN)
        used = time.monotonic()
        while self._clients or (self._listener.fileno() >= 0 and _is_needed(used)):
            # One at a time: it may close the descriptor that the next is about.
            for ready, _ in self._poll.poll(LOOK_SECONDS * 1000)[:1]:
                used = time.monotonic()
                if ready in self._clients:
                    self._attend(ready)
                elif ready == self._owner:
                    self._stop_listening()
                elif request := self._request():
                    connection, descriptors = request
                    if _state_of(touched) != state:
                        self._stop_listening()
                        _close(connection, descriptors)
                    elif self._is_in_worker(connection, descriptors, orders):
                        return
        os._exit(0)

    def _stop_listening(self) -> None:
        """Whoever waits to be accepted is told at once, and starts another server."""
        for file in (self._number, self._owner):
            self._poll.unregister(file)
        self._listener.close()

    def _attend(self, ready: int) -> None:
        client = self._clients.pop(ready)
        self._poll.unregister(ready)
        if ready == client.ended:
            client.report()
            return
        if self._clients.pop(client.ended, None):
            self._poll.unregister(client.ended)
        client.end()

    def _request(self) -> tuple[socket.socket, list[int]] | None:
        """The descriptors for a new worker. None if the client has gone, or wants this process to end."""
        connection, _ = self._listener.accept()
        connection.settimeout(CLIENT_SECONDS)
        try:
            message, descriptors, _, _ = socket.recv_fds(connection, 1, DESCRIPTORS)
        except OSError:
            message, descriptors = b"", []
        if len(descriptors) == DESCRIPTORS:
            return connection, descriptors
        if message:
            self._waiting.append(connection)
            self._stop_listening()
        else:
            _close(connection, descriptors)
        return None

    def _is_in_worker(self, connection: socket.socket, descriptors: list[int], orders: TextIO) -> bool:
        """Fork; true in the worker."""
        try:
            worker = os.fork()
        except OSError:
            _close(connection, descriptors)
            return False
        if worker:
            for descriptor in descriptors:
                os.close(descriptor)
            client = Client(connection, worker, os.pidfd_open(worker))
            for number in (connection.fileno(), client.ended):
                self._clients[number] = client
                self._poll.register(number, select.POLLIN)
            return False
        os.setsid()
        for client in set(self._clients.values()):
            client.close()
        os.close(self._owner)
        requests, replies, log = descriptors
        os.dup2(requests, orders.fileno(), inheritable=False)
        os.dup2(replies, self._listener.detach())
        for number in (1, 2):
            os.dup2(log, number)
        try:
            connection.send(str(os.getpid()).encode())
        except OSError:
            os._exit(0)
        _close(connection, descriptors)
        return True

    def _end_with_owner(self, folder: Path) -> None:
        select.select([self._owner], [], [])
        shutil.rmtree(folder, ignore_errors=True)
        if not self._ready.is_set():
            os.killpg(0, signal.SIGKILL)


def pidfd_of_owner(folder: Path) -> int:
    """A descriptor that is readable when the owner has ended. Raises OSError if it already has."""
    text = (folder / OWNER).read_text(encoding="utf-8")
    process = int(text.partition(" ")[0])
    descriptor = os.pidfd_open(process)
    if text_of_owner(process) == text:
        return descriptor
    os.close(descriptor)
    raise ProcessLookupError(f"{process} is another process now")


def text_of_owner(process: int) -> str:
    return f"{process} {_began(process)}"


def _began(process: int) -> int:
    """When a process began, in ticks of the clock since the machine's start."""
    text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    return int(text.rpartition(")")[2].split()[19])


def _trusted_before() -> int:
    """Files that changed before this time changed before this process read them, in nanoseconds."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - _began(os.getpid()) / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - int((age + YOUNG_SECONDS) * 1e9)


def _is_needed(used: float) -> bool:
    idle, free = time.monotonic() - used, available_memory()
    return idle < (IDLE_SECONDS if free is None or free > LEAST_MEMORY else LOOK_SECONDS)


def _close(connection: socket.socket, descriptors: list[int]) -> None:
    connection.close()
    for descriptor in descriptors:
        os.close(descriptor)


def _state_of(touched: Mapping[str, Any]) -> dict[str, object]:
    """The state now of everything that decides what a process like this one has after its imports."""
    own = (sys.executable, f"{sys.prefix}/pyvenv.cfg", LOADER_CACHE)
    state: dict[str, object] = {path: _stamp(path) for path in (*touched["opened"], *opened_names(), *own)}
    state |= {f"names in {folder}": listing_of(folder) for folder in touched["listed"]}
    state |= {f"modules in {folder}": modules_of(folder) for folder in touched["queried"]}
    return state


def _stamp(path: str) -> Stamp | None:
    try:
        return stamp_of_installed(Path(path).stat())
    except OSError:
        return None


def _changed(path: str) -> int:
    _, mtime, ctime, _ = _stamp(path) or (0, 0, 0, 0)
    return ctime or mtime
