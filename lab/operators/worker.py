"""What the processes that run the tests of the laboratory's suites do."""

from __future__ import annotations

from ci.lanes.upstream.worker import collect, list_tests, run_test
from lab.operators.suites import SUITES

__all__ = ["list_tests", "prepare", "run_test"]


def prepare(suite: str, logs: str) -> None:
    collect(SUITES[suite], logs)
