"""Commands for one model: a suite of one. What a lane says of the user's model, and what is
made of it."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from ci.outcome import Result
from ci.suite.one_model import LANES, Compiling, OneModel
from ci.suite.output import Publish
from ci.suite.precision import written_name
from ci.suite.programs import Program, Suites
from ci.suite.stage import MeasuredValues, Results
from ci.suite.trial import Outcome
from provisioning.base.commands import Fix, session
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.findings import Finding
from provisioning.known_faults import SuspectedFault

NOT_TRIED = Outcome()


@dataclass(frozen=True, slots=True)
class Product:
    """What is written of a program, and what is said of it."""

    files: Mapping[str, Path | str]
    """By their names in the output: where each lies, or its text."""
    words: Sequence[str] = ()
    """The verdict in one line, then what the reader may have to do something about."""
    more: Sequence[str] = ()
    """What --verbose prints beside them."""
    warnings: Sequence[str] = ()
    outcome: Outcome = NOT_TRIED
    """Its `wrong` makes the command end with exit code 1. The files are written all the same."""
    findings: Sequence[Finding] = ()
    """What an answer says of it (--json)."""
    suspects: Sequence[SuspectedFault] = ()
    """The known faults that its nodes can have."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What an answer has beside its record."""
    chips: str = ""
    """For a table of several precisions; without them it has no row there."""
    stale: Sequence[Path] = ()
    """Of an earlier product: they go, unless they are written again."""
    unverified: EnvironmentLacking | None = None
    """Why it could not be run, though it was to be. The files are written all the same."""


@dataclass(frozen=True)
class LaneModel(ABC):
    """The user's model as its lane takes it."""

    model: OneModel
    how: Compiling
    given: Program | None = field(default=None, kw_only=True)
    """A suite's program, in place of MODEL."""

    suites: ClassVar[Suites[Any]]
    """Those of its lane, which will hold what `compile --suite` writes."""
    fields: ClassVar[tuple[str, ...]] = ("precision",)
    """What `compile --suite` writes of a run."""

    @classmethod
    def of(cls, model: OneModel, how: Compiling) -> LaneModel:
        return cls(model, how)

    @staticmethod
    def same(precision: str) -> str:
        """The written name of a precision, by which a run of a suite is known again."""
        return str(written_name(precision))

    @abstractmethod
    def program(self, soc: str, suite: Path | None = None) -> Any:
        """The program of a suite of one, or of the suite that will have it. Refuses what cannot be compiled;
        imports nothing heavy."""

    @abstractmethod
    def plan(self, programs: Sequence[Any]) -> Any: ...

    @abstractmethod
    def do(self, plan: Any) -> Results:
        """The results of all steps. `product` may raise the error of what failed."""

    @abstractmethod
    def product(self, plan: Any, program: Any, results: Mapping[str, Result]) -> Product:
        """From its results by step. Raises the error of a program that there is not."""

    @property
    def measured(self) -> bool:
        """Whether there will be figures, which give a suite its thresholds."""
        return self.how.verify

    @property
    def name(self) -> str:
        return self.given.name if self.given else self.model.typed

    @property
    def programs(self) -> Sequence[Any]:
        return [self.program(soc) for soc in self.model.selection.socs]

    def exported(self, scratch: Path, publish: Publish) -> LaneModel:
        """The model as it is compiled, where another Python exports it."""
        return self

    def command(self, verb: str, soc: str, *more: str) -> Fix:
        """That does something else with the same model; quantizing knows no settings of the provider."""
        model = replace(self.model, options=()) if verb == "quantize" else self.model
        return session(verb, *model.words(soc), *more)

    def measured_of(self, plan: Any, results: Results) -> MeasuredValues:
        """What a suite that gets the model accepts of it."""
        return MeasuredValues()

    def for_suite(self, plan: Any, results: Results) -> Mapping[str, Any]:
        """What a run of a suite gets from the results. Raises the error of what no suite may have."""
        return {}


def lane_model(model: OneModel, how: Compiling = Compiling()) -> LaneModel:  # noqa: B008
    module, _, name = LANES[model.lane].place.partition(":")
    taken: type[LaneModel] = getattr(importlib.import_module(module), name)
    return taken.of(model, how)


def of_lane(model: OneModel, verb: str) -> Any:
    """The module of the model's lane that does this verb for one model: what is asked of it, the verb's own
    module says. Refuses a lane that has none."""
    if not offers(model, verb):
        raise not_taken(model)
    return importlib.import_module(_module_of(model, verb))


def offers(model: OneModel, verb: str) -> bool:
    return model.lane in LANES and importlib.util.find_spec(_module_of(model, verb)) is not None


def _module_of(model: OneModel, verb: str) -> str:
    return f"{LANES[model.lane].place.partition(':')[0].rpartition('.')[0]}.{verb}"


def not_taken(model: OneModel) -> UsageError:
    return UsageError(
        f"{model.typed}: this command takes PyTorch and ONNX models",
        fix="name a .pt2, file.py:function or an .onnx; compile takes this one",
    )


ELSEWHERE = "name another folder with -o"
