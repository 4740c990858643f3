"""A test as a task of the engine: ask a worker to run it, and read the verdict from the result."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ci.engine.inputs import Touched
from ci.engine.jobs import Job
from ci.engine.memo import Memo
from ci.engine.trouble import of_text
from ci.engine.work import Failure, Finished, Result
from ci.engine.workers.parent import Refused, Worker, WorkerDied, WorkerSpec
from ci.lanes.upstream.ledger import GONE
from ci.lanes.upstream.suite import UpstreamSuite
from ci.lanes.upstream.verdict import RecordedPart, UpstreamVerdict
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Metric


def setup_of(suite: UpstreamSuite, environment: Mapping[str, str], logs: Path, timeout: float) -> WorkerSpec:
    return WorkerSpec(
        command=("-m", "ci.lanes.upstream.worker", suite.name, str(logs)),
        environment=environment,
        logs=logs,
        timeout=timeout,
        imports="the tests",
        fix=f"run it as `nox -s {suite.stage}`, which installs what they need",
        forks=True,
    )


def tests_of(worker: Worker) -> list[str]:
    """All tests that a worker has collected."""
    try:
        reply = worker.ask({"do": "list"}, worker.setup.start_seconds)
    except WorkerDied as gone:
        raise EnvironmentLacking(
            f"the tests could not be listed ({gone.how})", fix=worker.setup.fix
        ) from gone
    return [str(name) for name in reply["tests"]]


@dataclass(frozen=True, slots=True)
class TestTask:
    """One test. Its scratch folder is kept if it failed, or if `keep`."""

    name: str
    memo: Memo
    key: Mapping[str, Metric]
    cost: Job
    logs: Path
    keep: bool
    folder: Path
    """In the logs: where its own log and files are."""

    @property
    def group(self) -> str:
        return self.name

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def elsewhere(self, scratch: Path) -> TestTask:
        """The same work, whose log and files do not replace those of a run."""
        return replace(self, folder=self.logs / "recheck")

    def work(self, worker: Worker, shared: dict[str, Any]) -> Finished | Failure:
        scratch = self.folder / self.name
        shutil.rmtree(scratch, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        try:
            reply = worker.ask(
                {"do": "run", "test": self.name, "log": str(self.log), "scratch": str(scratch)}
            )
        except WorkerDied as gone:
            end = self.ended(gone, shared)
            if gone.trouble(self.log) or gone.touched is None or not gone.is_own_crash:
                raise
            reply = _crash(self.name, end.message, time.monotonic() - began, gone.touched)
        # ExecuTorch's suite for all backends catches what a model raises: only its part has the words.
        errors = [*(each["what"] for each in reply["problems"]), *(part["error"] for part in reply["parts"])]
        if trouble := of_text("\n".join(errors)):
            return Failure.of(trouble, self.log)
        if not reply["problems"] and not self.keep:
            shutil.rmtree(scratch, ignore_errors=True)
        facts = {name: reply[name] for name in FACTS}
        return Finished(facts, Touched.of(reply["touched"]), own=(self.logs,))

    def ended(self, gone: WorkerDied, shared: Mapping[str, Any]) -> Failure:
        return Failure(gone.kind, gone.sentence(self.log), log=self.log)

    def refused(self, refused: Refused, shared: Mapping[str, Any]) -> Failure:
        return Failure(refused.kind, refused.message, refused.fix, self.log)


def _crash(test: str, message: str, seconds: float, touched: Mapping[str, Any]) -> dict[str, Any]:
    """In the form of a worker's reply. The ledger decides whether it is expected, as of any other result."""
    return {
        "test": test,
        "outcome": "crash",
        "reason": message,
        "problems": [{"where": "", "what": message}],
        "subtests": 0,
        "parts": [asdict(RecordedPart("crash"))],
        "seconds": round(seconds, 3),
        "cpu_seconds": 0.0,
        "peak": 0,
        "touched": dict(touched),
    }


FACTS = ("test", "outcome", "reason", "problems", "subtests", "parts", "seconds", "cpu_seconds", "peak")


def blames_the_machine(result: Result | None) -> bool:
    """Whether it says nothing about the test. Memory does: the worker's own limit is the same everywhere."""
    failure = result and result.failure
    return bool(failure and failure.blame == "machine" and failure.kind != "memory")


def verdict_of(test: str, result: Result) -> UpstreamVerdict:
    if failure := result.failure:
        # A kill from outside is what the system does when memory runs out.
        kind = failure.kind if failure.kind in GONE else "memory"
        return UpstreamVerdict(
            test,
            kind,
            failure.message,
            (("", failure.message),),
            parts=(RecordedPart(kind),),
            seconds=result.seconds,
            fix=failure.fix if blames_the_machine(result) else "",
        )
    problems = tuple((each["where"], each["what"]) for each in result.facts["problems"])
    parts = tuple(map(_part, result.facts["parts"]))
    return UpstreamVerdict(**{**result.facts, "problems": problems, "parts": parts}, cached=result.cached)


def _part(fields: Mapping[str, Any]) -> RecordedPart:
    values: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in fields.items()
    }
    return RecordedPart(**values)
