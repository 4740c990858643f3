"""Named tasks in child processes, longest first, as many as cores and memory allow.

One process for each `Home` imports what its tasks need, and stays as these imports left it. Each task, a
function of a module, is done in a fork of it. Above that fork is a guard: after the task's time limit, or
when the command ends or is killed, the guard ends the task and every process that the task started."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ci.engine.closed import limits, without_hidden
from ci.engine.jobs import Job, core_shares, default_slots, longest_first, memory_budget
from ci.engine.progress import Line, progress
from ci.engine.trouble import Trouble, how_it_ended, of_error, of_places, of_text, of_time
from ci.engine.workers import child
from ci.engine.workers.parent import Refused, WorkerDied, opened_log, tail
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import ROOT

GRACE_SECONDS = 30.0
"""A guard ends a task whose time is up. If it does not, the guard itself is given up this much later."""

START_SECONDS = 300.0
"""For importing torch and executorch on a busy machine."""

UMASK = 0o022
UNFORESEEN = 70
TEMPORARY = ("TMPDIR", "TEMP", "TMP", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that name a task's own folder for temporary files."""

_PARENT_DEATH_SIGNAL, _SUBREAPER = 1, 36
_DESCRIPTORS = 2
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Home:
    """What the processes of some tasks have in common."""

    environment: Mapping[str, str]
    logs: Path
    prepare: str
    """MODULE:FUNCTION, which imports what the tasks need."""
    imports: str
    """What it imports, for the message if that fails."""
    fix: str
    python: str = sys.executable


@dataclass(frozen=True, slots=True)
class ChildTask:
    name: str
    function: str
    """MODULE:FUNCTION, which gets the request and returns the reply: both are plain values, as JSON."""
    request: Mapping[str, Any]
    """Its `log` is the file that gets the output; the folders that it names are those of child.places_of."""
    timeout: float
    flag: str = "--timeout"
    """Of the command line: what sets this limit."""
    cost: Job | None = None


Outcome = dict[str, Any] | WorkerDied | Refused
"""A task's reply, or why there is none."""


def run(
    tasks: Sequence[ChildTask],
    home: Home,
    title: str,
    line: Callable[[str, Outcome], Line],
    jobs: int | None = None,
    *,
    memory: int | None = None,
) -> dict[str, Outcome]:
    """The outcome of each task by name, in the order in which they ended. `memory` is the bytes that they may
    use together, unless it is most of what is free."""
    named = {task.name: task for task in tasks}
    if not named:
        return {}
    if len(named) != len(tasks):
        raise ValueError("two tasks have the same name")
    waiting = longest_first(task.cost or Job(task.name) for task in tasks)
    slots = min(jobs or default_slots(), len(tasks))
    threads, memory = max(1, default_slots() // slots), memory or memory_budget()
    shares = core_shares(slots, threads)
    free_cores = [next(shares) for _ in range(slots)]
    running: dict[str, tuple[Running, Job, set[int]]] = {}
    outcomes: dict[str, Outcome] = {}

    def doing(name: str) -> str:
        return running[name][0].doing if name in running else "starting its process"

    with progress(title, waiting, slots, line, doing) as shown, Template(home, threads) as template:

        def end(job: Job, outcome: Outcome, seconds: float) -> None:
            outcomes[job.name] = outcome
            shown.ended(job, outcome, seconds)

        while waiting or running:
            while free_cores and (job := _fitting(waiting, [job for _, job, _ in running.values()], memory)):
                waiting.remove(job)
                shown.started(job)
                try:
                    entry = template.start(named[job.name], free_cores[-1])
                except OSError as error:
                    if not (found := of_error(error)):
                        raise
                    end(job, WorkerDied("crash", found.message, trouble=found), 0.0)
                else:
                    running[job.name] = entry, job, free_cores.pop()
            if running:
                _wait_for_one([entry for entry, _, _ in running.values()])
            for name, (entry, job, cores) in list(running.items()):
                if (outcome := entry.outcome()) is not None:
                    del running[name]
                    free_cores.append(cores)
                    end(job, outcome, entry.seconds)
    return outcomes


def _fitting(waiting: Sequence[Job], running: Sequence[Job], memory: int | None) -> Job | None:
    if memory is None or not running:
        # With nothing else running, even the largest may start: waiting would not free more memory.
        return waiting[0] if waiting else None
    free = memory - sum(job.memory for job in running)
    return next((job for job in waiting if job.memory <= free), None)


def _wait_for_one(running: Sequence[Running]) -> None:
    poll = select.poll()
    for entry in running:
        poll.register(entry.channel, select.POLLIN)
    rest = min(entry.deadline for entry in running) - time.monotonic()
    poll.poll(max(0.0, rest) * 1000 + 1)


class Template:
    """The process that has made the imports of a home, and forks a guard for each task. A context manager:
    when the block ends, no process that it or a task started is left."""

    def __init__(self, home: Home, threads: int) -> None:
        self._home, self._threads = home, threads
        self._started: list[Running] = []
        environment, hidden = without_hidden({**home.environment, child.THREADS: str(threads)})
        self._log = home.logs / f"template-{os.getpid()}-{threading.get_ident()}.log"
        log = opened_log(self._log)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log:
            self._process = subprocess.Popen(
                [home.python, "-m", "ci.work", str(theirs.fileno())],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        first = {"prepare": home.prepare, "hidden": hidden}
        with contextlib.suppress(OSError):
            # If it has gone, the wait for its answer says how.
            _send(self._control, first)

    def __enter__(self) -> Template:
        try:
            self._control.settimeout(START_SECONDS)
            with contextlib.suppress(OSError):
                if self._control.recv(16):
                    self._log.unlink(missing_ok=True)
                    return self
            self.close()
            how, text = how_it_ended(self._process.returncode), tail(self._log, 2000).strip()
            if found := of_text(text):
                raise EnvironmentLacking(found.message, fix=found.fix)
            message = f"{self._home.imports} cannot be imported ({how}):\n{text}"
            raise EnvironmentLacking(message, fix=self._home.fix)
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, task: ChildTask, cores: set[int]) -> Running:
        # Made here, because a guard that is killed cannot remove it.
        temporary = tempfile.mkdtemp(prefix="qnn-ci-")
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        order = {
            "function": task.function,
            "request": dict(task.request),
            "timeout": task.timeout,
            "temporary": temporary,
            "cores": sorted(cores),
        }
        with theirs, contextlib.suppress(OSError):
            # If the template has gone, the task's channel is closed: that is its outcome.
            _send(self._control, order, theirs.fileno())
        entry = Running(task, ours, temporary)
        self._started.append(entry)
        return entry

    def close(self) -> None:
        """End every task: a guard whose channel is closed ends what its task started, and then itself; the
        template ends after its last guard."""
        for entry in self._started:
            entry.close()
        self._control.close()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for entry in self._started:
            shutil.rmtree(entry.temporary, ignore_errors=True)


@dataclass
class Running:
    """A task that was started."""

    task: ChildTask
    channel: socket.socket
    temporary: str
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    _text: bytes = b""

    @property
    def deadline(self) -> float:
        return self.began + self.task.timeout + GRACE_SECONDS

    @property
    def doing(self) -> str:
        """What it says that it does (child.doing): the name of its process."""
        with contextlib.suppress(OSError):
            process = int(self._text.partition(b"\n")[0] or 0)
            name = Path(f"/proc/{process}/comm").read_text(encoding="utf-8", errors="replace").strip()
            if name.startswith(child.DOING):
                return name.removeprefix(child.DOING)
        return ""

    def close(self) -> None:
        self.channel.close()

    def outcome(self) -> Outcome | None:
        """None while it runs."""
        while select.select([self.channel], [], [], 0)[0]:
            block = self.channel.recv(1 << 20)
            self._text += block
            if not block:
                return self._ended()
        if time.monotonic() < self.deadline:
            return None
        self.close()
        return self._late(self.task.timeout)

    def _ended(self) -> Outcome:
        self.seconds = time.monotonic() - self.began
        self.close()
        shutil.rmtree(self.temporary, ignore_errors=True)
        _, _, text = self._text.partition(b"\n")
        if not text:
            return WorkerDied("crash", how_it_ended(-signal.SIGKILL), code=-signal.SIGKILL)
        reply: dict[str, Any] = json.loads(text)
        found = Trouble(**reply["trouble"]) if "trouble" in reply else None
        if "late" in reply:
            return self._late(reply["used"])
        if "died" in reply:
            code = reply["died"]
            return WorkerDied("crash", how_it_ended(code), code=code, trouble=found)
        if found:
            return WorkerDied("crash", found.message, trouble=found)
        return Refused(reply["error"]) if "error" in reply else reply

    def _late(self, used: float) -> WorkerDied:
        limit = self.task.timeout
        return WorkerDied(
            "timeout", f"no result after {limit:g} s ({self.task.flag})", trouble=of_time(limit, used)
        )


def _send(control: socket.socket, message: Mapping[str, Any], *descriptors: int) -> None:
    """The text goes through a file in memory, so that it may be of any length."""
    text = os.memfd_create("qnn-ci-order")
    try:
        with os.fdopen(os.dup(text), "w", encoding="utf-8") as stream:
            json.dump(message, stream)
        socket.send_fds(control, [b"order"], [text, *descriptors])
    finally:
        os.close(text)


def _received(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message, with its descriptors; None if whoever sends has gone."""
    message, descriptors, _, _ = socket.recv_fds(control, 16, _DESCRIPTORS)
    if not message:
        return None
    text, *others = descriptors
    with os.fdopen(text, encoding="utf-8") as stream:
        stream.seek(0)
        order: dict[str, Any] = json.load(stream)
    return order, others


def main() -> None:
    """The template's whole life."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # Commands that are killed while this process imports do not leave it behind.
    threading.Thread(target=child.end_with, args=[os.getppid()], daemon=True).start()
    if (first := _received(control)) is None:
        return
    home, _ = first
    child.hidden.update(home["hidden"])
    with child.threads_for_libraries():
        _function(home["prepare"])()
    # Imported objects are never garbage: keep later collections from walking them.
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    # What a killed guard leaves behind becomes a child of this process.
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    guards: dict[int, int] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    open_to_orders = True
    while open_to_orders or guards:
        for ready, _ in poll.poll():
            if ready in guards:
                poll.unregister(ready)
                os.waitpid(guards.pop(ready), 0)
                os.close(ready)
                _end_children(without=set(guards.values()))
            elif (received := _received(control)) is None:
                open_to_orders = False
                poll.unregister(control)
            else:
                order, (channel,) = received
                guard = os.fork()
                if not guard:
                    control.close()
                    _guard(order, socket.socket(fileno=channel))
                os.close(channel)
                watched = os.pidfd_open(guard)
                guards[watched] = guard
                poll.register(watched, select.POLLIN)


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _guard(order: Mapping[str, Any], channel: socket.socket) -> None:
    """The whole life of the process above a task's."""
    try:
        os.setsid()
        _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
        os.sched_setaffinity(0, order["cores"])
        receive, send = os.pipe()
        process = os.fork()
        if not process:
            os.close(receive)
            channel.close()
            _work(order, send)
        os.close(send)
        with contextlib.suppress(OSError):
            channel.sendall(f"{process}\n".encode())
        text, code = _result_of(process, receive, channel, order["timeout"])
        places = [*child.places_of(order["request"]), Path(order["temporary"])]
        # Now: a disk may be full only until the temporary files are removed.
        full = of_places(places) if code else None
        _end_children()
        reply: dict[str, Any]
        if code is None:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            reply = {"late": order["timeout"], "used": used.ru_utime + used.ru_stime}
        elif code or not text:
            reply = {"died": code, **({"trouble": asdict(full)} if full else {})}
        else:
            reply = json.loads(text)
        with contextlib.suppress(OSError):
            channel.sendall(json.dumps(reply).encode())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        _end_children()
        os._exit(UNFORESEEN)


def _result_of(
    process: int, receive: int, channel: socket.socket, timeout: float
) -> tuple[bytes, int | None]:
    """What the task wrote and how its process ended; None if its time was up, or if nobody waits for it."""
    deadline = time.monotonic() + timeout
    ended = os.pidfd_open(process)
    poll = select.poll()
    for file in (receive, ended, channel.fileno()):
        poll.register(file, select.POLLIN)
    text, reading, running = b"", True, True
    while reading or running:
        rest = deadline - time.monotonic()
        if rest <= 0:
            return text, None
        for ready, _ in poll.poll(rest * 1000 + 1):
            if ready == channel.fileno():
                return text, None
            if ready == ended:
                running = False
                poll.unregister(ended)
            else:
                block = os.read(receive, 1 << 20)
                text += block
                reading = bool(block)
            # A process that the task started may hold the pipe open, but the reply is there already.
            if not running and not select.select([receive], [], [], 0)[0]:
                reading = False
            if not reading:
                with contextlib.suppress(KeyError):
                    poll.unregister(receive)
    return text, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _work(order: Mapping[str, Any], send: int) -> None:
    """The whole life of a task's process."""
    try:
        _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        os.environ |= dict.fromkeys(TEMPORARY, order["temporary"])
        tempfile.tempdir = order["temporary"]
        os.umask(UMASK)
        for number, soft, hard in limits():
            resource.setrlimit(number, (soft, hard))
        if limit := int(child.hidden.get(child.MEMORY, "0")):
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        # Python's own generator has seen to that itself, and torch's begins alike in every process.
        if numpy := sys.modules.get("numpy.random"):
            numpy.seed()
        reply = child.logged(_function(order["function"]), dict(order["request"]))
        with os.fdopen(send, "w", encoding="utf-8") as stream:
            json.dump(reply, stream)
        child.flush_output()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    child.flush_output()
    os._exit(UNFORESEEN)


def _end_children(without: set[int] | frozenset[int] = frozenset()) -> None:
    """End every child of this process. Their own children become ours, and are ended too."""
    while children := [process for process in _children() if process not in without]:
        for process in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)


def _children() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, (task / "children").read_text(encoding="ascii").split())


if __name__ == "__main__":
    main()
