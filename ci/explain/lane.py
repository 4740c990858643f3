"""What the searches ask of a lane. Its module `explain` is all of them that knows how its work is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from ci.explain.audit import AuditRows
from ci.explain.divergence import DivergenceLimits, DivergenceResult, DivergentOperator, OperatorScript
from ci.explain.losses import Loss, ScoreRequest, Scores
from ci.explain.replay import ReplayRequest, ReplayResult
from ci.explain.rewriting import Rewritten
from ci.one_model.model import OneModel
from ci.one_model.product import Compiles, Outcome, Product
from ci.suite.options import Choice
from provisioning.base.errors import ToolkitError, UsageError

P = TypeVar("P")


class Explains(Protocol):
    def chosen_program(self, model: OneModel, choice: Choice) -> Any:
        """MODEL's, or one of a suite."""

    def replayed(self, model: OneModel, program: Any, request: ReplayRequest) -> ReplayResult:
        """The first of the compiler's steps that changes what the model computes, or after which nothing can
        compute it; none where the lane's compiler shows no steps."""

    def divergence_of(self, model: OneModel, program: Any, limits: DivergenceLimits) -> DivergenceResult:
        """The operator at which the program differs."""

    def script_of(
        self, model: OneModel, program: Any, operator: DivergentOperator, least: float
    ) -> OperatorScript:
        """That operator alone, which is wrong below so many decibels."""

    def scores_of(self, model: OneModel, program: Any, request: ScoreRequest) -> Scores:
        """The noise in the outputs if one group of operators alone is quantized."""

    def losses(self, model: OneModel, choice: Choice) -> tuple[str, Sequence[Loss]]:
        """What quantizing the whole model loses, in words, and what each operator adds, the worst first."""

    def rewritten(self, model: OneModel, rules: tuple[str, ...] | None = None) -> Rewritten:
        """The model with the rewrites that answer known faults, all or these, each proved on the CPU."""

    def audited(self, model: OneModel, precisions: Sequence[str]) -> AuditRows:
        """For each precision, or for the usual ones."""


def explainer(model: OneModel) -> Explains:
    lane: Explains = model.lane.explain
    return lane


def outcomes_of(model: OneModel, programs: Sequence[Any]) -> list[Outcome]:
    """What becomes of each: it is compiled, run and compared. The one trial of a candidate."""
    lane: Compiles = model.lane.product
    products = lane.products_of(model, programs)
    return [
        product.outcome if isinstance(product, Product) else Outcome.of_error(product) for product in products
    ]


def programs_of(model: OneModel) -> list[Any]:
    lane: Compiles = model.lane.product
    return lane.programs_of(model)


def outcome_of(model: OneModel) -> Outcome:
    try:
        (outcome,) = outcomes_of(model, programs_of(model))
    except ToolkitError as error:
        return Outcome.of_error(error)
    return outcome


def only(programs: Sequence[P]) -> P:
    if len(programs) != 1:
        names = ", ".join(str(getattr(program, "name", "")) for program in programs[:5])
        raise UsageError(
            f"expected a MODEL or one program of a suite, found {len(programs)} ({names} …)",
            fix="name the program: --suite FILE -k CASE/RUN/SOC",
        )
    return programs[0]
