"""The processes of tasks: started, told to fork, watched, and ended.

One `Template` for each `Home` makes the imports and stays in that state; each task runs in a fork of it
(`Running`), which it is told to make over a socket (`Orders`). When a task ends, when its time is up, or when
the command ends or is killed, every process that the task started ends too. The folder for its temporary
files has its order, its reply and what it is doing. `asking` answers requests of a command whose result is
not cached; `schedule` runs many tasks."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci.work import child
from ci.work.jobs import (
    Job,
    idle_seconds,
)
from ci.work.logs import opened_log, tail
from ci.work.outcome import Failure, Refused, TaskOutcome, reply_of, task_outcome
from ci.work.template import ORDER, READY, REPLY
from ci.work.trouble import how_it_ended, trouble_of_text
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.settings import ROOT

GRACE_SECONDS = 30.0
"""A task whose time is up is told to end. If nothing reports its end, it is given up after this many
seconds."""

__all__ = ["Asker", "ChildTask", "Home", "asking", "sharing_templates"]


@dataclass(frozen=True, slots=True)
class Home:
    """The environment and imports that the processes of some tasks have in common."""

    environment: Mapping[str, str]
    logs: Path
    prepare: str
    """MODULE:FUNCTION, which imports what the tasks need."""
    imports: str
    """What it imports; the message says so if that fails."""
    fix: str
    python: str = sys.executable
    arguments: tuple[str, ...] = ()
    """The arguments of `prepare`."""


@dataclass(frozen=True, slots=True)
class ChildTask:
    name: str
    function: str
    """MODULE:FUNCTION, which receives the request and returns the reply: both are plain values, as JSON."""
    request: Mapping[str, object]
    """The request; child.folders_of says which of its fields name folders to write to."""
    timeout: float
    log: Path
    """The file that receives its output; the request has it as `log`."""
    cost: Job | None = None
    export: str = ""
    """The name of the export that it needs."""
    common: ChildTask | None = None
    """A task that begins the work of several tasks, and holds where they part (template.hold): each of them
    goes on in a fork of it. Whatever fails so is done again as a whole."""
    until: float = math.inf
    """The value of time.monotonic() at which the task ends, if that is before its own limit."""


Asker = Callable[..., dict[str, object]]
"""Returns the reply to a request with these fields."""

_shared: list[dict[tuple[object, ...], Template]] = []


@contextlib.contextmanager
def sharing_templates() -> Iterator[None]:
    """Within this context, one process, which imports once, serves the work of all equal homes."""
    if _shared:
        yield
        return
    templates: dict[tuple[object, ...], Template] = {}
    _shared.append(templates)
    try:
        yield
    finally:
        _shared.clear()
        for template in templates.values():
            template.close()


@contextlib.contextmanager
def template_of(home: Home) -> Iterator[Template]:
    template = Template(home)
    if _shared:
        yield _shared[0].setdefault(template.identity, template)
        return
    with contextlib.closing(template):
        yield template


@contextlib.contextmanager
def asking(home: Home, function: str, log: Path, timeout: float) -> Iterator[Asker]:
    """Yield a function that answers requests, each in a fork of one template. For commands whose result is
    not cached."""
    with template_of(home) as template:
        yield lambda **request: _ask(template, function, log, timeout, request)


def _ask(
    template: Template, function: str, log: Path, timeout: float, request: Mapping[str, object]
) -> dict[str, object]:
    """Return the reply to one request."""
    log.parent.mkdir(parents=True, exist_ok=True)
    task = ChildTask("it", function, request, timeout, log)
    entry = template.orders.start(task, os.sched_getaffinity(0))
    while (outcome := entry.outcome()) is None:
        wait_for_one([entry])
    if isinstance(outcome, Failure):
        if outcome.details:
            raise Refused(outcome.details)
        error = EnvironmentLacking if outcome.blame == "machine" else CheckFailed
        raise error(outcome.message, fix=outcome.fix)
    log.unlink(missing_ok=True)
    return outcome


def wait_for_one(entries: Sequence[Running]) -> None:
    poll = select.poll()
    for entry in entries:
        poll.register(entry.channel, select.POLLIN)
    rest = min(entry.deadline for entry in entries) - time.monotonic()
    poll.poll(max(0.0, rest) * 1000 + 1)


class Orders:
    """The command's end of the socket on which a process is told to fork itself for each task."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self.entries: list[Running] = []

    def start(self, task: ChildTask, cores: set[int], *, holds: bool = False) -> Running:
        """Start a task. If `holds`, its process stays after the reply, so that other tasks can be forks of
        it."""
        # Made here, because a process that is killed cannot remove it.
        folder = Path(tempfile.mkdtemp(prefix="qnn-ci-"))
        request = {**task.request, "log": str(task.log.absolute())}
        order = {"function": task.function, "request": request, "cores": sorted(cores)}
        try:
            (folder / ORDER).write_text(json.dumps(order), encoding="utf-8")
            channel, theirs = socket.socketpair()
            orders, their_orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        with theirs, their_orders, contextlib.suppress(OSError):
            # If the process has gone, the task's channel is closed: that is its outcome.
            files = [theirs.fileno(), *([their_orders.fileno()] if holds else ())]
            socket.send_fds(self._control, [os.fsencode(folder)], files)
        if not holds:
            orders.close()
        entry = Running(task, channel, folder, Orders(orders) if holds else None)
        self.entries.append(entry)
        return entry

    def close(self) -> None:
        """End every task."""
        for entry in self.entries:
            entry.close()
        self._control.close()


class Template:
    """The process that has made the imports of a home. It starts when it is first needed. After `close`, no
    process that it or a task started is left."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._orders: Orders | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """Two equal homes have the same identity, so that one process serves both."""
        home = self.home
        return home.prepare, home.arguments, home.python, tuple(sorted(home.environment.items()))

    @property
    def orders(self) -> Orders:
        if self._orders is None:
            self._orders = self._start()
        return self._orders

    def _start(self) -> Orders:
        home = self.home
        path = home.logs / f"template-{os.getpid()}-{threading.get_ident()}.log"
        log = opened_log(path)
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        orders = Orders(control)
        try:
            with theirs, log:
                self._process = subprocess.Popen(
                    [
                        home.python,
                        "-m",
                        "ci.work.template",
                        str(theirs.fileno()),
                        home.prepare,
                        *home.arguments,
                    ],
                    cwd=ROOT,
                    env=dict(home.environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            if control.recv(len(READY)):
                path.unlink(missing_ok=True)
                return orders
            ending, text = how_it_ended(self._process.wait()), tail(path, 2000).strip()
            if trouble := trouble_of_text(text):
                raise EnvironmentLacking(trouble.message, fix=trouble.fix)
            message = f"{home.imports} cannot be imported ({ending}):\n{text}"
            raise EnvironmentLacking(message, fix=home.fix)
        except BaseException:
            orders.close()
            # It has forked nothing yet, and its imports may take half a minute.
            self._kill()
            raise

    def close(self) -> None:
        """End the process, which waits for the processes that it forked."""
        if self._orders is None or self._process is None:
            return
        self._orders.close()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
        for entry in self._orders.entries:
            entry.remove()
        self._orders = None

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@dataclass
class Running:
    """A task that was started. One that holds has orders, and a reply after its end."""

    task: ChildTask
    channel: socket.socket
    folder: Path
    orders: Orders | None = None
    reply: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0
    _start: float = field(default_factory=time.monotonic)
    _idle: float = field(default_factory=idle_seconds)
    _late: bool = False

    @property
    def to_forks(self) -> Orders:
        """Its forks get their orders here."""
        assert self.orders is not None
        return self.orders

    @property
    def _limit(self) -> float:
        """The seconds that the task may take."""
        return max(0.0, min(self.task.timeout, round(self.task.until - self._start, 1)))

    @property
    def deadline(self) -> float:
        return self._start + self._limit + (GRACE_SECONDS if self._late else 0.0)

    @property
    def doing(self) -> str:
        """What the task says it is doing (child.doing)."""
        try:
            return (self.folder / child.DOING).read_text(encoding="utf-8")
        except OSError:
            return ""

    def close(self) -> None:
        """End the task and its forks."""
        if self.orders:
            self.orders.close()
        self.channel.close()

    def remove(self) -> None:
        """Remove the temporary files of a task that has ended."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for entry in self.orders.entries if self.orders else ():
            entry.remove()

    def outcome(self) -> TaskOutcome | None:
        """The outcome; None while the task runs. A task whose time is up is ended, and then has an outcome,
        too."""
        if select.select([self.channel], [], [], 0)[0]:
            return self._outcome_of(self.channel.recv(1 << 12))
        if time.monotonic() < self.deadline:
            return None
        if self._late:
            return self._outcome_of(b"")
        self._late = True
        self.channel.shutdown(socket.SHUT_WR)
        return None

    def _outcome_of(self, text: bytes) -> TaskOutcome:
        self.seconds = time.monotonic() - self._start
        code, cpu_seconds = json.loads(text) if text else (-signal.SIGKILL, 0.0)
        if self._late and code:
            flag = "--timeout" if self._limit == self.task.timeout else ""
            idle = idle_seconds() - self._idle
            outcome: TaskOutcome = Failure.late(self._limit, cpu_seconds, flag, self.task.log, idle)
        else:
            # Now: a disk may be full only until the temporary files are removed.
            places = [*child.folders_of(self.task.request), self.task.log.parent, self.folder]
            outcome = task_outcome(reply_of(code, self.folder / REPLY), self.task.log, places)
        if self.orders and isinstance(outcome, dict):
            self.reply = outcome
        else:
            self.close()
            self.remove()
        return outcome
