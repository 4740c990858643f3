"""What explains a program of an .onnx: orders to a worker, cached as any other."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ci.explain.divergence_report import known_fault
from ci.explain.lane import only
from ci.explain.losses import FOREVER
from ci.explain.operator_script import OperatorScript
from ci.explain.rewriting import RewriteChoice, Rewritten, changes_of
from ci.lanes.onnx import EXPORTED, EXPORTED_SAMPLES, provider
from ci.lanes.onnx.compile import PROGRAM, environment, home_of, order_of, plan_of
from ci.lanes.onnx.graph import RECIPROCAL, RECIPROCAL_FIX, REWRITTEN, GraphProblem, load_graph
from ci.lanes.onnx.orders import precision_of, search_path
from ci.lanes.onnx.product import OnnxModel
from ci.lanes.onnx.stage import chosen_programs
from ci.lanes.onnx.suite import OnnxProgram, assignments_of, samples_of
from ci.lanes.onnx.user_program import (
    ExportOne,
    OneModelStep,
    RewriteOne,
    mixed,
    plan_of_model,
    program_of,
    warn_of,
)
from ci.models import wheels
from ci.operators.onnx import inexact_onnx
from ci.outcome import Failure, Result
from ci.results import CachedResults, Key
from ci.suite.cached_steps import require_done, run_cached_step
from ci.suite.one_model import Compiling, OneModel
from ci.suite.options import Choice
from ci.suite.precision import ONNX_PRECISIONS, precision_named
from ci.work import asking
from provisioning.base.errors import CheckFailed
from provisioning.base.files import empty_folder
from provisioning.fixes import fix_for
from provisioning.known_faults import faults_of

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
class OnnxSearch(OneModelStep):
    """A search in the worker that may end before it is done: then it goes on the next time."""

    keeps_files = False

    seconds: float


@dataclass(frozen=True, kw_only=True)
class SearchOnnxDivergence(OnnxSearch):
    kind = "onnx-divergence"
    title = "the operator that differs"
    function = f"{PROGRAM}:searched"

    least: float
    whole: float | None = None
    """The SQNR of all of it, if that is known."""

    def options(self, program: OnnxProgram) -> dict[str, Any]:
        return {"least": self.least, "seconds": self.seconds, "whole": self.whole}

    def key(self, program: OnnxProgram, results: CachedResults) -> Key:
        return {**super().key(program, results), "options": {"least": self.least}}

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        return not result.facts.get("between")


@dataclass(frozen=True, kw_only=True)
class ScoresOfOne(OnnxSearch):
    """What each group of operators loses at the program's precision and at `exact`."""

    kind = "onnx-scores"
    title = "scores"
    function = f"{PROGRAM}:scored"

    exact: str

    def options(self, program: OnnxProgram) -> dict[str, Any]:
        return {"name": "model_qdq", "exact": self.exact, "seconds": self.seconds}

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        return not result.facts.get("left")


def chosen_program(model: OneModel, choice: Choice, _kept: tuple[str, ...] = ()) -> OnnxProgram:
    return program_of(model) if model.typed else only(chosen_programs(choice, model.selection))


def divergence_of(
    model: OneModel, program: OnnxProgram, least: float, seconds: float = FOREVER, whole: float | None = None
) -> dict[str, Any]:
    plan = plan_of([program], model.selection, model.work)
    step = SearchOnnxDivergence(plan, least=least, seconds=seconds, whole=whole)
    result = dict(require_done(run_cached_step(step, [program])[program.name]).facts)
    warn_of(result)
    if result["first"]:
        first = result["first"] = dict(result["first"])
        faults = faults_of("onnxruntime-qnn", version("onnxruntime-qnn"))
        first["known"] = [known_fault(fault) for fault in faults if first["operator"] in fault.operators]
        known = inexact_onnx([first["operator"]], program.run.kind, program.soc)
        first["known"] += [row._asdict() for row in known if row.compiles]
    return result


def script_of(
    model: OneModel, program: OnnxProgram, operator: Mapping[str, Any], before: int
) -> OperatorScript:
    plan = plan_of([program], model.selection, model.work)
    home = home_of(plan.logs, exports=bool(program.case.factory))
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-script-") as scratch,
        asking(home, f"{PROGRAM}:script", plan.logs / "script.log", plan.work.timeout) as ask,
    ):
        folders = {"export_folder": scratch, "into": str(empty_folder(Path(scratch) / "cut"))}
        more = {"operator": operator["node"], "sample": operator["sample"], "before": before}
        order = {**order_of(program), "preparing": {"drawn": True}}
        source = ask(**order, **folders, **more)
    packages = ", ".join(f"{name} {version}" for name, version in provider.packages().items())
    return OperatorScript(packages, source["imports"], source["body"], environment())


def scores_of(
    model: OneModel, program: OnnxProgram, exact: str, seconds: float = FOREVER
) -> Mapping[str, Any]:
    step = ScoresOfOne(plan_of_model(model, program), exact=exact, seconds=seconds)
    return require_done(run_cached_step(step, [program])[program.name]).facts


def of_suites(model: OneModel, choice: Choice) -> Sequence[OnnxModel]:
    programs = chosen_programs(choice, model.selection)
    by_code = [row for row in programs if row.case.factory or ":" in row.case.samples]
    exported = _exported(model, by_code)
    return [_of(model, program, exported.get(program.name)) for program in programs]


def _exported(model: OneModel, programs: Sequence[OnnxProgram]) -> Mapping[str, Path]:
    """The folders of models and samples that the suite's code makes, with the packages that it needs."""
    if not programs:
        return {}
    plan = plan_of(programs, model.selection, model.work)
    done = {name: require_done(result) for name, result in run_cached_step(ExportOne(plan), programs).items()}
    return {name: result.folder for name, result in done.items() if result.folder}


def _of(whole: OneModel, program: OnnxProgram, exported: Path | None) -> OnnxModel:
    """MODEL as the case has it."""
    case, selection = program.case, whole.selection
    if exported:
        path, samples = exported / EXPORTED, str(exported / EXPORTED_SAMPLES)
        dimensions: tuple[str, ...] = ()
    else:
        roots = wheels.folders(program.needs.wheels, selection.store)
        path = wheels.located(case.model, program.search_path, roots)
        samples = samples_of(case, program.search_path)
        dimensions = tuple(assignments_of(case.dimensions))
    model = replace(
        whole,
        typed=str(path),
        precision=program.run.kind,
        calibrate=samples or None,
        dimensions=dimensions,
        per_channel=program.run.per_channel or whole.per_channel,
        calibration=program.run.calibration,
        inferences=whole.inferences or case.inferences,
        selection=replace(selection, soc=program.soc, named_socs=(program.soc,)),
    )
    return OnnxModel(model, Compiling(), given=program)


def rewritten(lane_model: OnnxModel, choice: RewriteChoice) -> Rewritten:
    program = program_of(lane_model.model)
    step = RewriteOne(plan_of_model(lane_model.model, program), wanted=choice)
    result = require_done(run_cached_step(step, [program])[program.name])
    assert result.folder is not None
    model = result.folder / REWRITTEN
    return Rewritten(changes_of(result.facts), model if model.is_file() else None)


def in_python(precision: str, nodes: Mapping[str, Sequence[str]], comment: str) -> str:
    default = precision_named(precision)
    listed = [[precision_named(name).activations or None, list(members)] for name, members in nodes.items()]
    text = json.dumps(listed, indent=4).replace("null", "None")
    types = {"activations": default.activations, "weights": default.weights}
    return PYTHON.format(comment=comment, nodes=text, **types)


def audited(model: OneModel, precisions: Sequence[str]) -> dict[str, dict[str, Any]]:
    """At each precision the provider compiles what it takes."""
    quantized = precision_of(search_path() / model.typed, None) == "qdq"
    names = precisions or (("qdq",) if quantized else ONNX_PRECISIONS)
    return {name: _row(replace(model, precision=name)) for name in dict.fromkeys(names)}


def _row(model: OneModel) -> dict[str, Any]:
    program = program_of(model)
    result = mixed(model, program)
    if failure := result.failure:
        if problems := failure.details.get("problems"):
            return {
                "error": "; ".join(str(GraphProblem(**problem)) for problem in problems),
                "fix": "; ".join(dict.fromkeys(problem["fix"] for problem in problems)),
            }
        if failure.exit_code != CheckFailed.exit_code:
            require_done(result)
        return _error(failure, program)
    facts = result.facts
    cpu = [
        # ONNX Runtime has a CPU kernel of each: without it there would be no session.
        {**row, "kernel": True, "suggestion": str(fix_for(row["operator"], row["code"], row["source"]))}
        for row in facts["cpu"]
    ]
    row: dict[str, Any] = {name: facts[name] for name in ("delegated", "delegates", "ddr")}
    # `compile` refuses a model of which a part would run on the CPU.
    row["warnings"] = [f"{node}: {RECIPROCAL}; {RECIPROCAL_FIX}" for node in facts["reciprocals"]]
    row |= {"cpu": cpu, "kept_on_cpu": None, "usable": not cpu}
    # What is known not to compile does, as it was compiled here.
    row["inexact"] = [row for row in _inexact(facts["delegated"], program) if row["compiles"]]
    return row


def _error(error: Failure, program: OnnxProgram) -> dict[str, Any]:
    """With the operators that are known to fail."""
    nodes = load_graph(Path(program.case.model)).graph.node
    known = _inexact({node.op_type for node in nodes}, program)
    return {"error": error.message, "fix": error.fix, **({"inexact": known} if known else {})}


def _inexact(operators: Iterable[str], program: OnnxProgram) -> list[dict[str, Any]]:
    return [row._asdict() for row in inexact_onnx(operators, program.run.kind, program.soc)]
