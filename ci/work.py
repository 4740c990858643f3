"""Named tasks in child processes, longest first, as many as cores and memory allow.

One process for each `Home` imports what its tasks need, and stays as these imports left it. Each task, a
function of a module, is done in a fork of it. Above that fork is a guard: after the task's time limit, or
when the command ends or is killed, the guard ends the task and every process that the task started."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import hashlib
import importlib
import io
import json
import math
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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ci import child
from ci.closed import limits, without_hidden
from ci.jobs import Job, core_shares, default_slots, longest_first, memory_budget
from ci.outcome import Refused, WorkerDied, opened_log, tail
from ci.progress import Line, progress
from ci.trouble import Trouble, how_it_ended, of_error, of_places, of_text, of_time
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.settings import ROOT

GRACE_SECONDS = 30.0
"""A guard ends a task whose time is up. If it does not, the guard itself is given up this much later."""

START_SECONDS = 300.0
"""For importing torch and executorch on a busy machine."""

OVERALL = "the end of the time for all of it"
"""In place of a flag, where `until` ended a task."""

UMASK = 0o022
UNFORESEEN = 70
TEMPORARY = ("TMPDIR", "TEMP", "TMP", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that name a task's own folder for temporary files."""

_PARENT_DEATH_SIGNAL, _SUBREAPER = 1, 36
_DESCRIPTORS = 3
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
    arguments: tuple[str, ...] = ()
    """Of `prepare`."""


@dataclass(frozen=True, slots=True)
class ChildTask:
    name: str
    function: str
    """MODULE:FUNCTION, which gets the request and returns the reply: both are plain values, as JSON."""
    request: Mapping[str, object]
    """Its `log` is the file that gets the output; the folders that it names are those of child.places_of."""
    timeout: float
    flag: str = "--timeout"
    """Of the command line: what sets this limit."""
    cost: Job | None = None
    export: str = ""
    """The name of the export that it needs."""
    until: float = math.inf
    """A time of time.monotonic() at which it ends, if that is before its own limit."""

    def limited(self) -> ChildTask:
        """With the time that it has if it begins now."""
        left = self.until - time.monotonic()
        return self if left >= self.timeout else replace(self, timeout=max(0.0, round(left, 1)), flag=OVERALL)


Outcome = dict[str, object] | WorkerDied | Refused
"""A task's reply, or why there is none."""


def needs_work(task: ChildTask, reply: Mapping[str, object]) -> ChildTask | Outcome:
    return task


@dataclass(frozen=True)
class Exports:
    """Tasks that others need: each is done once, and stays so that the others are forks of it."""

    tasks: Mapping[str, ChildTask]
    settle: Callable[[ChildTask, Mapping[str, object]], ChildTask | Outcome] = needs_work
    """A task that needs an export, and that export's reply, as what is to be done, or as an outcome that is
    known without any work."""


NO_EXPORTS = Exports({})


def run(
    tasks: Sequence[ChildTask],
    home: Home | Template,
    title: str,
    line: Callable[[str, Outcome], Line],
    jobs: int | None = None,
    *,
    memory: int | None = None,
    exports: Exports = NO_EXPORTS,
) -> dict[str, Outcome]:
    """The outcome of each task by name, in the order in which they ended.
    `memory` is the bytes that they may use together, unless it is most of what is free."""
    if not tasks:
        return {}
    if len({task.name for task in tasks}) != len(tasks):
        raise ValueError("two tasks have the same name")
    with template_of(home) if isinstance(home, Home) else contextlib.nullcontext(home) as template:
        schedule = _Schedule(tasks, template, exports, jobs, memory or memory_budget())
        with progress(title, list(schedule.waiting), schedule.slots, line, schedule.doing) as shown:
            schedule.run(shown)
        return schedule.outcomes


Asker = Callable[..., dict[str, object]]
"""Gives the reply to a request of these fields."""


_shared: list[dict[tuple[object, ...], Template]] = []


@contextlib.contextmanager
def sharing_templates() -> Iterator[None]:
    """Within it, work of equal homes is done by forks of one process, which imports once."""
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
    with template:
        yield template


@contextlib.contextmanager
def asking(home: Home, function: str, log: Path, timeout: float) -> Iterator[Asker]:
    """For commands whose result is not cached: each request is done in a fork of one template."""
    with template_of(home) as template:
        yield lambda **request: asked(template, function, log, timeout, request)


def asked(
    template: Template, function: str, log: Path, timeout: float, request: Mapping[str, object]
) -> dict[str, object]:
    """The reply to one request."""
    log.parent.mkdir(parents=True, exist_ok=True)
    task = ChildTask("it", function, {"log": str(log.absolute()), **request}, timeout)
    entry = template.orders.start(task, os.sched_getaffinity(0))
    while (outcome := entry.outcome()) is None:
        _wait_for_one([entry])
    if isinstance(outcome, Refused):
        raise outcome
    if isinstance(outcome, WorkerDied):
        if trouble := outcome.trouble(log):
            raise EnvironmentLacking(trouble.message, fix=trouble.fix) from outcome
        late = "give it longer with --timeout" if outcome.kind == "timeout" else ""
        raise CheckFailed(outcome.sentence(log), fix=late or session("diagnose", log)) from outcome
    log.unlink(missing_ok=True)
    return outcome


class _Schedule:
    """Which task runs when: the longest first, if cores and memory are free and its export is not being made
    by another task."""

    def __init__(
        self,
        tasks: Sequence[ChildTask],
        template: Template,
        exports: Exports,
        jobs: int | None,
        memory: int | None,
    ) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._template, self._exports, self._memory = template, exports, memory
        self.waiting = longest_first(task.cost or Job(task.name) for task in tasks)
        self.slots = min(jobs or default_slots(), len(tasks))
        shares = core_shares(self.slots, max(1, default_slots() // self.slots))
        self._free_cores = [next(shares) for _ in range(self.slots)]
        self._running: dict[str, tuple[Running, Job, set[int]]] = {}
        self._exporting: dict[str, tuple[Running, Job, set[int]]] = {}
        self._holders: dict[str, HeldExport] = {}
        self._failed: dict[str, Outcome] = {}
        self.outcomes: dict[str, Outcome] = {}

    def doing(self, name: str) -> str:
        """What a task is at, or the export that it waits for."""
        entry = self._running.get(name) or self._exporting.get(self._tasks[name].export)
        return entry[0].doing if entry else "starting its process"

    def run(self, shown: Any) -> None:
        try:
            while self.waiting or self._running or self._exporting:
                self._start_all(shown)
                entries = [entry for entry, _, _ in (*self._running.values(), *self._exporting.values())]
                if entries:
                    _wait_for_one(entries)
                for name, (entry, job, cores) in list(self._exporting.items()):
                    if (outcome := entry.outcome()) is not None:
                        del self._exporting[name]
                        self._exported(name, entry, outcome)
                        self._begin(job, cores, shown)
                for name, (entry, job, cores) in list(self._running.items()):
                    if (outcome := entry.outcome()) is not None:
                        del self._running[name]
                        self._free_cores.append(cores)
                        self._end(job, outcome, entry.seconds, shown)
        finally:
            for holder in self._holders.values():
                holder.close()

    def _start_all(self, shown: Any) -> None:
        while self._free_cores and (job := self._fitting()):
            self.waiting.remove(job)
            shown.started(job)
            self._begin(job, self._free_cores.pop(), shown)

    def _fitting(self) -> Job | None:
        jobs = [job for job in self.waiting if self._tasks[job.name].export not in self._exporting]
        busy = [job for _, job, _ in (*self._running.values(), *self._exporting.values())]
        if self._memory is None or not busy:
            # With nothing else running, even the largest may start: waiting would not free more memory.
            return jobs[0] if jobs else None
        free = self._memory - sum(job.memory for job in busy)
        return next((job for job in jobs if job.memory <= free), None)

    def _begin(self, job: Job, cores: set[int], shown: Any) -> None:
        """Start a task, or first the export that it needs."""
        task: ChildTask | Outcome = self._tasks[job.name]
        assert isinstance(task, ChildTask)
        export, place = task.export, self._template.orders
        if export in self._failed:
            task = self._failed[export]
        elif export in self._holders:
            place = self._holders[export].orders
            task = self._exports.settle(task, self._holders[export].reply)
        elif export:
            task = self._exports.tasks[export]
        if isinstance(task, ChildTask):
            try:
                entry = place.start(task, cores, holds=bool(export) and export not in self._holders)
            except OSError as error:
                if not (found := of_error(error)):
                    raise
                task = WorkerDied("crash", found.message, trouble=found)
            else:
                waits = self._running if not export or export in self._holders else self._exporting
                waits[export if waits is self._exporting else job.name] = entry, job, cores
                return
        self._free_cores.append(cores)
        self._end(job, task, 0.0, shown)

    def _exported(self, name: str, entry: Running, outcome: Outcome) -> None:
        if isinstance(outcome, dict):
            self._holders[name] = HeldExport(entry, outcome)
        else:
            entry.close()
            self._failed[name] = outcome

    def _end(self, job: Job, outcome: Outcome, seconds: float, shown: Any) -> None:
        self.outcomes[job.name] = outcome
        shown.ended(job, outcome, seconds)
        export = self._tasks[job.name].export
        others = (*(job.name for job in self.waiting), *self._running)
        if export in self._holders and not any(self._tasks[name].export == export for name in others):
            # Its memory is free for the next one.
            self._holders.pop(export).close()


def _wait_for_one(running: Sequence[Running]) -> None:
    poll = select.poll()
    for entry in running:
        poll.register(entry.channel, select.POLLIN)
    rest = min(entry.deadline for entry in running) - time.monotonic()
    poll.poll(max(0.0, rest) * 1000 + 1)


class Orders:
    """The command's end of the socket by which a process is asked to fork a guard for each task."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self.started: list[Running] = []

    def start(self, task: ChildTask, cores: set[int], *, holds: bool = False) -> Running:
        """With `holds`, the process of the task stays after its reply, for tasks that are forks of it."""
        task = task.limited()
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
        orders, their_orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, their_orders, contextlib.suppress(OSError):
            # If the process has gone, the task's channel is closed: that is its outcome.
            descriptors = [theirs.fileno(), *([their_orders.fileno()] if holds else ())]
            _send(self._control, order, *descriptors)
        if not holds:
            orders.close()
        entry = Running(task, ours, temporary, Orders(orders) if holds else None)
        self.started.append(entry)
        return entry

    def close(self) -> None:
        """End every task: a guard whose channel is closed ends what its task started, and then itself."""
        for entry in self.started:
            entry.close()
        self._control.close()


class Template:
    """The process that has made the imports of a home, which starts when it is first needed. A context
    manager: when the block ends, no process that it or a task started is left."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._orders: Orders | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._modules: dict[str, str] = {}

    def __enter__(self) -> Template:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def identity(self) -> tuple[object, ...]:
        """Of equal homes one process serves all."""
        home = self.home
        visible, _ = without_hidden(home.environment)
        return home.prepare, home.arguments, home.python, tuple(sorted(visible.items()))

    @property
    def orders(self) -> Orders:
        if self._orders is None:
            try:
                self._orders = self._started()
            except EnvironmentLacking:
                if not self.home.environment.get(child.WARM):
                    raise
                # What warms it up may end it. The same work as a task then says so.
                self.home = replace(self.home, environment={**self.home.environment, child.WARM: ""})
                self._orders = self._started()
        return self._orders

    @property
    def modules(self) -> Mapping[str, str]:
        """The digests of the toolkit's own modules that it has imported, by path."""
        _ = self.orders
        return self._modules

    def _started(self) -> Orders:
        home = self.home
        environment, hidden = without_hidden({**home.environment, child.THREADS: "1"})
        path = home.logs / f"template-{os.getpid()}-{threading.get_ident()}.log"
        log = opened_log(path)
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        orders = Orders(control)
        try:
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
            control.settimeout(START_SECONDS)
            with contextlib.suppress(OSError):
                # If it has gone, the wait for its answer says how.
                first = {"prepare": home.prepare, "arguments": list(home.arguments), "hidden": hidden}
                _send(control, first)
                if received := _received(control):
                    self._modules = received[0]["modules"]
                    control.settimeout(None)
                    path.unlink(missing_ok=True)
                    return orders
            orders.close()
            self._wait()
            assert self._process is not None
            how, text = how_it_ended(self._process.returncode), tail(path, 2000).strip()
            if found := of_text(text):
                raise EnvironmentLacking(found.message, fix=found.fix)
            message = f"{home.imports} cannot be imported ({how}):\n{text}"
            raise EnvironmentLacking(message, fix=home.fix)
        except BaseException:
            orders.close()
            # It has forked nothing yet, and its imports may take half a minute.
            self._kill()
            raise

    def close(self) -> None:
        """The process ends after its last guard."""
        if self._orders is None:
            return
        self._orders.close()
        self._wait()
        for entry in self._orders.started:
            entry.remove()
        self._orders = None

    def _wait(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@dataclass
class Running:
    """A task that was started."""

    task: ChildTask
    channel: socket.socket
    temporary: str
    orders: Orders | None = None
    """Of a task that holds."""
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
        """End it, and what is forked from it."""
        if self.orders:
            self.orders.close()
        self.channel.close()

    def remove(self) -> None:
        """Remove the temporary files of a task that has ended."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        for entry in self.orders.started if self.orders else ():
            entry.remove()

    def outcome(self) -> Outcome | None:
        """None while it runs."""
        while select.select([self.channel], [], [], 0)[0]:
            block = self.channel.recv(1 << 20)
            self._text += block
            if self._text.count(b"\n") >= 2 or not block:
                return self._ended()
        if time.monotonic() < self.deadline:
            return None
        self.close()
        return self._late(self.task.timeout)

    def _ended(self) -> Outcome:
        self.seconds = time.monotonic() - self.began
        _, _, text = self._text.partition(b"\n")
        reply: dict[str, Any] = json.loads(text) if text else {"died": -signal.SIGKILL}
        found = Trouble(**reply["trouble"]) if "trouble" in reply else None
        outcome: Outcome = reply
        if "late" in reply:
            outcome = self._late(reply["used"])
        elif "died" in reply:
            code = reply["died"]
            outcome = WorkerDied("crash", how_it_ended(code), code=code, trouble=found)
        elif found:
            outcome = WorkerDied("crash", found.message, trouble=found)
        elif "error" in reply:
            outcome = Refused(reply["error"])
        if not self.orders or outcome is not reply:
            self.close()
            self.remove()
        return outcome

    def _late(self, used: float) -> WorkerDied:
        limit = self.task.timeout
        return WorkerDied(
            "timeout",
            f"no result after {limit:g} s ({self.task.flag})",
            trouble=of_time(limit, used, self.task.flag),
        )


@dataclass(frozen=True)
class HeldExport:
    """A task that has replied and stays."""

    entry: Running
    reply: Mapping[str, object]

    @property
    def orders(self) -> Orders:
        assert self.entry.orders is not None
        return self.entry.orders

    def close(self) -> None:
        self.entry.close()
        self.entry.remove()


def _send(control: socket.socket, message: Mapping[str, object], *descriptors: int) -> None:
    """The text goes through a file in memory, so that it may be of any length."""
    text = os.memfd_create("qnn-ci-order")
    try:
        with os.fdopen(os.dup(text), "w", encoding="utf-8") as stream:
            json.dump(message, stream)
        socket.send_fds(control, [b"order"], [text, *descriptors])
    finally:
        os.close(text)


def _received(control: socket.socket) -> tuple[child.Order, list[int]] | None:
    """The next message, with its descriptors; None if whoever sends has gone."""
    message, descriptors, _, _ = socket.recv_fds(control, 16, _DESCRIPTORS)
    if not message:
        return None
    text, *others = descriptors
    with os.fdopen(text, encoding="utf-8") as stream:
        stream.seek(0)
        return json.load(stream), others


def main() -> None:
    """The template's whole life."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # Commands that are killed while this process imports do not leave it behind.
    threading.Thread(target=child.end_with, args=[os.getppid()], daemon=True).start()
    if (first := _received(control)) is None:
        return
    home, _ = first
    child.hidden.update(home["hidden"])
    faulthandler.enable()
    # A crash loses what Python still holds back: the log must have what a model printed before it.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    gc.set_threshold(child.GC_THRESHOLD, *gc.get_threshold()[1:])
    with child.threads_for_libraries():
        _function(home["prepare"])(*home["arguments"])
    prepared.update(own_modules())
    # Imported objects are never garbage: keep later collections from walking them.
    gc.collect()
    gc.freeze()
    _send(control, {"modules": prepared})
    _serve(control)


prepared: dict[str, str] = {}
"""In the processes of tasks: the digests of the toolkit's modules that their home imported."""

USERS = "ci/models/shipped/"
"""Models that the toolkit ships are a user's: they count by what they build."""


def own_modules() -> dict[str, str]:
    """The digests of the toolkit's modules that this process has imported, by path."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    paths = {os.path.relpath(file, ROOT): file for file in files if file and file.startswith(f"{ROOT}/")}
    return {
        path: hashlib.sha256(Path(file).read_bytes()).hexdigest()
        for path, file in sorted(paths.items())
        if path.startswith(OWN) and not path.startswith(USERS)
    }


OWN = ("ci/", "provisioning/", "qnn_ci/")


def _serve(control: socket.socket) -> None:
    """Fork a guard for each order, until whoever gives them has gone and the last guard has ended."""
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
                order, descriptors = received
                guard = os.fork()
                if not guard:
                    control.close()
                    _guard(order, *(socket.socket(fileno=number) for number in descriptors))
                for number in descriptors:
                    os.close(number)
                watched = os.pidfd_open(guard)
                guards[watched] = guard
                poll.register(watched, select.POLLIN)


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    # As an import statement does it: where the user has a package of our name, that finds ours.
    found: Callable[..., Any] = getattr(__import__(module, globals(), fromlist=[function]), function)
    return found


def _guard(order: child.Order, channel: socket.socket, orders: socket.socket | None = None) -> None:
    """The whole life of the process above a task's. With `orders`, that one stays to be forked."""
    try:
        os.setsid()
        _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
        os.sched_setaffinity(0, order["cores"])
        receive, send = os.pipe()
        process = os.fork()
        if not process:
            os.close(receive)
            channel.close()
            _work(order, send, orders)
        os.close(send)
        if orders:
            orders.close()
        with contextlib.suppress(OSError):
            channel.sendall(f"{process}\n".encode())
        text, code = _result_of(process, receive, channel, order["timeout"], holds=bool(orders))
        places = [*child.places_of(order["request"]), Path(order["temporary"])]
        # Now: a disk may be full only until the temporary files are removed.
        full = of_places(places) if code else None
        stays = bool(orders and text and not code)
        if not stays:
            _end_children()
        reply: dict[str, object]
        if code is None:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            reply = {"late": order["timeout"], "used": used.ru_utime + used.ru_stime}
        elif code or not text:
            reply = {"died": code, **({"trouble": asdict(full)} if full else {})}
        else:
            reply = json.loads(text)
        with contextlib.suppress(OSError):
            channel.sendall(f"{json.dumps(reply)}\n".encode())
            if stays:
                # Until the command closes it.
                channel.recv(1)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        _end_children()
        os._exit(UNFORESEEN)


def _result_of(
    process: int, receive: int, channel: socket.socket, timeout: float, *, holds: bool
) -> tuple[bytes, int | None]:
    """What the task wrote and how its process ended; None if its time was up, or if nobody waits for it. One
    that holds has not ended when it has written: that is 0."""
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
                if holds and text and not reading:
                    return text, 0
            # A process that the task started may hold the pipe open, but the reply is there already.
            if not running and not select.select([receive], [], [], 0)[0]:
                reading = False
            if not reading:
                with contextlib.suppress(KeyError):
                    poll.unregister(receive)
    return text, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _work(order: child.Order, send: int, orders: socket.socket | None) -> None:
    """The whole life of a task's process."""
    try:
        _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        temporary: str = order["temporary"]
        os.environ |= dict.fromkeys(TEMPORARY, temporary)
        tempfile.tempdir = temporary
        os.umask(UMASK)
        # Python takes bytecode for that of a source of the same size and second.
        sys.dont_write_bytecode = True
        for number, soft, hard in limits():
            resource.setrlimit(number, (soft, hard))
        if limit := int(child.hidden.get(child.MEMORY, "0")):
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        # Python's own generator has seen to that itself, and torch's begins alike in every process.
        if numpy := sys.modules.get("numpy.random"):
            numpy.seed()
        reply = child.logged(_function(order["function"]), dict(order["request"]))
        if late := sorted(own_modules().keys() - prepared.keys()):
            reply["imported_late"] = late
        stays = orders is not None and not {"error", "trouble"} & reply.keys()
        if stays:
            gc.collect()
            gc.freeze()
        with os.fdopen(send, "w", encoding="utf-8") as stream:
            json.dump(reply, stream)
        child.flush_output()
        if orders and stays:
            _serve(orders)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        child.flush_output()
    finally:
        # A full disk takes no traceback either: this process must never go on as its parent.
        os._exit(UNFORESEEN)


def in_fork(part: child.Answer, request: Mapping[str, object]) -> Outcome:
    """Do a part of a task in a fork of its process: if it crashes, the task goes on."""
    receive, send = os.pipe()
    child.flush_output()
    process = os.fork()
    if not process:
        os.close(receive)
        _work_part(part, dict(request), send)
    os.close(send)
    with os.fdopen(receive, "rb") as stream:
        text = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code or not text:
        found = of_places([*child.places_of(request), Path(tempfile.gettempdir())])
        return WorkerDied("crash", how_it_ended(code), code=code, trouble=found)
    reply: dict[str, Any] = json.loads(text)
    if "trouble" in reply:
        found = Trouble(**reply["trouble"])
        return WorkerDied("crash", found.message, trouble=found)
    return Refused(reply["error"]) if "error" in reply else reply


def _work_part(part: child.Answer, request: child.Order, send: int) -> None:
    try:
        _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        reply = child.logged(part, request)
        with os.fdopen(send, "w", encoding="utf-8") as stream:
            json.dump(reply, stream)
        child.flush_output()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        child.flush_output()
    finally:
        # A full disk takes no traceback either: this process must never go on as its parent.
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
    # Tasks import this module by its name: they must find what this process knows.
    importlib.import_module("ci.work").main()
