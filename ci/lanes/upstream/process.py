"""A test as a step of the pipeline: ask a worker to run it, and read the verdict from the result."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ci.engine.jobs import Job
from ci.engine.memo import Memo
from ci.engine.progress import Line
from ci.engine.trouble import InTrouble, of_text
from ci.engine.watch import Touched
from ci.engine.work import Result
from ci.engine.workers.child import WARM
from ci.engine.workers.parent import START_SECONDS, Worker, WorkerDied, WorkerSpec
from ci.lanes.upstream.judge import Judge
from ci.lanes.upstream.ledger import GONE, UNKNOWN, RecordedTest
from ci.lanes.upstream.suite import SuiteKeyContext, UpstreamSuite
from ci.lanes.upstream.verdict import Draw, RecordedPart, UpstreamVerdict
from ci.pipeline.models.own_packages import OwnPackages
from ci.pipeline.stage import WorkPlan
from ci.pipeline.steps import Ask, Step
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Metric

RUNNER_MEMORY = 256 << 20
"""Memory beside the worker's own."""


class Workers:
    """Starts workers. A worker that listed the tests and is warm is taken first."""

    def __init__(self, setup: WorkerSpec, *, to_list_alone: bool) -> None:
        self.setup, self._to_list_alone = setup, to_list_alone
        self._idle: list[Worker] = []

    def tests(self) -> tuple[list[str], Touched]:
        worker = self._start(warm=not self._to_list_alone)
        self._idle.append(worker)
        try:
            reply = worker.ask({"do": "list"}, START_SECONDS)
        except WorkerDied as gone:
            message = f"the tests could not be listed ({gone.how})"
            raise EnvironmentLacking(message, fix=self.setup.fix) from gone
        if self._to_list_alone:
            # It takes memory, and its suite's turn may be hours away.
            self.close()
        return [*map(str, reply["tests"])], Touched.of(worker.touched)

    def take(self, count: int) -> Worker:
        try:
            return self._idle.pop()
        except IndexError:
            # Warming up takes as long as it saves the first test.
            return self._start(warm=count > 1)

    def _start(self, *, warm: bool) -> Worker:
        variables = {**self.setup.environment, WARM: "1" if warm else ""}
        try:
            return Worker(replace(self.setup, environment=variables))
        except EnvironmentLacking:
            if not warm:
                raise
            # The test that warms it up may end it. That test's own verdict says so.
            return self._start(warm=False)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


@dataclass(frozen=True, slots=True)
class UpstreamPlan(WorkPlan[Job]):
    """The chosen tests with their costs, what they run on, and the expected results."""

    suite: UpstreamSuite
    machinery: SuiteKeyContext
    workers: Workers
    judge: Judge
    costs: Mapping[str, RecordedTest]
    slots: int
    tests: tuple[str, ...] = ()

    def job(self, test: str) -> Job:
        cost = self.costs.get(test, UNKNOWN)
        return Job(test, cost.seconds, (cost.megabytes << 20) + RUNNER_MEMORY)


QUIET = ("passed", "bad_test", "absent", "not_run", "expected_failure")
"""Outcomes that are printed in small letters."""

FACTS = ("test", "outcome", "reason", "problems", "parts", "seconds", "cpu_seconds", "peak")


@dataclass(frozen=True)
class RunTest(Step[Job]):
    """A surprise runs again each time, so that its log and files can be read; not with `resume`."""

    leaves_files = remembers_all = True
    plan: UpstreamPlan
    resume: bool = False
    fail_fast: bool = False

    @property
    def kind(self) -> str:
        return self.plan.suite.name

    @property
    def title(self) -> str:
        return f"{self.kind} tests"

    def environment(self, own: OwnPackages) -> Mapping[str, str]:
        return self.plan.machinery.environment

    def worker(self, own: OwnPackages, threads: int, count: int) -> WorkerSpec:
        return self.plan.workers.setup

    def start(self, own: OwnPackages, threads: int, count: int) -> Worker:
        return self.plan.workers.take(count)

    def key(self, program: Job, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        return {"test": program.name, **self.plan.machinery.key(memo.roots)}

    def cost(self, program: Job) -> Job:
        return program

    def work(self, program: Job, ask: Ask) -> Mapping[str, Any]:
        began = time.monotonic()
        try:
            reply = ask(do="run", test=program.name, scratch=str(ask.into))
        except WorkerDied as gone:
            if gone.trouble(ask.log) or gone.touched is None or not gone.is_own_crash:
                raise
            ask.touched |= Touched.of(gone.touched)
            reply = _crash(program.name, gone.sentence(ask.log), time.monotonic() - began)
        # ExecuTorch's suite for all backends catches what a model raises: only its part has the words.
        errors = [
            *(problem["what"] for problem in reply["problems"]),
            *(part["error"] for part in reply["parts"]),
        ]
        if trouble := of_text("\n".join(errors)):
            raise InTrouble(trouble)
        if not reply["problems"] and not self.plan.work.keep:
            shutil.rmtree(ask.into, ignore_errors=True)
        return {name: reply[name] for name in FACTS}

    def accepts(self, program: Job, result: Result) -> bool:
        return self.resume or not self._is_surprise(program, result)

    def stops_after(self, program: Job, result: Result) -> bool:
        return self.fail_fast and self._is_surprise(program, result)

    def line(self, program: Job, result: Result) -> Line:
        verdict, surprise = verdict_of(program.name, result), self._is_surprise(program, result)
        note = "" if verdict.outcome == "passed" else verdict.reason
        word = verdict.outcome.removesuffix("_failure").replace("_", " ")
        word = word if verdict.outcome in QUIET else word.upper()
        word = "MACHINE" if surprise and verdict.fix else word
        return Line(word + ("!" if surprise else ""), note, surprise, verdict.seconds)

    def _is_surprise(self, program: Job, result: Result) -> bool:
        return self.plan.judge.is_surprise(verdict_of(program.name, result))


def _crash(test: str, message: str, seconds: float) -> dict[str, Any]:
    """In the form of a worker's reply. The ledger decides whether it is expected, as of any other result."""
    return {
        "test": test,
        "outcome": "crash",
        "reason": message,
        "problems": [{"where": "", "what": message}],
        "parts": [asdict(RecordedPart("crash"))],
        "seconds": round(seconds, 3),
        "cpu_seconds": 0.0,
        "peak": 0,
    }


def verdict_of(test: str, result: Result) -> UpstreamVerdict:
    if failure := result.failure:
        # A kill from outside is what the system does when memory runs out.
        kind = failure.kind if failure.kind in GONE else "memory"
        # Memory says something about the test: the worker's own limit is the same everywhere.
        of_machine = failure.blame == "machine" and failure.kind != "memory"
        return UpstreamVerdict(
            test,
            kind,
            failure.message,
            (("", failure.message),),
            parts=(RecordedPart(kind),),
            seconds=result.seconds,
            fix=(failure.fix or "run it again") if of_machine else "",
        )
    problems = tuple((problem["where"], problem["what"]) for problem in result.facts["problems"])
    parts = tuple(map(_part, result.facts["parts"]))
    facts = {**result.facts, "problems": problems, "parts": parts}
    return UpstreamVerdict(**facts, cached=result.cached)


def _part(fields: Mapping[str, Any]) -> RecordedPart:
    values: dict[str, Any] = {
        name: tuple(field) if isinstance(field, list) else field for name, field in fields.items()
    }
    return RecordedPart(**{**values, "draws": tuple(Draw(*draw) for draw in fields.get("draws", ()))})
