"""What QNN says of the models that forecasts are fitted by, as each lane compiles them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ci.engine.work import Failure
from ci.pipeline.forecast import PRECISIONS
from ci.pipeline.options import WorkOptions
from ci.pipeline.phones import MANIFEST, FittedModel, Forecasts
from provisioning.base.settings import Selection

FLOAT = "fp16"
"""Our name of AI Hub's float."""

Name = tuple[str, str]
"""Of a program: a model's, and AI Hub's of a precision."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """By program, facts as `ci.pipeline.forecast.forecast` takes them, or why it has none."""

    facts: Mapping[Name, Mapping[str, Any]]
    failures: Mapping[Name, Failure]


@dataclass(frozen=True, slots=True)
class FittedProgram:
    name: Name
    model: FittedModel
    precision: str
    """By our name."""

    def __str__(self) -> str:
        model, hub = self.name
        return f"{model.replace(' ', '.')}/{hub}"

    @property
    def case(self) -> dict[str, Any]:
        return {"arguments": {"row": self.model.model_dump_json()}, "inferences": 1}

    def run(self, soc: str) -> dict[str, Any]:
        hub = PRECISIONS[self.precision]
        return {"precision": self.precision, "calibration": 1, "socs": (soc,), "label": hub}


def programs_of(table: Forecasts, lane: str, measured: Mapping[Name, Any]) -> list[FittedProgram]:
    return [
        FittedProgram((name, hub), table.models[name], precision)
        for name in table.lanes[lane].models or table.models
        for precision, hub in PRECISIONS.items()
        if (name, hub) in measured
    ]


def onnx_estimates(
    programs: Sequence[FittedProgram], table: Forecasts, selection: Selection, work: WorkOptions
) -> Estimates:
    from ci.lanes.onnx.compile import plan_of, require_installed
    from ci.lanes.onnx.forecast import EstimateOnnx
    from ci.lanes.onnx.suite import OnnxCase, OnnxProgram, OnnxRun
    from ci.pipeline.steps import run_step

    require_installed()
    soc, named = table.chips[0], {}
    for program in programs:
        kept = program.model.in_float if program.precision != FLOAT else ()
        run = OnnxRun(**program.run(soc), nodes={FLOAT: kept} if kept else {})
        case = OnnxCase(factory="ci.forecast.models:as_onnx", **program.case, run=(run,))
        of_lane = OnnxProgram(MANIFEST, program.name[0].replace(" ", "."), case, run, soc)
        named[of_lane.name] = program.name, of_lane
    plan = plan_of([of_lane for _, of_lane in named.values()], selection, work)
    results = run_step(EstimateOnnx(plan, chips=table.chips), plan.programs)
    done = {named[name][0]: result for name, result in results.items()}
    return Estimates(
        {name: result.facts for name, result in done.items() if not result.failure},
        {name: result.failure for name, result in done.items() if result.failure},
    )


def executorch_estimates(
    programs: Sequence[FittedProgram], table: Forecasts, selection: Selection, work: WorkOptions
) -> Estimates:
    from ci.lanes.executorch.forecast import estimates_of
    from ci.lanes.executorch.stage import plan_of
    from ci.lanes.executorch.suite import ExecutorchCase, ExecutorchProgram, ExecutorchRun

    soc, named = table.chips[0], {}
    for program in programs:
        run = ExecutorchRun(**program.run(soc))
        case = ExecutorchCase(factory="ci.forecast.models:as_pytorch", **program.case, run=(run,))
        of_lane = ExecutorchProgram(MANIFEST, program.name[0].replace(" ", "."), case, run, soc)
        named[of_lane.name] = program.name, of_lane
    plan = plan_of([of_lane for _, of_lane in named.values()], selection, work, "forecast")
    found, failures = estimates_of(plan, table.chips)
    return Estimates(
        {named[name][0]: facts for name, facts in found.items()},
        {named[name][0]: failure for name, failure in failures.items()},
    )


LANES: Mapping[str, Callable[[Sequence[FittedProgram], Forecasts, Selection, WorkOptions], Estimates]] = {
    "onnx": onnx_estimates,
    "executorch": executorch_estimates,
}
