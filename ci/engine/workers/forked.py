"""The stage's side of fork servers: find or start one, and have a worker forked.

Whatever goes wrong here, the stage starts the worker itself."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

from ci.engine.digests import mounted_images
from ci.engine.distributions import site_folders, stamps_of
from ci.engine.workers.child import THREADS, WARM
from ci.engine.workers.fork_server import FORK_SERVERS, OWNER, pidfd_of_owner, text_of_owner
from provisioning.base.settings import ROOT

END_SECONDS = 2.0
"""How long the owner waits for its servers."""

KILLED_SECONDS = 30.0
"""How long a process that was killed may take to end."""


class _Server(subprocess.Popen[bytes]):
    """A server that this process started. It may run longer than this process."""

    def __del__(self) -> None:
        """Python would warn that nobody waits for it."""


_started: list[_Server] = []


class OwnProcess(subprocess.Popen[bytes]):
    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class ForkedProcess:
    def __init__(self, process: int, connection: socket.socket, orders: int) -> None:
        self.pid, self._connection = process, connection
        self._ended = os.pidfd_open(process)
        self.stdin = os.fdopen(orders, "wb")
        self.returncode: int | None = None
        self._code: int | None = None

    def kill_group(self) -> None:
        if self.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            # Its number can be another's if the server has gone.
            signal.pidfd_send_signal(self._ended, 0)
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """How it ended. With a limit, it keeps its number."""
        if self.returncode is not None:
            return self.returncode
        if self._code is None:
            limit = KILLED_SECONDS if timeout is None else timeout
            if not select.select([self._connection], [], [], limit)[0] and timeout is not None:
                raise subprocess.TimeoutExpired("worker", timeout)
            # A server that is gone or hangs cannot say it. The worker was killed here or ends with it.
            select.select([self._ended], [], [], limit)
            with contextlib.suppress(OSError):
                self._connection.setblocking(False)
                self._code = int(self._connection.recv(32) or -signal.SIGKILL)
            self._code = -signal.SIGKILL if self._code is None else self._code
        if timeout is None:
            self.returncode = self._code
            self._connection.close()
            os.close(self._ended)
        return self._code


def forked(
    command: Sequence[str],
    environment: Mapping[str, str],
    hidden: Mapping[str, str],
    descriptors: tuple[int, int],
    seconds: float,
) -> ForkedProcess | None:
    """A worker that began with this command and environment and has these descriptors for replies and log.
    None where commands share no servers, or if none could fork it within so many seconds. For one command
    alone it does not pay: programs take longer in what is forked twice."""
    folder = os.environ.get(FORK_SERVERS, "")
    # What lies on such a search path is not looked at.
    if environment.get("PYTHONPATH") or not _is_usable(folder):
        return None
    try:
        own = {name: hidden[name] for name in (THREADS, WARM) if name in hidden}
        if WARM in own:
            # It pays for itself with the second command.
            own[WARM] = "1"
        inherited = [*command], [*environment.items()], own
        if _on_image(environment):
            return None
        distributions = [stamps_of(folder)[0] for folder in site_folders()]
        name = _digest([inherited, distributions, sys.executable, str(ROOT)])
        number = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            # A short name, whatever the folder's is.
            path = f"/proc/self/fd/{number}/{name}"
            if process := _fork(path, descriptors, seconds):
                return process
            with Path(f"{path}.lock").open("w", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _is_there(path):
                    _start(path, command, environment, {**own, FORK_SERVERS: folder})
            # None if its imports fail, or read what has just changed.
            return _fork(path, descriptors, seconds)
        finally:
            os.close(number)
    except OSError:
        return None


@contextlib.contextmanager
def shared_fork_servers(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Let all commands that have `environ` share their servers, which end with this process at the latest."""
    if _is_usable(environ.get(FORK_SERVERS)):
        yield
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="qnn-ci-workers-"))
        (folder / OWNER).write_text(text_of_owner(os.getpid()), encoding="utf-8")
    except OSError:
        # Each command then says itself what is wrong with the folder of temporary files.
        yield
        return
    environ[FORK_SERVERS] = str(folder)
    try:
        yield
    finally:
        environ.pop(FORK_SERVERS, None)
        _end(folder)


def _is_usable(folder: str | None) -> bool:
    """Whether nobody else can reach it, and its owner runs."""
    if not folder:
        return False
    try:
        info = Path(folder).stat()
        os.close(pidfd_of_owner(Path(folder)))
    except (OSError, ValueError):
        return False
    return info.st_uid == os.geteuid() and not stat.S_IMODE(info.st_mode) & 0o077


def _end(folder: Path) -> None:
    """End the servers of a folder, and remove it."""
    connections = []
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            number = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            stack.callback(os.close, number)
            connection = _connected(f"/proc/self/fd/{number}/{path.name}", END_SECONDS)
            connections.append(connection)
            connection.send(b"end")
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.recv(1)
        connection.close()
    shutil.rmtree(folder, ignore_errors=True)


def _on_image(environment: Mapping[str, str]) -> bool:
    """Whether files that it may import are where another file can have the stamp of an earlier one."""
    if not (images := mounted_images()):
        return False
    named = [part for value in environment.values() for part in value.split(os.pathsep) if part[:1] == "/"]
    places = (*named, str(ROOT), sys.prefix, sys.base_prefix, *site_folders())
    return any(f"{os.path.realpath(place)}/".startswith(images) for place in places)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def _connected(path: str, seconds: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(seconds)
    try:
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def _is_there(path: str) -> bool:
    """Whether a server listens. It takes a connection without a message for a client that has gone."""
    with contextlib.suppress(OSError):
        _connected(path, 1).close()
        return True
    return False


def _fork(path: str, descriptors: tuple[int, int], seconds: float) -> ForkedProcess | None:
    """None if no server is there, or if it ends."""
    orders, write = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, orders)
        stack.callback(os.close, write)
        try:
            connection = stack.enter_context(_connected(path, seconds))
            socket.send_fds(connection, [b"fork"], [orders, *descriptors])
            process = connection.recv(32)
            if not process:
                return None
            forked = ForkedProcess(int(process), connection.dup(), os.dup(write))
        except OSError:
            return None
        return forked


def _start(
    path: str, command: Sequence[str], environment: Mapping[str, str], first: Mapping[str, str]
) -> None:
    """Start a server. It is connected to at once, and answers after its imports."""
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(socket.SOMAXCONN)
        process = _Server(
            [sys.executable, *command, str(listener.fileno())],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    _started[:] = [process for process in _started if process.poll() is None] + [process]
    assert process.stdin is not None
    with process.stdin as stream:
        stream.write((json.dumps(first) + "\n").encode())
