"""A lane without a compiler: a test says what a suite gives of its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ci.explain.crash import CrashRequest, CrashResult
from ci.explain.divergence import DivergenceResult, DivergentOperator
from ci.explain.replay import BrokenStep, ReplayRequest, ReplayResult
from ci.explain.rewriting import Rewritten, RewrittenPlace
from ci.lanes.executorch import HEAD as PYTORCH
from ci.models.model_lines import OperatorAt
from ci.one_model.model import OneModel
from ci.one_model.options import ModelOptions
from ci.one_model.product import Outcome, Product
from provisioning.base.errors import CheckFailed, ToolkitError
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import Selection

HELPS = RewrittenPlace("one", ("helps",), "", "node", "net.py:7")
HARMS = RewrittenPlace("other", ("harms",), "", "node", "net.py:9")
WRONG = (Finding("compile-accuracy", Severity.ERROR, "net", "too far", ""),)
RED = Outcome(figures={"sqnr_db": 2.0}, wrong=WRONG)
AT = OperatorAt("aten.pow.Scalar", "", "net.py:7", "2 ** x")
POWER = DivergentOperator(
    **asdict(AT),
    traits={},
    node="pow_1",
    sqnr_db=2.0,
    sample=0,
    faint=1e-8,
    rounds=False,
    integers=False,
    share=1.0,
    operands={"tanh": 70.0},
    alike=0,
)
DIFFERS = DivergenceResult("the quantized model on the CPU", 30.0, 2.0, POWER, {}, {}, ())
"""What a search gives that finds an operator."""


def green(sqnr_db: float) -> Outcome:
    return Outcome(figures={"sqnr_db": sqnr_db})


class StandInLane:
    """Of its model two rewrites are possible; each set of them is a file of its own. `gives` says what the
    pipeline gives of the model and of what is made from it."""

    samples: Path | None = None
    broken: BrokenStep | None = None
    """The step of the compiler that a replay finds."""
    found = CrashResult()
    """The operators at which the compiler dies."""

    def __init__(
        self,
        folder: Path,
        typed: str = "net.py:make",
        gives: Callable[[OneModel], Outcome] = lambda _: RED,
    ) -> None:
        selection = Selection("wheels", "x86_64-linux", "SM8650", folder / "store", folder)
        options = ModelOptions(precisions=("16a8w",), output=folder / "out", search=False)
        self.model = OneModel(selection, typed, PYTORCH, options)
        self.folder, self.gives = folder, gives
        self.asked: list[tuple[str, ...] | None] = []

    @property
    def lane(self) -> Any:
        """As what is tested takes it."""
        return self

    def programs_of(self, model: OneModel, suite: Path | None = None) -> list[Any]:
        return [SimpleNamespace(name=model.typed, soc="SM8650", run=SimpleNamespace(kind="16a8w"))]

    def products_of(self, model: OneModel, programs: Sequence[Any]) -> list[Product | ToolkitError]:
        outcome = self.gives(model)
        return [
            CheckFailed(outcome.error, fix="") if outcome.error else Product({}, [], outcome=outcome)
            for _ in programs
        ]

    def replay(self, model: OneModel, program: Any, request: ReplayRequest) -> ReplayResult:
        return ReplayResult(self.broken, 1)

    def crash_of(self, model: OneModel, program: Any, request: CrashRequest) -> CrashResult:
        return self.found

    def rewritten(self, model: OneModel, rules: tuple[str, ...] | None = None) -> Rewritten:
        self.asked.append(rules)
        made = [change for change in (HELPS, HARMS) if rules is None or change.rules[0] in rules]
        path = self.folder / f"{'-'.join(change.rules[0] for change in made)}.pt2"
        path.write_text("")
        return Rewritten(made, path, self.samples)
