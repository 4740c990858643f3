"""A test as a task of the engine: ask a worker to run it, and read the verdict from the result."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ci.engine.inputs import PATH_VARIABLES, Touched
from ci.engine.jobs import Job
from ci.engine.memo import Memo
from ci.engine.work import Done, Failure, Result
from ci.engine.workers.parent import Gone, Setup, Worker, killed, tail
from ci.lanes.upstream.ledger import Part, Verdict
from ci.lanes.upstream.suite import Suite
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Metric

NO_MEMORY = re.compile(r"\bMemoryError\b|std::bad_alloc|[Cc]an(?:'t|not) allocate memory")
NO_ROOM = "No space left on device"


def _ran_out(text: str) -> str:
    """The kind of failure if memory or the disk ran out. A full disk says no more of a test than a kill from
    outside, and is not recorded either."""
    return "killed" if NO_ROOM in text else "memory" if NO_MEMORY.search(text) else ""


def setup_of(suite: Suite, environment: Mapping[str, str], logs: Path, timeout: float) -> Setup:
    return Setup(
        command=("-m", "ci.lanes.upstream.worker", suite.name, str(logs)),
        environment=environment,
        logs=logs,
        timeout=timeout,
        imports="the tests",
        remedy=f"run it as `nox -s {suite.stage}`, which installs what they need",
        forks=True,
    )


def tests_of(worker: Worker) -> list[str]:
    """All tests that a worker has collected."""
    try:
        reply = worker.ask({"do": "list"}, worker.setup.start_seconds)
    except Gone as gone:
        raise EnvironmentLacking(
            f"the tests could not be listed ({gone.how})", remedy=worker.setup.remedy
        ) from gone
    return [str(name) for name in reply["tests"]]


def worker_of(setup: Setup) -> Worker:
    worker = Worker(setup)
    _forget_places(worker.touched)
    return worker


def _forget_places(touched: Mapping[str, Any]) -> None:
    """Another clone has its files in other places. The files count, by their place below the roots."""
    for name in PATH_VARIABLES:
        touched.get("environment", {}).pop(name, None)


@dataclass(frozen=True, slots=True)
class TestTask:
    """One test. Its scratch folder is kept if it failed, or if `keep`."""

    name: str
    memo: Memo
    key: Mapping[str, Metric]
    cost: Job
    logs: Path
    keep: bool

    @property
    def group(self) -> str:
        return self.name

    def work(self, worker: Worker, shared: dict[str, Any]) -> Done | Failure:
        log, scratch = self.logs / f"{self.name}.log", self.logs / self.name
        shutil.rmtree(scratch, ignore_errors=True)
        began = time.monotonic()
        try:
            reply = worker.ask({"do": "run", "test": self.name, "log": str(log), "scratch": str(scratch)})
        except Gone as gone:
            end = self.ended(gone, shared)
            if end.kind != "crash" or gone.touched is None or not gone.by_itself:
                raise
            reply = _crash(self.name, end.message, time.monotonic() - began, gone.touched)
        # ExecuTorch's suite for all backends catches what a model raises: only its part has the words.
        errors = [*(each["what"] for each in reply["problems"]), *(part["error"] for part in reply["parts"])]
        for line in "\n".join(errors).splitlines():
            if kind := _ran_out(line):
                return Failure(kind, line.strip(), of_machine=True)
        if not reply["problems"] and not self.keep:
            shutil.rmtree(scratch, ignore_errors=True)
        _forget_places(reply["touched"])
        facts = {name: reply[name] for name in FACTS}
        return Done(facts, Touched.of(reply["touched"]), own=(self.logs,))

    def ended(self, gone: Gone, shared: Mapping[str, Any]) -> Failure:
        log = self.logs / f"{self.name}.log"
        kind = _ran_out(tail(log)) or ("killed" if killed(gone.how) else gone.kind)
        return Failure(kind, gone.sentence(log), of_machine=gone.of_machine or kind in ("memory", "killed"))


def _crash(test: str, message: str, seconds: float, touched: Mapping[str, Any]) -> dict[str, Any]:
    """In the form of a worker's reply. The ledger decides whether it is expected, as of any other result."""
    return {
        "test": test,
        "outcome": "crash",
        "reason": message,
        "problems": [{"where": "", "what": message}],
        "subtests": 0,
        "parts": [asdict(Part("crash"))],
        "seconds": round(seconds, 3),
        "cpu_seconds": 0.0,
        "peak": 0,
        "touched": dict(touched),
    }


FACTS = ("test", "outcome", "reason", "problems", "subtests", "parts", "seconds", "cpu_seconds", "peak")


def is_killed(result: Result | None) -> bool:
    return bool(result and result.failure and result.failure.kind == "killed")


def verdict_of(test: str, result: Result) -> Verdict:
    if failure := result.failure:
        # A kill from outside is what the system does when memory runs out.
        kind = "memory" if failure.kind == "killed" else failure.kind
        return Verdict(
            test, kind, failure.message, (("", failure.message),), parts=(Part(kind),), seconds=result.seconds
        )
    problems = tuple((each["where"], each["what"]) for each in result.facts["problems"])
    parts = tuple(map(_part, result.facts["parts"]))
    return Verdict(**{**result.facts, "problems": problems, "parts": parts}, cached=result.cached)


def _part(fields: Mapping[str, Any]) -> Part:
    values: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in fields.items()
    }
    return Part(**values)
