"""The stage's side of workers: start one, give it orders, and replace it when an order takes it down."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, TypeVar

from ci.engine.closed import limits, without_hidden
from ci.engine.jobs import Job
from ci.engine.trouble import Trouble, how_it_ended, of_ending, of_error, of_text, of_time
from ci.engine.watch import Touched
from ci.engine.workers.child import DOING
from ci.engine.workers.fork_server import FORK_SERVERS
from ci.engine.workers.forked import ForkedProcess, OwnProcess, forked
from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking, ToolkitError, UsageError
from provisioning.base.settings import ROOT

GRACE_SECONDS = 30.0
"""A worker ends a fork that takes too long. If it does not, the worker itself is ended this much later."""

START_SECONDS = 300.0
"""For importing torch and executorch on a busy machine."""

RECYCLE_AT = 3 << 30
"""A worker that uses more memory than this after an order is replaced before the next one."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What every worker of a run has in common."""

    command: tuple[str, ...]
    """Python's arguments for the program, which calls `ci.engine.workers.child.serve`."""
    environment: Mapping[str, str]
    logs: Path
    timeout: float
    imports: str
    """What the program imports, for the message if that fails."""
    fix: str
    forks: bool = False
    """Whether each order is done in a fork of the worker (`serve(..., forks=True)`), so the worker survives a
    crash."""
    python: str = sys.executable
    flag: str = "--timeout"
    """Which the user types for another timeout."""
    until: float = math.inf
    """A time of time.monotonic() at which every order ends, whatever its timeout."""


BY_ITSELF = re.compile(r"ended by SIG(SEGV|ABRT|ILL|FPE|TRAP)\b")


class WorkerDied(Exception):
    """The worker ended during an order, or was ended because no reply came in time."""

    def __init__(
        self,
        kind: Literal["crash", "timeout"],
        how: str,
        touched: Mapping[str, Any] | None = None,
        *,
        code: int = 0,
        trouble: Trouble | None = None,
    ) -> None:
        super().__init__(f"{kind}: {how}")
        self.kind, self.how, self.code = kind, how, code
        self.touched = touched
        """What the fork touched that did the order, if it crashed."""
        self._trouble = trouble

    def trouble(self, log: Path) -> Trouble | None:
        """What the machine did to it; None if the work is to blame."""
        places = (log.parent, Path(tempfile.gettempdir()))
        return self._trouble or of_ending("process", self.code, last_words(log), places)

    @property
    def is_own_crash(self) -> bool:
        """Whether it crashed by a signal of its own, and it is known what it touched: it would again."""
        return self.kind == "crash" and self.touched is not None and bool(BY_ITSELF.search(self.how))

    def sentence(self, log: Path) -> str:
        """How it ended, for a reader who knows nothing of workers, with the last line of its log."""
        if self.kind == "timeout":
            return self.how
        words = last_words(log)
        return f"the process {self.how}" + (f"; its last words: {words[-400:]}" if words else "")


class Refused(ToolkitError):
    """The work did not succeed, and its worker says why: a reply with `error` (child.reporting)."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        fix = Fix.read(error["parts"]) if "parts" in error else error["fix"]
        super().__init__(str(error["message"]), fix=fix, exit_code=int(error["exit_code"]))
        self.kind = str(error["kind"])
        self.details = error


class Worker:
    """One process. Not thread-safe, except for `stop`."""

    touched: Mapping[str, Any]
    """What it touched before its first order, if it forks."""
    seen: Touched
    """What its orders touched, the failed ones too; for the caller to empty."""
    asked: Mapping[str, str]
    """The variables that the last order asked for and did not have (`Touched.asked`)."""
    resident: int = 0
    """Its memory after the last order, in bytes."""
    gone: bool = False

    def __init__(self, setup: WorkerSpec) -> None:
        self.setup = setup
        self.asked = {}
        log = setup.logs / f"worker-{os.getpid()}-{threading.get_ident()}.log"
        errors = opened_log(log)
        receive, send = os.pipe()
        environment, hidden = without_hidden(setup.environment)
        hidden.pop(FORK_SERVERS, None)
        own: OwnProcess | ForkedProcess | None = None
        with errors:
            if setup.forks and setup.python == sys.executable:
                outputs = send, errors.fileno()
                own = forked(setup.command, environment, hidden, outputs, START_SECONDS)
            self._process = own or OwnProcess(
                [setup.python, *setup.command, str(send)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                pass_fds=[send],
                start_new_session=True,
            )
        os.close(send)
        self._receive = receive
        self.seen = Touched()
        self._pending = b""
        self._temporary = ""
        self._ending = threading.Lock()
        self._send(hidden)
        try:
            self.touched = self._reply(START_SECONDS).get("touched", {})
            if setup.forks:
                # Only now: at the end of exec the kernel sets the stack's limit back to what it was before.
                with contextlib.suppress(ProcessLookupError):
                    for number, soft, hard in limits():
                        resource.prlimit(self._process.pid, number, (soft, hard))
        except WorkerDied as gone:
            text = tail(log, 2000).strip()
            if trouble := of_text(text):
                raise EnvironmentLacking(trouble.message, fix=trouble.fix) from gone
            raise EnvironmentLacking(
                f"{setup.imports} cannot be imported ({gone.how}):\n{text}", fix=setup.fix
            ) from gone
        log.unlink(missing_ok=True)

    @property
    def doing(self) -> str:
        """What its work says that it does (child.doing): the process's own name, or that of its fork."""
        with contextlib.suppress(OSError):
            tasks = Path(f"/proc/{self._process.pid}/task")
            forks = [part for task in tasks.iterdir() for part in (task / "children").read_text().split()]
            for process in [*forks, str(self._process.pid)]:
                name = Path(f"/proc/{process}/comm").read_text(encoding="utf-8", errors="replace").strip()
                if name.startswith(DOING):
                    return name.removeprefix(DOING)
        return ""

    @property
    def unusable(self) -> bool:
        return self.gone or self.resident > RECYCLE_AT

    def keep_to(self, cores: set[int]) -> None:
        """Run only on these cores, with everything it starts."""
        with contextlib.suppress(ProcessLookupError):
            # If it has gone, the next order notices.
            for thread in Path(f"/proc/{self._process.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores)

    def ask(self, order: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """The reply to an order. Raises Refused, and Gone if the process, or the fork that did the order,
        ended."""
        timeout = self.setup.timeout if timeout is None else timeout
        timeout = max(min(timeout, self.setup.until - time.monotonic()), 0.0)
        if self.setup.forks:
            # Made here, because a worker that is killed cannot remove it.
            self._temporary = tempfile.mkdtemp(prefix="qnn-ci-")
            order = {**order, "timeout": timeout, "temporary": self._temporary}
            patience = timeout + GRACE_SECONDS
        else:
            patience = timeout
        self._send(order)
        try:
            reply = self._reply(patience)
        except WorkerDied:
            self.seen |= Touched(unseen=["what it touched is not known, since its worker died too"])
            raise
        self.seen |= Touched.of(reply.get("touched", {}))
        self.asked = reply.get("touched", {}).get("asked", {})
        self.resident = int(reply.get("resident", 0))
        trouble = Trouble(**reply["trouble"]) if "trouble" in reply else None
        if "late" in reply:
            trouble = of_time(timeout, reply["used"], self.setup.flag)
            raise WorkerDied("timeout", f"no result after {round(timeout, 1):g} s", trouble=trouble)
        if "died" in reply:
            code = reply["died"]
            raise WorkerDied("crash", how_it_ended(code), reply.get("touched"), code=code, trouble=trouble)
        if trouble:
            raise WorkerDied("crash", trouble.message, trouble=trouble)
        if "error" in reply:
            raise Refused(reply["error"])
        return reply

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            # If it has gone, whoever waits for the reply notices, with how it ended.
            self._process.stdin.write((json.dumps(message) + "\n").encode())
            self._process.stdin.flush()

    def end(self, grace: float = 0) -> str:
        """End the process and everything it started; returns how it ended.

        A process that ends by itself may still be exiting when its pipe is closed: `grace` waits for that."""
        self.gone = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        # Locked, so that `stop` never signals a new process that got the old one's number.
        with self._ending:
            self._process.kill_group()
            code = self._process.wait()
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self._receive >= 0:
            os.close(self._receive)
            self._receive = -1
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)
        return how_it_ended(code)

    def stop(self) -> None:
        """Called from another thread: end the process; the thread that reads its descriptors closes them."""
        with self._ending:
            if self._process.returncode is None:
                self._process.kill_group()

    def _reply(self, timeout: float) -> dict[str, Any]:
        deadline, began = time.monotonic() + timeout, processor_seconds(self._process.pid)
        while b"\n" not in self._pending:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self._receive], [], [], remaining)[0]:
                trouble = of_time(timeout, processor_seconds(self._process.pid) - began, self.setup.flag)
                self.end()
                raise WorkerDied("timeout", f"no result after {round(timeout, 1):g} s", trouble=trouble)
            block = os.read(self._receive, 1 << 16)
            if not block:
                raise WorkerDied("crash", self.end(grace=5), code=self._process.returncode or 0)
            self._pending += block
        line, _, self._pending = self._pending.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply


def opened_log(log: Path) -> BinaryIO:
    """Raises EnvironmentLacking or UsageError where none can be written."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("wb")
    except OSError as error:
        if trouble := of_error(error):
            raise EnvironmentLacking(trouble.message, fix=trouble.fix) from error
        raise UsageError(
            f"logs cannot be written to {log.parent}: {error.strerror or error}",
            fix="choose another directory",
        ) from error


R = TypeVar("R")


class WorkerSlot(Generic[R]):
    """A slot of the scheduler: one worker, kept from job to job and replaced when it cannot take another."""

    def __init__(self, take: Callable[[], Worker], work: Callable[[Job, Worker], R]) -> None:
        self._take, self._work = take, work
        self._worker: Worker | None = None
        self._busy = self._closed = False
        self._lock = threading.Lock()

    def run(self, job: Job) -> R:
        with self._lock:
            self._busy = True
        try:
            worker = self._worker or self._take()
            with self._lock:
                self._worker = worker
                if self._closed:
                    worker.stop()
            return self._work(job, worker)
        finally:
            with self._lock:
                self._busy = False
                if self._worker is not None and (self._closed or self._worker.unusable):
                    self._worker.end()
                    self._worker = None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._worker is None:
                return
            self._worker.stop()
            # A thread that waits for a reply notices that the worker has gone, and ends it itself.
            if not self._busy:
                self._worker.end()
                self._worker = None


def processor_seconds(process: int) -> float:
    """What a process and its children that ended have used of the processor; 0 if it is gone."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def last_words(log: Path) -> str:
    """The last line of a process's log that is its own: the rest of faulthandler's text is for readers."""
    lines = tail(log, 20_000).partition("Fatal Python error")[0].strip().splitlines()
    return lines[-1] if lines else ""


def tail(log: Path, characters: int = 200_000) -> str:
    """The end of a log, as text; empty when there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - characters))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
