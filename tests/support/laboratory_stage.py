"""A stage of the fault laboratory's gate: `python -m tests.support.laboratory_stage NAME …` runs this verb by
the laboratory's manifests; `test_toy` is the toy lane's. A variable may end it at one of its steps."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from ci.lanes import registry
from ci.suite import suite_file
from provisioning.__main__ import VERBS
from provisioning.base.command_line import Verb, main
from tests.support import toy_lane
from tests.support.own_manifests import manifests_read_from

MODULE = "tests.support.laboratory_stage"
MANIFESTS = "LABORATORY_MANIFESTS"
END = "LABORATORY_END"
"""STEP,SIGNAL"""


def end_at(step: int, number: int) -> None:
    """End this process at a later step that Python announces: opening, renaming, removing, connecting …"""
    left = step

    def count(event: str, _: object) -> None:
        nonlocal left
        if event.startswith(("open", "os.", "shutil.", "socket.", "tempfile.", "fcntl.")):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)

    sys.addaudithook(count)


def run(argv: list[str]) -> int:
    if end := os.environ.get(END):
        step, number = end.split(",")
        end_at(int(step), signal.Signals(int(number)))
    toys = {**suite_file.lanes(), "toy": toy_lane.SUITES.fields}
    registry.LANES = [*registry.LANES, toy_lane.REGISTERED]
    suite_file.lanes = lambda: toys  # type: ignore[assignment]
    verbs = {**VERBS, "test_toy": Verb("tests.support.toy_lane:VERB", "compile toys")}
    with manifests_read_from(Path(os.environ[MANIFESTS])):
        return main("python -m provisioning", "", verbs, argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
