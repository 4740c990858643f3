"""The process that has made the imports of a home and stays in that state: it forks itself for each task. The
process of a task may stay, too, at its end or in the middle of it (`hold`): other tasks are then forks of it.

When a task ends, when its time is up, or when the process that sends the orders has gone, every process that
the task started ends too."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ci.work import child
from ci.work.outcome import reply_of

__all__ = ["TEMPORARY", "hold", "run_in_fork"]

START_SECONDS = 300
"""Importing torch and executorch on a busy machine takes at most this long."""

UMASK = 0o022
UNFORESEEN = 70
TEMPORARY = ("TMPDIR", "TEMP", "TMP", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that name a task's own folder for temporary files."""

ORDER, REPLY = "order.json", "reply.json"
READY = b"ready"
"""A process sends this when it has made its imports."""

_PARENT_DEATH_SIGNAL, _SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Run the template until its end."""
    control, (prepare, *arguments) = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    del sys.argv[1:]
    # Imports that hang end also where nobody waits for them any more.
    signal.alarm(START_SECONDS)
    faulthandler.enable()
    # A crash loses what Python still holds back: the log must have what a model printed before it.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    gc.set_threshold(child.GC_THRESHOLD, *gc.get_threshold()[1:])
    with child.one_thread_for_libraries():
        _function(prepare)(*arguments)
    # Imported objects are never garbage: keep later collections from walking them.
    gc.collect()
    gc.freeze()
    signal.alarm(0)
    with contextlib.suppress(OSError):
        control.send(READY)
    _serve(control)


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    # As an import statement does it: where the user has a package of our name, that finds ours.
    attribute: Callable[..., Any] = getattr(__import__(module, globals(), fromlist=[function]), function)
    return attribute


@dataclass
class _Fork:
    """A process that does a task, as its parent sees it."""

    process: int
    channel: socket.socket
    pidfd: int
    """A descriptor that becomes readable when the process has ended."""
    alive: bool = True

    def kill(self) -> None:
        self.alive = False
        # It is no other process's number yet, as only its parent waits for it.
        os.kill(self.process, signal.SIGKILL)

    def close(self) -> None:
        self.alive = False
        self.channel.close()
        os.close(self.pidfd)


@dataclass(frozen=True, slots=True)
class _Task:
    """A task, as the process that does it sees it."""

    folder: Path
    channel: socket.socket
    """The process that waits for the task reads here how it ended."""
    orders: socket.socket | None
    """If it has one, its process stays for more orders."""

    @property
    def order(self) -> child.Order:
        order: child.Order = json.loads((self.folder / ORDER).read_text(encoding="utf-8"))
        return order

    def reply(self, reply: Mapping[str, object]) -> None:
        (self.folder / REPLY).write_text(json.dumps(reply), encoding="utf-8")
        child.flush_output()

    def stay(self) -> socket.socket:
        """Say that the task has replied and that its process stays. Returns the socket for more orders."""
        assert self.orders is not None
        gc.collect()
        gc.freeze()
        self.channel.sendall(status_of(0, 0.0))
        self.channel.close()
        return self.orders


_own: list[_Task] = []
"""The task that this process does; a template does none."""


def hold(reply: Mapping[str, object]) -> Mapping[str, object]:
    """Reply, and stay at this point of a task. In each process that is forked for a later task, return that
    task's request: it goes on from here, and its reply is what the first task's function then returns."""
    (task,) = _own
    cpu, peak, begin = child.cpu_seconds(), child.memory_of_process("VmHWM"), time.monotonic()
    task.reply(reply)
    if not _serve(task.stay(), goes_on=True):
        # Whoever sent the orders has gone, and with it the reason to go on.
        os._exit(0)
    request: Mapping[str, object] = _own[0].order["request"]
    child.go_on(Path(str(request["log"])), cpu, peak, time.monotonic() - begin)
    return request


def _serve(control: socket.socket, *, goes_on: bool = False) -> bool:
    """Fork a process for each order, until the sender has gone and the last process has ended. If the forks
    go on from here, return True in each of them."""
    # What a task leaves behind becomes a child of this process.
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    forks: list[_Fork] = []
    open_to_orders = True
    while open_to_orders or forks:
        waits: dict[Any, _Fork | None] = {fork.pidfd: fork for fork in forks}
        waits |= {fork.channel: fork for fork in forks if fork.alive}
        waits |= {control: None} if open_to_orders else {}
        for ready in select.select([*waits], [], [])[0]:
            fork = waits[ready]
            if fork is None:
                folder, files, _, _ = socket.recv_fds(control, 1 << 12, 2, socket.MSG_CMSG_CLOEXEC)
                open_to_orders = bool(folder)
                if folder:
                    task = _task_of(Path(os.fsdecode(folder)), files)
                    if goes_on:
                        process = _fork_and_go_on(task, [control, *forks])
                        if not process:
                            return True
                    else:
                        process = _start_fork(partial(_work, task, [control, *forks]))
                    if task.orders:
                        task.orders.close()
                    forks.append(_Fork(process, task.channel, os.pidfd_open(process)))
                else:
                    for sibling in forks:
                        sibling.kill()
            elif ready is fork.channel:
                # Its time is up, or nobody waits for it; unless it has ended just now.
                if fork.alive:
                    fork.kill()
            else:
                forks.remove(fork)
                _report_end(fork, {sibling.process for sibling in forks})
    return False


def _task_of(folder: Path, files: Sequence[int]) -> _Task:
    channel, *orders = (socket.socket(fileno=number) for number in files)
    return _Task(folder, channel, orders[0] if orders else None)


def status_of(code: int, cpu_seconds: float) -> bytes:
    """Encode how a process ended, and the processor seconds that it used."""
    return json.dumps([code, cpu_seconds]).encode()


def _report_end(fork: _Fork, siblings: Collection[int]) -> None:
    """Report how a process ended, after all that it started has ended."""
    _, status, usage = os.wait4(fork.process, 0)
    cpu_seconds = usage.ru_utime + usage.ru_stime + _end_orphans(siblings)
    with contextlib.suppress(OSError):
        fork.channel.sendall(status_of(os.waitstatus_to_exitcode(status), cpu_seconds))
    fork.close()


def _start_fork(work: Callable[[], object]) -> int:
    """Fork a process that does this work and nothing else, and ends with its parent."""
    child.flush_output()
    process = os.fork()
    if process:
        return process
    try:
        _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        work()
        child.flush_output()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        child.flush_output()
    finally:
        # A full disk takes no traceback either: this process must never go on as its parent.
        os._exit(UNFORESEEN)


def _fork_and_go_on(task: _Task, open_files: Sequence[socket.socket | _Fork]) -> int:
    """Fork a process for a task, which returns from here with 0."""
    child.flush_output()
    process = os.fork()
    if not process:
        _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        _begin(task, open_files)
    return process


def _begin(task: _Task, open_files: Sequence[socket.socket | _Fork]) -> None:
    """Make this process the one of a task."""
    os.setsid()
    for file in open_files:
        file.close()
    _own[:] = [task]
    os.sched_setaffinity(0, task.order["cores"])
    os.environ |= dict.fromkeys(TEMPORARY, str(task.folder))
    tempfile.tempdir = str(task.folder)
    child.own_folder = task.folder


def _work(task: _Task, open_files: Sequence[socket.socket | _Fork]) -> None:
    """Do the work of a task's process. If it has orders, the process stays, to be forked."""
    _begin(task, open_files)
    os.umask(UMASK)
    # Python takes bytecode for that of a source of the same size and second.
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Python's own generator has seen to that itself, and torch's begins alike in every process.
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    order = task.order
    reply = child.log_answer(_function(order["function"]), dict(order["request"]))
    # Where the work held, this is the fork of a later task.
    (task,) = _own
    task.reply(reply)
    if task.orders and not {"error", "trouble"} & reply.keys():
        _serve(task.stay())


def run_in_fork(part: child.Answer, request: Mapping[str, object]) -> dict[str, Any]:
    """Do a part of a task in a fork of its process, and return the reply: if the part crashes, the task goes
    on."""
    with tempfile.TemporaryDirectory(prefix="part-") as folder:
        reply = Path(folder, REPLY)
        process = _start_fork(lambda: reply.write_text(json.dumps(child.log_answer(part, dict(request)))))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        return reply_of(code, reply)


def _end_orphans(siblings: Collection[int]) -> float:
    """End all processes that a process has left behind, which are now children of this one, and what those
    started; spare `siblings` and their sessions. Returns the processor seconds that they had used."""
    cpu_seconds = 0.0
    while orphans := [process for process in _children() if not {process, os.getsid(process)} & {*siblings}]:
        for process in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in orphans:
            with contextlib.suppress(ChildProcessError):
                usage = os.wait4(process, 0)[2]
                cpu_seconds += usage.ru_utime + usage.ru_stime
    return cpu_seconds


def _children() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, (task / "children").read_text(encoding="ascii").split())


if __name__ == "__main__":
    # Tasks import this module by its name: they must find what this process knows.
    importlib.import_module("ci.work.template").main()
