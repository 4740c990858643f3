"""The parent's side of a worker process: give it a test, and turn its reply into a verdict."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from ci.engine.workers.parent import Gone, Setup, Worker
from ci.upstream.ledger import Verdict
from ci.upstream.suite import Suite
from provisioning.base.errors import EnvironmentLacking


def setup_of(suite: Suite, file: Path, environment: Mapping[str, str], logs: Path, timeout: float) -> Setup:
    return Setup(
        command=("-m", "ci.upstream.worker", str(file)),
        environment=environment,
        logs=logs,
        timeout=timeout,
        imports="the tests",
        remedy=f"run it as `nox -s {suite.stage}`, which installs what they need",
    )


class TestWorker(Worker):
    """A worker process that has collected a suite's tests."""

    def tests(self) -> list[str]:
        try:
            reply = self.ask({"do": "list"}, self.setup.start_seconds)
        except Gone as gone:
            raise EnvironmentLacking(
                f"the tests could not be listed ({gone.how})", remedy=self.setup.remedy
            ) from gone
        return [str(name) for name in reply["tests"]]

    def run(self, test: str, *, keep: bool) -> Verdict:
        """Run one test. Its scratch folder stays if it failed, or if `keep`."""
        log, scratch = self.setup.logs / f"{test}.log", self.setup.logs / test
        shutil.rmtree(scratch, ignore_errors=True)
        began = time.monotonic()
        try:
            reply = self.ask({"do": "run", "test": test, "log": str(log), "scratch": str(scratch)})
        except Gone as gone:
            seconds = round(time.monotonic() - began, 3)
            return Verdict(test, "failed", str(gone), (("", str(gone)),), seconds=seconds, crashed=True)
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
        if verdict.outcome != "failed" and not keep:
            shutil.rmtree(scratch, ignore_errors=True)
        return verdict
