"""A dozen cases of the table of attacks, drawn anew each time, by a real stage as a user starts it."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.attacks import CALLS, Case, World, cases
from tests.support.lowering_suites import environment, run
from tests.support.watched_work import Place

DRAWN = 12
SEED = "QNN_CI_TEST_ATTACKS"
"""Draws the cases of a failure again."""

FACTORY = """
def net():
    import hashlib, torch
    number = int.from_bytes(hashlib.sha256(repr(work()).encode()).digest()[:2], "big")
    return torch.nn.Linear(8, 1 + number % 4000).eval(), (torch.rand(1, 8),)
"""
"""The size of its output tells what the work found."""

SUITE = """
schema = 2
[case.net]
factory = "net:net"
[[case.net.run]]
lane = "executorch"
precision = "fp16"
socs = ["SM8650"]
"""


class OfStages(World):
    """Each time that the work is done is a command of its own."""

    def _place(self, name: str, store: Path, case: Case, *, repository: bool) -> Place:
        place = super()._place(name, store, case, repository=repository)
        module = place.folder / "net.py"
        place.write("net.py", module.read_text(encoding="utf-8") + FACTORY)
        place.write("suite.toml", SUITE)
        return place

    def _do(
        self, place: Place, meanwhile: Callable[[], object] | None = None, **options: Any
    ) -> tuple[Any, str]:
        flags = [] if options.get("reuse", True) else ["--no-cache"]
        environ = environment(HOME=str(self.home))
        base = place.store.parent / "of-stages"
        done = run("test_lowering", base, "--suite", place.folder / "suite.toml", *flags, environ=environ)
        assert done.code == 0, done.out + done.err
        programs: Any = done.report.metrics["programs"]
        (row,) = programs.values()
        return row["costs"]["ddr_written"], "" if row["cached"] else "done"


@pytest.mark.heavy
@pytest.mark.whole
@pytest.mark.timeout(3600)
def test_no_stage_takes_a_stale_result(tmp_path: Path) -> None:
    seed = os.environ.get(SEED) or str(time.time_ns())
    drawn = random.Random(seed).sample(
        [case for call in CALLS for case in cases(call) if case.when == "after"], DRAWN
    )
    wrong = []
    for number, case in enumerate(drawn):
        with tempfile.TemporaryDirectory(prefix="qnn-ci-attack-", dir="/dev/shm") as shared:
            world = OfStages(tmp_path / str(number), Path(shared, "data"))
            wrong += [found] if (found := world.stale(case)) else []
            world.close()
    assert wrong == [], f"{SEED}={seed}"
