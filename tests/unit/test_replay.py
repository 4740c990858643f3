"""The compiler's steps, replayed without a compiler: which of them is named, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from ci.explain.cause import cause_of
from ci.explain.graph import CONSTANT, INPUT, NOTHING, Arrays, Graph, Node
from ci.explain.replay import BrokenStep, Replay, Unrunnable
from ci.models.compiler_errors import CompilerStep
from ci.models.inputs import Array
from ci.models.model_lines import OperatorAt
from ci.one_model.product import Outcome
from provisioning.base.findings import Place
from tests.support.stand_in_lane import RED, StandInLane

EXPORT, NORMS, FOLDS = (CompilerStep(name, f"passes/{name}.py:7") for name in ("export", "norms", "folds"))
GOOD, WRONG = 1.0, 5.0


class Left(Graph):
    """A model as a step left it: `reads` by node, and the value that the model's one sample gives there."""

    reference = "the float model"
    samples = (0,)

    def __init__(
        self, reads: Mapping[str, Sequence[str]], values: Mapping[str, float] = {}, ends_at: str = ""
    ) -> None:
        self.reads, self.given, self.ends_at = reads, values, ends_at

    @property
    def nodes(self) -> Mapping[str, Node]:
        kinds = {"x": INPUT, "weight": CONSTANT}
        return {
            name: Node(name, kinds.get(name, name.rstrip("0123456789")), tuple(reads), 4, True)
            for name, reads in self.reads.items()
        }

    @property
    def results(self) -> Sequence[str]:
        return [[*self.reads][-1]]

    def operator_at(self, name: str) -> OperatorAt:
        return OperatorAt(f"aten.{name}", "", f"net.py:{[*self.reads].index(name)}", "")

    def values(self, sample: int) -> dict[str, Array]:
        if self.ends_at:
            raise Unrunnable(self.ends_at, "it has no shape")
        return {name: numpy.full(4, self.given.get(name, GOOD)) for name in self.reads}

    def outputs(self, replaced: Arrays = NOTHING) -> list[list[Array]]:
        return [[self.values(0)[self.results[0]]]]

    # A replay asks for none of these.
    def dimension(self, name: str) -> int | None:
        return None

    def values_at(self, names: Sequence[str]) -> Arrays:
        return {}

    def ending_at(self, name: str) -> Graph:
        return self

    def errors_of(self, quantized: object) -> dict[str, Array]:
        return {}

    def disturbed(self, errors: object) -> list[Sequence[Array]]:
        return []


MODEL = {"x": (), "weight": (), "linear": ("x", "weight"), "mul": ("linear",), "add": ("mul", "x")}
SAME = Left(MODEL)
REPLACED = {"x": (), "norm": ("x",), "add": ("norm", "x")}
"""The linear layer is lost: what is in the place of its product reads the input."""
RUINED = Left(REPLACED, {"norm": WRONG, "add": WRONG})


def replayed(
    *steps: tuple[CompilerStep, Left], program_db: float | None = 0.0, rounds: Sequence[CompilerStep] = ()
) -> Replay:
    replay = Replay(program_db)
    replay.see(EXPORT, SAME)
    for step, after in steps:
        replay.see(step, after, rounds=step in rounds)
    return replay


RAISED = BrokenStep("aten.add", "", "net.py:2", "", "add", "raises", FOLDS)


def test_the_first_step_that_changes_the_outputs_is_named_with_what_it_put_in_the_place_of_what() -> None:
    replay = replayed((FOLDS, SAME), (NORMS, RUINED), (FOLDS, Left(REPLACED, {"add": 9.0})))
    broken = replay.broken
    assert broken and replay.found
    assert (broken.step, broken.node, broken.line) == (NORMS, "norm", Place("net.py", 1))
    assert broken.replaced.startswith("aten.mul at net.py:3") and broken.lost == (
        "aten.linear at net.py:2 ``",
    )
    assert "passes/norms.py:7" in broken.describe() and "aten.linear" in broken.describe()


def test_a_node_that_a_step_changes_in_its_place_is_named_itself() -> None:
    broken = replayed((NORMS, Left(MODEL, {"mul": WRONG, "add": WRONG}))).broken
    assert broken and (broken.node, broken.replaced) == ("mul", "")


@pytest.mark.parametrize(("program_db", "named"), [(0.0, False), (40.0, True)])
def test_a_step_is_no_cause_of_an_error_that_is_much_larger_than_its_own(
    program_db: float, named: bool
) -> None:
    near = Left(MODEL, {"mul": 1.01, "add": 1.01})
    broken = replayed((NORMS, near), program_db=program_db).broken
    assert (broken is not None) is named


def test_what_rounds_weights_on_purpose_is_no_cause_and_later_steps_are_compared_with_it() -> None:
    rounded = Left(MODEL, {"add": WRONG})
    assert replayed((FOLDS, rounded), (NORMS, rounded), rounds=[FOLDS]).broken is None


def test_of_a_death_the_step_is_named_after_which_nothing_computes_the_model() -> None:
    replay = replayed((NORMS, Left(REPLACED, ends_at="norm")), program_db=None)
    replay.end(RAISED)
    assert replay.broken and (replay.broken.step, replay.broken.node) == (NORMS, "norm")
    assert "it has no shape" in replay.broken.describe()


def test_what_a_later_step_puts_right_is_no_cause_of_a_death() -> None:
    replay = replayed((NORMS, Left(REPLACED, ends_at="norm")), (FOLDS, SAME), program_db=None)
    replay.end(RAISED)
    assert replay.broken and (replay.broken.step, replay.broken.source) == (FOLDS, "net.py:2")


def test_a_program_that_runs_is_judged_by_values_alone() -> None:
    assert replayed((NORMS, Left(REPLACED, ends_at="norm")), (FOLDS, SAME)).broken is None


def test_the_last_pipeline_may_lose_layouts_and_nothing_else() -> None:
    last = Left({"x": (), "permute": ("x",), "relu": ("permute",)})

    def broken_by(after: Left) -> str:
        replay = Replay(0.0)
        replay.see_structure(NORMS, last, after, ["permute"])
        return replay.broken.node if replay.broken and not replay.broken.is_proved else ""

    assert broken_by(Left({"x": (), "relu": ("x",)})) == ""
    assert broken_by(Left({"x": (), "permute": ("x",)})) == "relu"


class Replays(StandInLane):
    """Nothing but a replay may be asked of it."""

    broken = replayed((NORMS, RUINED)).broken


@pytest.mark.parametrize("outcome", [RED, Outcome("dies")])
def test_what_a_replay_shows_is_the_cause_and_nothing_is_cut(tmp_path: Path, outcome: Outcome) -> None:
    program: Any = SimpleNamespace(soc="SM8650", run=SimpleNamespace(kind="fp16"))
    wrong = outcome if outcome.error else Outcome(figures=RED.figures, wrong=RED.wrong, of_chip=True)
    replays = Replays(tmp_path)
    cause = cause_of(replays.lane, replays.model, program, wrong)
    assert cause and cause.in_compiler and "norms" in cause.words and cause.place == Place("net.py", 1)
