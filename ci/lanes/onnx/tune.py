"""`tune` of an .onnx: scores by ONNX Runtime on the CPU, programs by the steps of `compile`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.engine.memo import Memo
from ci.engine.work import Result
from ci.lanes.onnx.compile import OnnxPlan, plan_of
from ci.lanes.onnx.options import parse_assignments
from ci.lanes.onnx.suite import OnnxProgram
from ci.lanes.onnx.user_program import FORMS, CompileOne, OneModelStep, plan_of_model, prepared, program_of
from ci.pipeline.forecast import forecast, load_fit
from ci.pipeline.options import OneModel
from ci.pipeline.phones import load_forecasts
from ci.pipeline.precision import precision_named
from ci.pipeline.steps import Ask, require_done, run_step
from ci.pipeline.tuning import Goal, Point, Tuned, TuneSearch, mixed, unit_of
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError
from provisioning.base.files import empty_folder
from provisioning.base.findings import Metric

PYTHON = '''\
"""{comment}"""

import onnx
from onnxruntime.quantization import QuantType

PRECISION = {{"activation_type": QuantType.{activations}, "weight_type": QuantType.{weights}}}
NODES = {nodes}
"""By the type of their outputs; None: in float."""


def settings(model: onnx.ModelProto) -> dict:
    """More arguments of get_qnn_qdq_config, for the model that qnn_preprocess_model gives."""
    kinds = {{name: kind for kind, names in NODES for name in names}}
    found = [(node, kinds[node.name]) for node in model.graph.node if node.name in kinds]
    tensors = [(name, kind) for node, kind in found if kind for name in node.output]
    types = {{name: [{{"quant_type": QuantType[kind]}}] for name, kind in tensors}}
    return {{
        **PRECISION,
        "init_overrides": types,
        "nodes_to_exclude": [node.name for node, kind in found if not kind] or None,
    }}
'''


@dataclass(frozen=True, kw_only=True)
class ScoresOfOne(OneModelStep):
    """What each group of operators loses at the program's precision and at `exact`."""

    kind = "onnx-scores"
    title = "scores"
    keeps_files = False

    exact: str
    seconds: float = 1e9

    def key(self, program: OnnxProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        return {**super().key(program, memo, environ), "scored beside": self.exact}

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        common, _ = prepared(program, ask, ask.scratch, name="model_qdq", drawn=True)
        folders = [common["quantized"]]
        # What is not quantized adds nothing that quantizing would take away.
        if precision_named(self.exact).quantized:
            folders.append(str(empty_folder(ask.scratch / "exact")))
            run = {**common["run"], "precision": self.exact}
            ask(do="quantize", **{**common, "model": common["source"], "run": run, "into": folders[1]})
        return ask(do="scores", **common, folders=folders, seconds=self.seconds)

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        """What the time ended is no score for `tune`."""
        return not result.facts.get("left")


@dataclass(frozen=True, kw_only=True)
class CompileTuned(CompileOne):
    """As `compile` does it, so that its result is there already."""

    metric: str
    """FILE:FUNCTION of the user's, which gives one more figure."""

    def stem(self, program: OnnxProgram) -> str:
        return f"{Path(program.case.model).stem}_ctx"

    def key(self, program: OnnxProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        common = super().key(program, memo, environ)
        return {**common, "metric": self.metric} if self.metric else common

    def asked(self, program: OnnxProgram) -> Mapping[str, Any]:
        common = super().asked(program)
        return {**common, "metric": self.metric} if self.metric else common


def tuned(
    model: OneModel, precisions: tuple[str, str], goal: Goal, _given: OnnxProgram | None = None
) -> Tuned:
    cheap, exact = (precision_named(name) for name in precisions)
    program = program_of(replace(model, precision=cheap.name))
    if not cheap.quantized:
        raise UsageError(f"{cheap.written} quantizes nothing", fix="--precision 8a8w --precision 16a8w")
    units = [unit_of(row) for row in scores_of(model, program, exact.name)["units"]]

    def measured(choices: Sequence[frozenset[int]]) -> list[Point]:
        programs = {choice: mixed(program, units, choice, exact.name) for choice in choices}
        plan = plan_of(list(programs.values()), model.selection, model.work)
        results = run_step(_step(model, plan, goal.metric), plan.programs)
        return [_point(choice, mixed, results[mixed.name], goal) for choice, mixed in programs.items()]

    return TuneSearch(units, measured, goal, (cheap.written, exact.written)).run()


def scores_of(
    model: OneModel, program: OnnxProgram, exact: str, seconds: float = ScoresOfOne.seconds
) -> Mapping[str, Any]:
    step = ScoresOfOne(plan_of_model(model, program), exact=exact, seconds=seconds)
    return require_done(run_step(step, [program])[program.name]).facts


def _step(model: OneModel, plan: OnnxPlan, metric: str) -> CompileTuned:
    return CompileTuned(
        plan,
        new_baseline=True,
        embed=False,
        verify=True,
        profiled=False,
        several_precisions=False,
        and_socs=(),
        options=parse_assignments(model.options),
        metric=metric,
    )


def in_python(precision: str, nodes: Mapping[str, Sequence[str]], comment: str) -> str:
    """The same for a script that quantizes by itself."""
    default = precision_named(precision)
    listed = [[precision_named(name).activations or None, list(members)] for name, members in nodes.items()]
    text = json.dumps(listed, indent=4).replace("null", "None")
    return PYTHON.format(
        comment=comment, nodes=text, activations=default.activations, weights=default.weights
    )


def _point(choice: frozenset[int], program: OnnxProgram, result: Result, goal: Goal) -> Point:
    try:
        facts = require_done(result).facts
    except ToolkitError as error:
        if error.exit_code != CheckFailed.exit_code:
            raise
        return Point(choice, failed=error.message.splitlines()[0])
    context = facts[FORMS[0]]
    costs: dict[str, float] = {"bytes": context["bytes"]}
    if ddr := context["ddr"]:
        costs["ddr"] = ddr["read"] + ddr["written"]
    found = forecast(program.run.kind, facts["estimate"], load_fit(), load_forecasts())
    if own := [phone.ms for phone in found.forecasts if phone.soc == program.soc]:
        costs["ms"] = own[0]
    elif "ms" in goal.budget:
        why = found.of(load_forecasts().of_chip(program.soc)).withheld
        raise CheckFailed(f"--budget ms=: no forecast, {why}", fix=found.fix or "--budget ddr=… or bytes=…")
    seconds = facts["cpu_seconds"]
    return Point(choice, context["near"], costs, cpu_seconds=seconds, worst=context.get("worst"))
