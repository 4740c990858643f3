"""The suite of this lane: which models are lowered, how they are quantized, for which chips, and what is
expected of them.

`ExecutorchCase` and `ExecutorchRun` are what a user writes in a suite file; `ExecutorchProgram` is one
program of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from ci.models.inputs import Input
from ci.suite.precision import ExecutorchScheme, scheme_named
from ci.suite.programs import (
    HELD,
    HELD_QUANTIZED,
    Dotted,
    Factory,
    MixedRun,
    Program,
    ProgramOrder,
    Scalar,
    SuiteCase,
    Suites,
    TaskMetric,
)
from provisioning.base.documents import Model
from provisioning.base.errors import UsageError
from provisioning.base.settings import MANIFESTS

if TYPE_CHECKING:
    from ci.models.factory import ChosenSamples, ModelWithInputs

SHIPPED = MANIFESTS / "suites" / "models.toml"

Backend = Literal["htp", "lpai"]


def _scheme(value: object) -> object:
    try:
        return scheme_named(value) if isinstance(value, str) else value
    except UsageError:
        # This type makes the error list the schemes.
        return value


Scheme = Annotated[ExecutorchScheme, BeforeValidator(_scheme)]
AS_IT_IS = ("fp16", "qdq")
"""These schemes do not quantize the model: it is float, or quantized already."""
UNOBSERVED_SCHEMES = (*AS_IT_IS, "fp16a8w")
"""These schemes need no observer of activations, which are 16-bit floats. All others take the least and the
greatest value, instead of the moving average that is the quantizer's default."""


class ModuleScheme(Model):
    """Gives some of the model's modules another precision; they are named as in named_modules() or by
    class."""

    precision: Scheme
    name: str = ""
    type: str = ""
    per_channel: bool = False

    @model_validator(mode="after")
    def _names_one(self) -> ModuleScheme:
        if bool(self.name) == bool(self.type):
            raise ValueError("either name or type")
        if self.precision in AS_IT_IS:
            raise ValueError("a quantizing precision; nodes = { fp16 = […] } leaves nodes in float")
        return self


class ExecutorchRun(MixedRun):
    judged_later: ClassVar = MixedRun.judged_later | {"delegates", "cpu_budget"}
    of_model: ClassVar = frozenset({"calibration"})

    precision: Scheme = Field(examples=["8a8w"])
    nodes: dict[Scheme, tuple[str, ...]] = Field(default={})  # type: ignore[assignment]
    backend: Backend | None = None
    """Names the processor; [the case's]."""
    per_channel: bool = True
    calibration: Annotated[int, Field(ge=1)] | None = None
    """The observers see at most this many batches of inputs; [32 drawn ones, 200 of `samples`]."""
    modules: tuple[ModuleScheme, ...] = ()
    annotations: tuple[Dotted, ...] = ()
    """Functions that get the graph and annotate nodes of it themselves."""
    block_sizes: dict[str, tuple[Annotated[int, Field(ge=1)], ...]] = Field(default_factory=dict)
    """Block sizes by node (`linear`, `conv2d_1`); `*` in a name matches anything."""
    cpu_nodes: tuple[str, ...] = ()
    """Nodes of the edge graph that stay on the CPU."""
    delegates: Annotated[int, Field(ge=0)] | None = None
    cpu_budget: Annotated[int, Field(ge=0)] | None = None

    @property
    def required_figures(self) -> tuple[str, ...]:
        return HELD_QUANTIZED if self.quantizes else HELD

    @property
    def quantizes(self) -> bool:
        return self.precision not in AS_IT_IS

    @property
    def kind(self) -> str:
        name = str(self.precision)
        return f"{self.backend}-{name}" if self.backend not in (None, "htp") else name

    @model_validator(mode="after")
    def _fits(self) -> ExecutorchRun:
        if not self.quantizes and (self.modules or self.nodes or self.annotations or self.block_sizes):
            raise ValueError(f"no quantization options with {self.precision}")
        if {"qdq", "16a4w_block"} & {*self.nodes}:
            raise ValueError("nodes at fp16, or at a precision that quantizes them without block_sizes")
        if (self.precision == "16a4w_block") != bool(self.block_sizes):
            raise ValueError("block_sizes with 16a4w_block, and only with it")
        return self


class ExecutorchCase(SuiteCase):
    judged_later: ClassVar = SuiteCase.judged_later | {"files", "delegates", "cpu_budget", "metric"}
    of_model: ClassVar = frozenset(
        {"factory", "arguments", "inputs", "samples", "inferences", "fold_constants"}
    )

    factory: Factory = Field(examples=["net:model"])
    """Names a .pt2, or a `module:function`, which is called with `arguments` and returns the model; it also
    returns the inputs if none are named here."""
    arguments: dict[str, Scalar] = Field(default_factory=dict)
    inputs: tuple[Input, ...] = ()
    backend: Backend = "htp"
    samples: str = ""
    """Names a folder of inputs, one per file, relative to the suite: some are compared, the others
    calibrate."""
    files: tuple[str, ...] = ()
    """Names the files that the factory reads beside Python modules, such as weights; relative to the
    suite."""
    inferences: Annotated[int, Field(ge=1)] | None = None
    """At most this many inputs are compared; [16 of `samples`; 8 drawn ones where an inference takes less
    than a second, else 2]."""
    fold_constants: bool = False
    """Whether to compute once, before the export, what no input changes."""
    metric: TaskMetric | None = None
    delegates: Annotated[int, Field(ge=0)] = 1
    """A program is expected to have this many delegates; a run may override it."""
    cpu_budget: Annotated[int, Field(ge=0)] = 0
    """This many operators may stay on the CPU."""
    runs: tuple[ExecutorchRun, ...] = Field(min_length=1, alias="run")

    @model_validator(mode="after")
    def _lpai_computes_all_of_it(self) -> ExecutorchCase:
        for run in self.runs:
            if (run.backend or self.backend) != "lpai":
                continue
            if not run.quantizes:
                raise ValueError("a quantizing precision for the LPAI")
            if run.cpu_nodes or run.cpu_budget or self.cpu_budget:
                raise ValueError("no operators left on the CPU: an LPAI program is one partition")
            if (self.delegates if run.delegates is None else run.delegates) != 1:
                raise ValueError("delegates = 1: an LPAI program is one partition")
            if run.thresholds and run.thresholds.reference_sqnr_db:
                raise ValueError("no reference_… thresholds: nothing here computes as the LPAI does")
        return self


@dataclass(frozen=True, slots=True)
class ExecutorchProgram(Program):
    case: ExecutorchCase
    run: ExecutorchRun

    @property
    def delegates(self) -> int:
        return self.case.delegates if self.run.delegates is None else self.run.delegates

    @property
    def backend(self) -> Backend:
        return self.run.backend or self.case.backend

    @property
    def cpu_budget(self) -> int:
        return self.case.cpu_budget if self.run.cpu_budget is None else self.run.cpu_budget


def case_of(order: ProgramOrder) -> ExecutorchCase:
    """Return the order's case with only the order's run, for its chip alone."""
    run = {**order.whole_run, "socs": [order.soc]}
    return ExecutorchCase.model_validate_json(json.dumps({**order.whole_case, "run": [run]}))


def chosen_for(subject: ModelWithInputs, case: ExecutorchCase, run: ExecutorchRun) -> ChosenSamples:
    calibration = run.calibration if run.quantizes else 0
    return subject.choose(case.inferences, calibration)


SUITES = Suites(
    lane="executorch",
    case=ExecutorchCase,
    program=ExecutorchProgram,
    stages=("test_lowering", "test_emulator"),
    shipped=SHIPPED,
)
programs_of = SUITES.programs_of
all_programs, choose = SUITES.all_programs, SUITES.choose
