"""A model as its lane takes it, of which a test says what a suite gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ci.explain.divergence_result import DivergenceResult, DivergentOperator
from ci.explain.rewriting import RewriteChoice, Rewritten, RewrittenPlace
from ci.jobs import WorkOptions
from ci.models.model_lines import OperatorAt
from ci.suite.lane_model import Product
from ci.suite.one_model import PYTORCH, Compiling, OneModel
from ci.suite.options import Choice
from ci.suite.trial import Outcome
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Finding, Severity

HELPS = RewrittenPlace("one", ("helps",), "", "node", "net.py:7")
HARMS = RewrittenPlace("other", ("harms",), "", "node", "net.py:9")
WRONG = (Finding("compile-accuracy", Severity.ERROR, "net", "too far", ""),)
RED = Outcome(figures={"sqnr_db": 2.0}, wrong=WRONG)


def green(sqnr_db: float) -> Outcome:
    return Outcome(figures={"sqnr_db": sqnr_db})


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
    grows=None,
    share=1.0,
    operands={"tanh": 70.0},
    alike=0,
)
DIFFERS = DivergenceResult("the quantized model on the CPU", 30.0, 2.0, POWER, {}, {}, ())
"""What a search gives that finds an operator."""

Gives = Callable[[OneModel], Outcome]


class Taken:
    """A model of which two rewrites are possible; each set of them is a file of its own. `gives` says what
    the pipeline gives of it and of what is made from it."""

    programs = (SimpleNamespace(run=SimpleNamespace(kind="16a8w"), soc="SM8650"),)
    samples: Path | None = None

    def __init__(
        self, folder: Path, name: str = "net.py:make", lane: str = PYTORCH, gives: Gives = lambda _: RED
    ) -> None:
        selection: Any = SimpleNamespace(soc="SM8650", store=folder / "store", socs=("SM8650",))
        self.name, self.model = name, OneModel(selection, name, lane, WorkOptions(), "16a8w")
        self.how = Compiling(folder / "out", search=False)
        self.folder, self.gives = folder, gives
        self.suites: Any = SimpleNamespace(lane="executorch")
        self.given: Any = None
        self.asked: list[tuple[str, ...] | None] = []

    def of(self, model: OneModel, how: Compiling) -> Taken:
        other = copy.copy(self)
        other.model, other.how = model, how
        return other

    def command(self, verb: str, soc: str, *more: str) -> str:
        return f"{verb} {self.model.precision}"

    def plan(self, programs: object) -> Any:
        return SimpleNamespace(programs=[SimpleNamespace(name=self.name, soc="SM8650")])

    def do(self, plan: object) -> dict[str, Any]:
        return {}

    def product(self, plan: object, program: object, mine: object) -> Product:
        result = self.gives(self.model)
        if result.error:
            raise CheckFailed(result.error, fix="")
        return Product({}, [], outcome=result)

    def of_suites(self, model: OneModel, choice: Choice) -> Any:
        raise AssertionError

    def rewritten(self, _taken: object, asked: RewriteChoice) -> Rewritten:
        self.asked.append(asked.rules)
        made = [change for change in (HELPS, HARMS) if asked.rules is None or change.rules[0] in asked.rules]
        path = self.folder / f"{'-'.join(change.rules[0] for change in made)}.pt2"
        path.write_text("")
        return Rewritten(made, path, self.samples)
