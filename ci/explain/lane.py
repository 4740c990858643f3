"""Describe a lane with all that the commands for one model ask of it, as one record.

A `ModelLane` is a `Lane` that also compiles single models: MODEL of a command line is a suite of one.
`Searches` is what `audit`, `divergence`, `repair` and `tune` ask of its module `explain`. `AnyModelLane` is
how commands see it, whatever its programs are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ci.explain.audit import AuditRows
from ci.explain.crash import CrashRequest, CrashResult
from ci.explain.divergence import DivergenceLimits, DivergenceResult, DivergentOperator
from ci.explain.losses import Loss, ScoreRequest, Scores
from ci.explain.operator_script import OperatorScript
from ci.explain.replay import ReplayRequest, ReplayResult
from ci.explain.rewriting import Rewritten
from ci.explain.upstream_report import ReportRequest
from ci.one_model.forecast import Forecasted
from ci.one_model.model import OneModel
from ci.one_model.output import Ran
from ci.one_model.product import Outcome, Product
from ci.suite.lane import AnyLane, L, Lane, LaneStep
from ci.suite.options import Choice
from ci.suite.programs import P, Program
from ci.suite.stage import results_of_program
from ci.work import Result
from provisioning.base.commands import Fix
from provisioning.base.errors import ToolkitError, UsageError

T = TypeVar("T")


class Searches(Protocol[P]):
    """The searches ask this of a lane. Its module `explain` has these functions."""

    def chosen_program(self, model: OneModel, choice: Choice, /) -> P:
        """Return MODEL's program, or one of a suite."""

    def replay(self, model: OneModel, program: P, request: ReplayRequest, /) -> ReplayResult:
        """Find the first of the compiler's steps that changes what the model computes, or after which nothing
        can compute it; none if the lane's compiler shows no steps."""

    def crash_of(self, model: OneModel, program: P, request: CrashRequest, /) -> CrashResult:
        """Find the operators at which a signal ends the compiler's process."""

    def divergence_of(self, model: OneModel, program: P, limits: DivergenceLimits, /) -> DivergenceResult:
        """Find the operator at which the program differs."""

    def script_of(
        self, model: OneModel, program: P, operator: DivergentOperator, least: float, /
    ) -> OperatorScript:
        """Write a script of that operator alone, whose output is wrong below so many decibels."""

    def report_of(self, model: OneModel, program: P, request: ReportRequest, /) -> OperatorScript:
        """Write a script of the smallest part of the model that shows the fault; without text if none
        does."""

    def scores_of(self, model: OneModel, program: P, request: ScoreRequest, /) -> Scores:
        """Measure the noise in the outputs if one group of operators alone is quantized."""

    def losses(self, model: OneModel, choice: Choice, /) -> tuple[str, Sequence[Loss]]:
        """Say what quantizing the whole model loses, in words, and what each operator adds, the worst
        first."""

    def rewritten(self, model: OneModel, rules: tuple[str, ...] | None, /) -> Rewritten:
        """Return the model with the rewrites that answer known faults, all or these, each proved on the
        CPU."""

    def audit(self, model: OneModel, precisions: Sequence[str], /) -> AuditRows:
        """Audit each of these precisions, or the usual ones."""

    def precision_named(self, name: str, /) -> str:
        """Name a precision as the lane's runs do."""


def _keep_form(model: OneModel, folder: Path) -> OneModel:
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLane(Lane[P, L], Generic[P, L]):
    """This lane also compiles single models: MODEL is a suite of one."""

    programs: Callable[[OneModel, Path | None], Sequence[P]]
    """It returns for each chip the program of a suite of one, or of the suite that will have it. It refuses
    what cannot be compiled, and imports nothing heavy."""
    model_plan: Callable[[OneModel, Sequence[P]], L]
    model_steps: tuple[LaneStep[L], ...]
    """These steps make the programs."""
    product: Callable[[OneModel, L, P, Mapping[str, Result]], Product]
    """It returns what is made of a program, from its results by step. It raises the error of a program that
    could not be made."""
    own_form_of: Callable[[OneModel, Path], OneModel] = _keep_form
    """It returns the model in the form that the lane takes, and writes a converted model into the folder."""
    run_program: Callable[[OneModel, Sequence[str]], Ran] | None = None
    """It returns what a compiled program gives for these inputs."""
    continue_text: Callable[[OneModel, str], int] | None = None
    """It prints what a language model says after a text, and returns the exit code."""
    quantized: Callable[[OneModel], Sequence[Product]] | None = None
    forecasted: Callable[[OneModel, Sequence[str]], Forecasted] | None = None
    searches: Searches[P] | None = None

    def own_form(self, model: OneModel, folder: Path) -> OneModel:
        return self.own_form_of(model, folder)

    def programs_of(self, model: OneModel, suite: Path | None = None) -> Sequence[Program]:
        return self.programs(model, suite)

    def products_of(self, model: OneModel, programs: Sequence[Program]) -> list[Product | ToolkitError]:
        """Return what is made of each program, or the error of one that could not be made."""
        plan = self.model_plan(model, self.suites.own(programs))
        results: dict[str, Mapping[str, Result]] = {}
        for step in self.model_steps:
            results[step.name] = step.results(plan, results)
        products = list[Product | ToolkitError]()
        for program in self.suites.own(plan.programs):
            try:
                products.append(self.product(model, plan, program, results_of_program(program, results)))
            except ToolkitError as error:
                products.append(error)
        return products

    def repeat(self, program: Program) -> Fix:
        """Return the command that runs a suite's program again."""
        return self.suites.repeat(program)

    def quantized_of(self, model: OneModel) -> Sequence[Product]:
        return self._having(self.quantized, "quantize")(model)

    def ran(self, model: OneModel, files: Sequence[str]) -> Ran:
        return self._having(self.run_program, "run")(model, files)

    def run_text(self, model: OneModel, text: str) -> int:
        return self._having(self.continue_text, "run with a text")(model, text)

    def forecast_of(self, model: OneModel, phones: Sequence[str]) -> Forecasted:
        return self._having(self.forecasted, "forecast")(model, phones)

    def chosen_program(self, model: OneModel, choice: Choice) -> Program:
        return self._searches.chosen_program(model, choice)

    def replay(self, model: OneModel, program: Program, request: ReplayRequest) -> ReplayResult:
        return self._searches.replay(model, self._own(program), request)

    def crash_of(self, model: OneModel, program: Program, request: CrashRequest) -> CrashResult:
        return self._searches.crash_of(model, self._own(program), request)

    def divergence_of(self, model: OneModel, program: Program, limits: DivergenceLimits) -> DivergenceResult:
        return self._searches.divergence_of(model, self._own(program), limits)

    def script_of(
        self, model: OneModel, program: Program, operator: DivergentOperator, least: float
    ) -> OperatorScript:
        return self._searches.script_of(model, self._own(program), operator, least)

    def report_of(self, model: OneModel, program: Program, request: ReportRequest) -> OperatorScript:
        return self._searches.report_of(model, self._own(program), request)

    def scores_of(self, model: OneModel, program: Program, request: ScoreRequest) -> Scores:
        return self._searches.scores_of(model, self._own(program), request)

    def losses(self, model: OneModel, choice: Choice) -> tuple[str, Sequence[Loss]]:
        return self._searches.losses(model, choice)

    def rewritten(self, model: OneModel, rules: tuple[str, ...] | None = None) -> Rewritten:
        return self._searches.rewritten(model, rules)

    def audit(self, model: OneModel, precisions: Sequence[str]) -> AuditRows:
        return self._searches.audit(model, precisions)

    def precision_named(self, name: str) -> str:
        return self._searches.precision_named(name)

    @property
    def _searches(self) -> Searches[P]:
        return self._having(self.searches, "audit, divergence, repair and tune")

    def _own(self, program: Program) -> P:
        (own,) = self.suites.own([program])
        return own

    def _having(self, part: T | None, what: str) -> T:
        """Return a part of the lane; this is the one place that refuses what a lane lacks."""
        if part is None:
            message = f"lane {self.head.name} has no {what}: it takes {self.head.models}"
            raise UsageError(message, fix="name a .pt2, file.py:function or an .onnx")
        return part


class AnyModelLane(AnyLane, Protocol):
    """The commands for one model ask this of a lane, whatever its programs are."""

    def programs_of(self, model: OneModel, suite: Path | None = None) -> Sequence[Program]: ...

    def products_of(self, model: OneModel, programs: Sequence[Program]) -> list[Product | ToolkitError]: ...

    def repeat(self, program: Program) -> Fix: ...

    def own_form(self, model: OneModel, folder: Path) -> OneModel: ...

    def quantized_of(self, model: OneModel) -> Sequence[Product]: ...

    def ran(self, model: OneModel, files: Sequence[str]) -> Ran: ...

    def run_text(self, model: OneModel, text: str) -> int: ...

    def forecast_of(self, model: OneModel, phones: Sequence[str]) -> Forecasted: ...

    def chosen_program(self, model: OneModel, choice: Choice) -> Program: ...

    def replay(self, model: OneModel, program: Program, request: ReplayRequest) -> ReplayResult: ...

    def crash_of(self, model: OneModel, program: Program, request: CrashRequest) -> CrashResult: ...

    def divergence_of(
        self, model: OneModel, program: Program, limits: DivergenceLimits
    ) -> DivergenceResult: ...

    def script_of(
        self, model: OneModel, program: Program, operator: DivergentOperator, least: float
    ) -> OperatorScript: ...

    def report_of(self, model: OneModel, program: Program, request: ReportRequest) -> OperatorScript: ...

    def scores_of(self, model: OneModel, program: Program, request: ScoreRequest) -> Scores: ...

    def losses(self, model: OneModel, choice: Choice) -> tuple[str, Sequence[Loss]]: ...

    def rewritten(self, model: OneModel, rules: tuple[str, ...] | None = None) -> Rewritten: ...

    def audit(self, model: OneModel, precisions: Sequence[str]) -> AuditRows: ...

    def precision_named(self, name: str) -> str: ...


def outcomes_of(lane: AnyModelLane, model: OneModel, programs: Sequence[Program]) -> list[Outcome]:
    """Compile, run and compare each program, and return its outcome. Every trial of a candidate goes through
    here."""
    products = lane.products_of(model, programs)
    return [
        product.outcome if isinstance(product, Product) else Outcome.from_error(product)
        for product in products
    ]


def outcome_of(lane: AnyModelLane, model: OneModel) -> Outcome:
    try:
        (outcome,) = outcomes_of(lane, model, lane.programs_of(model))
    except ToolkitError as error:
        return Outcome.from_error(error)
    return outcome


def only(programs: Sequence[P]) -> P:
    if len(programs) != 1:
        names = ", ".join(str(getattr(program, "name", "")) for program in programs[:5])
        raise UsageError(
            f"expected a MODEL or one program of a suite, found {len(programs)} ({names} …)",
            fix="name the program: --suite FILE -k CASE/RUN/SOC",
        )
    return programs[0]
