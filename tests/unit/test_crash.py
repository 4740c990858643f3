"""The search for the operators at which the compiler dies, without a compiler."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.explain.cause import cause_of
from ci.explain.crash import CrashingOperator, CrashResult, find_crashing
from ci.one_model.product import Outcome
from provisioning.base.findings import Place
from tests.support.stand_in_lane import StandInLane

OPERATORS = [
    CrashingOperator(kind, "", f"net.py:{number}", "", f"{kind}_{number}")
    for number, kind in enumerate(["linear", "max", "relu", "max", "linear", "topk"])
]


class Compiler:
    """It dies unless these nodes are on the CPU."""

    def __init__(self, *deadly: str) -> None:
        self.deadly, self.trials = set(deadly), 0

    def survives(self, on_cpu: Collection[str]) -> bool:
        self.trials += 1
        return self.deadly.issubset(on_cpu)


def search(compiler: Compiler, visited: Sequence[str] = (), most: float = float("inf")) -> CrashResult:
    return find_crashing(OPERATORS, compiler.survives, visited, lambda: compiler.trials >= most)


@pytest.mark.parametrize("deadly", [["max_1"], ["max_1", "max_3"], ["relu_2", "topk_5"], ["linear_0"]])
@pytest.mark.parametrize("visited", [[], ["linear_0", "max_1", "getitem_1"], ["linear_4", "topk_5"]])
def test_the_fewest_operators_are_found_whatever_was_visited_last(
    deadly: list[str], visited: list[str]
) -> None:
    assert [row.node for row in search(Compiler(*deadly), visited).operators] == deadly


def test_what_was_visited_last_is_tried_first() -> None:
    compiler = Compiler("topk_5")
    search(compiler, ["linear_4", "topk_5", "getitem_7"])
    assert compiler.trials == 1


def test_nothing_is_named_where_nothing_helps_or_time_is_up() -> None:
    assert not search(Compiler("input")).operators
    late = search(Compiler("relu_2", "topk_5"), most=2)
    assert late.late and not late.operators


class Dies(StandInLane):
    found = CrashResult((OPERATORS[1],))


def test_a_death_by_a_signal_is_explained_by_its_operator(tmp_path: Path) -> None:
    dies = Dies(tmp_path)
    program: Any = SimpleNamespace(soc="SM8650", run=SimpleNamespace(kind="fp16"))
    cause = cause_of(dies.lane, dies.model, program, Outcome("SIGSEGV", crashed=True))
    assert cause and cause.place == Place("net.py", 1) and cause.on_cpu == ("max_1",)
    assert cause_of(dies.lane, dies.model, program, Outcome("an exception")) is None
