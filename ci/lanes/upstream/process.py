"""A test as a program of a suite: a process runs it, and the verdict is read from the result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ci.cached_steps import Step, WorkPlan
from ci.jobs import Job
from ci.lanes.upstream.accepted import GONE, AcceptedTests
from ci.lanes.upstream.judge import Judge
from ci.lanes.upstream.suite import SuiteKeyContext, UpstreamSuite
from ci.lanes.upstream.verdict import Part, UpstreamVerdict
from ci.outcome import Result, WorkerDied
from ci.plain import as_json
from ci.progress import Line
from ci.work import Template

UNKNOWN_COST = (5.0, 900)
"""Seconds and megabytes of a test that was never measured."""

RUNNER_MEMORY = 256 << 20
"""Memory beside the worker's own."""


@dataclass(frozen=True, slots=True)
class UpstreamPlan(WorkPlan):
    programs: tuple[Job, ...]
    """The chosen tests with their costs, what they run on, and the expected results."""

    suite: UpstreamSuite
    machinery: SuiteKeyContext
    template: Template
    """Of the processes that run them; it has collected them."""
    judge: Judge
    usual: AcceptedTests
    """What tests cost on the default chip, for those that were not measured on this one."""
    slots: int
    tests: tuple[str, ...] = ()

    def job(self, test: str) -> Job:
        seconds, megabytes = self.cost(test) or UNKNOWN_COST
        return Job(test, seconds, (megabytes << 20) + RUNNER_MEMORY)

    def cost(self, test: str) -> tuple[float, int] | None:
        """None if it was never measured, on this chip or the default one."""
        return self.judge.accepted.of(test).cost or self.usual.of(test).cost


QUIET = ("passed", "bad_test", "absent", "not_run", "expected_failure")
"""Outcomes that are printed in small letters."""


def testing(plan: UpstreamPlan, *, resume: bool = False, fail_fast: bool = False) -> Step:
    """A surprise runs again each time, so that its log and files can be read; not with `resume`."""
    # The row of its suite says how a test is set up, and is in no module.
    suite = plan.suite.model_dump(mode="json", exclude={"command"})

    def is_surprise(test: Job, result: Result) -> bool:
        return plan.judge.is_surprise(verdict_of(test.name, result))

    def line(test: Job, result: Result) -> Line:
        verdict, surprise = verdict_of(test.name, result), is_surprise(test, result)
        note = "" if verdict.outcome == "passed" else verdict.reason
        word = verdict.outcome.removesuffix("_failure").replace("_", " ")
        word = word if verdict.outcome in QUIET else word.upper()
        word = "MACHINE" if surprise and verdict.fix else word
        return Line(word + ("!" if surprise else ""), note, surprise, verdict.seconds)

    def left(test: Job, gone: WorkerDied, folder: Path) -> dict[str, object] | None:
        """Whether a crash is expected is judged as of any other result."""
        log = plan.logs / f"{test.name}.log"
        if gone.trouble(log) or not gone.is_own_crash:
            return None
        message = gone.sentence(log)
        return as_json(UpstreamVerdict(test.name, "crash", message, (("", message),), (Part("crash"),)))

    return Step(
        plan=plan,
        kind=plan.suite.name,
        title=f"{plan.suite.name} tests",
        function=f"{plan.suite.worker}:ran",
        home=lambda own: plan.template.home,
        request=lambda test: {"test": test.name, "keep": plan.work.keep},
        key=lambda test, results: {"test": test.name, "suite": suite, **plan.machinery.key(results)},
        reply=UpstreamVerdict,
        cost=lambda test: test,
        accepts=lambda test, result: resume or not is_surprise(test, result),
        line=line,
        leaves_files=True,
        remembers_all=True,
        stops_after=lambda test, result: fail_fast and is_surprise(test, result),
        left=left,
    )


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
            parts=(Part(kind),),
            seconds=result.seconds,
            fix=(failure.fix or "run it again") if of_machine else "",
        )
    assert isinstance(result.record, UpstreamVerdict)
    return replace(result.record, cached=result.cached)
