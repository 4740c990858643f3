"""Do an order in a watched fork of this process, so that no order sees what another one left behind.

A fork whose time is up is ended here; `parent` ends a worker that does not answer at all."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import shutil
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ci.engine import interpreter
from ci.engine.trouble import of_places
from ci.engine.watch import Supervisor, Unavailable, install

_SET_PARENT_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36
_UNFORESEEN = 70
_CHANNEL = 900
TEMPORARY = ("TMPDIR", "TEMP", "TMP", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that name the work's own folder for temporary files."""
UMASK = 0o022

_libc = ctypes.CDLL(None, use_errno=True)


def in_watched_fork(
    work: Callable[[], dict[str, Any]], temporary: str, timeout: float, places: Iterable[Path] = ()
) -> dict[str, Any]:
    """The reply of `work` with what it touched as `touched`, or how the process ended as `died` or `late`.

    `temporary` is the work's own directory for temporary files, and is removed. If the process died and one
    of `places`, where it wrote, is full, the reply has that as `trouble`. Everything that the work
    started has ended when this returns."""
    # Processes that outlive the work become children of this process, which ends them.
    _libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    before = _processor_seconds()
    receive, send = os.pipe()
    ours, theirs = socket.socketpair()
    notes = os.memfd_create("qnn-ci-notes")
    child = os.fork()
    if not child:
        os.close(receive)
        ours.close()
        _work(work, theirs, send, temporary, notes)
    os.close(send)
    theirs.close()
    try:
        supervisor, reason = _supervisor(ours, temporary)
        text, code = _wait(child, receive, supervisor, timeout)
        # Now: it may be full only until the temporary files are removed.
        full = of_places([*places, Path(temporary)]) if code else None
        if supervisor:
            supervisor.seen.left = supervisor.left()
        asked = interpreter.asked(notes)
    finally:
        os.close(notes)
        ours.close()
        os.close(receive)
        _end_children()
        shutil.rmtree(temporary, ignore_errors=True)
    if code is None:
        return {"late": timeout, "used": _processor_seconds() - before}
    if code or not text:
        reply: dict[str, Any] = {"died": code, "touched": {}}
        reply |= {"trouble": asdict(full)} if full else {}
    else:
        reply = json.loads(text)
    seen = {"unseen": [f"what native code opens cannot be seen here ({reason})"]}
    if supervisor:
        supervisor.close()
        seen = asdict(supervisor.seen)
    reply["touched"] = {**seen, **reply["touched"], "asked": asked}
    return reply


def _work(
    work: Callable[[], dict[str, Any]], channel: socket.socket, send: int, temporary: str, notes: int
) -> None:
    """The child's whole life."""
    try:
        _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        os.environ |= dict.fromkeys(TEMPORARY, temporary)
        tempfile.tempdir = temporary
        os.umask(UMASK)
        interpreter.begin_fork(notes)
        try:
            # A descriptor number that no later file gets.
            number = fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, _CHANNEL)
            channel.close()
            channel = socket.socket(fileno=number)
            listener = install(number)
            socket.send_fds(channel, [b"+"], [listener])
            os.close(listener)
        except Unavailable as error:
            channel.sendall(f"-{error}".encode())
        channel.close()
        reply = work()
        reply["touched"] = {"searched": interpreter.searched()}
        with open(send, "w", encoding="utf-8") as stream:
            json.dump(reply, stream)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(_UNFORESEEN)


def _supervisor(channel: socket.socket, temporary: str) -> tuple[Supervisor | None, str]:
    message, listeners, _, _ = socket.recv_fds(channel, 1000, 1)
    if listeners:
        return Supervisor(listeners[0], temporary, interpreter.installations()), ""
    return None, message[1:].decode() or "the process ended at once"


def _wait(
    child: int, receive: int, supervisor: Supervisor | None, timeout: float
) -> tuple[bytes, int | None]:
    """What the child wrote and how it ended; None if it was ended because its time was up."""
    deadline = time.monotonic() + timeout
    ended = os.pidfd_open(child)
    poll = select.poll()
    for file in (receive, ended, *([supervisor.listener] if supervisor else ())):
        poll.register(file, select.POLLIN)
    text, reading, running = b"", True, True
    try:
        while reading or running:
            rest = deadline - time.monotonic()
            if rest <= 0:
                return text, None
            for ready, events in poll.poll(rest * 1000 + 1):
                if ready == ended:
                    running = False
                    poll.unregister(ended)
                    # A process started by the child may hold the pipe open, but the child's reply is there
                    # already.
                    reading = reading and bool(select.select([receive], [], [], 0)[0])
                elif ready == receive:
                    block = os.read(receive, 1 << 20)
                    text += block
                    if not block or not (running or select.select([receive], [], [], 0)[0]):
                        reading = False
                        poll.unregister(receive)
                elif supervisor and events & select.POLLIN:
                    supervisor.answer()
                else:
                    poll.unregister(ready)
        return text, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(ended)


def _end_children() -> None:
    """End every process that is left of the work. Their own children become ours and are ended too."""
    while children := list(_children()):
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _processor_seconds() -> float:
    """What all children that ended have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _children() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, (task / "children").read_text(encoding="ascii").split())
