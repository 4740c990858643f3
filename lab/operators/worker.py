"""What the processes that run the tests of the laboratory's suites do."""

from __future__ import annotations

from ci.lanes.upstream.worker import collect, listed, ran
from lab.operators.suites import SUITES

__all__ = ["listed", "prepare", "ran"]


def prepare(suite: str, logs: str) -> None:
    collect(SUITES[suite], logs)
