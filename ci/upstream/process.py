"""The parent's side of a worker process: give it a test, and turn its reply into a verdict."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ci.engine.memo import Touched
from ci.engine.workers.parent import Gone, Setup, Worker
from ci.upstream.ledger import Verdict
from ci.upstream.suite import PATHS, Suite
from provisioning.base.errors import EnvironmentLacking

NO_MEMORY = re.compile(r"\bMemoryError\b|can't allocate memory|Cannot allocate memory")


def setup_of(suite: Suite, environment: Mapping[str, str], logs: Path, timeout: float) -> Setup:
    return Setup(
        command=("-m", "ci.upstream.worker", suite.module, suite.warm_up),
        environment=environment,
        logs=logs,
        timeout=timeout,
        imports="the tests",
        remedy=f"run it as `nox -s {suite.stage}`, which installs what they need",
        forks=True,
    )


class TestWorker(Worker):
    """A worker process that has collected a suite's tests and runs each in a fork."""

    @property
    def common(self) -> Touched:
        """What the worker touched before its first test."""
        return touched(self.touched)

    def tests(self) -> list[str]:
        try:
            reply = self.ask({"do": "list"}, self.setup.start_seconds)
        except Gone as gone:
            raise EnvironmentLacking(
                f"the tests could not be listed ({gone.how})", remedy=self.setup.remedy
            ) from gone
        return [str(name) for name in reply["tests"]]

    def run(self, test: str, *, keep: bool) -> tuple[Verdict, Touched]:
        """Run one test. Its scratch folder stays if it failed, or if `keep`."""
        log, scratch = self.setup.logs / f"{test}.log", self.setup.logs / test
        shutil.rmtree(scratch, ignore_errors=True)
        began = time.monotonic()
        try:
            reply = self.ask({"do": "run", "test": test, "log": str(log), "scratch": str(scratch)})
        except Gone as gone:
            reason, seconds = gone.sentence(log), round(time.monotonic() - began, 3)
            machine = gone.kind == "timeout" or "SIGKILL" in gone.how
            verdict = Verdict(test, "failed", reason, (("", reason),), seconds=seconds)
            return replace(verdict, fault="environment" if machine else "crash"), Touched()
        verdict = Verdict(
            test,
            outcome=str(reply["outcome"]),
            reason=str(reply["reason"]),
            problems=tuple((str(each["where"]), str(each["what"])) for each in reply["problems"]),
            subtests=int(reply["subtests"]),
            seconds=float(reply["seconds"]),
            cpu_seconds=float(reply["cpu_seconds"]),
            peak=int(reply["peak"]),
        )
        if any(NO_MEMORY.search(error) for _, error in verdict.problems):
            verdict = replace(verdict, fault="environment")
        if verdict.outcome != "failed" and not keep:
            shutil.rmtree(scratch, ignore_errors=True)
        return verdict, touched(reply["touched"])


def touched(reply: Mapping[str, object]) -> Touched:
    result = Touched.of(reply)
    for name in PATHS:
        result.environment.pop(name, None)
    return result
