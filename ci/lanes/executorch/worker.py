"""The functions of the processes that lower PyTorch models: one process imports torch and executorch, and its
forks do the tasks.

`prepare` makes the imports; `export` builds a case's model; each other task is made by `model_task` of a
function that gets the exported model. Only these processes import this module."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils
from executorch.exir import ExecutorchBackendConfig

from ci.explain.crash import CrashRequest
from ci.explain.divergence import Divergence, DivergenceResult, keep_partial
from ci.explain.losses import ScoreRequest
from ci.explain.operator_script import OperatorScript, ScriptRequest, proved_script
from ci.explain.replay import ReplayRequest
from ci.explain.rewriting import ModelRewrite
from ci.explain.torch_all_rewrites import BY_NAME
from ci.explain.torch_graph import TorchGraph
from ci.explain.torch_rewriting import RepairedModule
from ci.explain.upstream_report import ReportRequest
from ci.lanes.executorch import REWRITTEN, SAMPLES
from ci.lanes.executorch.calibrated_range import judge_range
from ci.lanes.executorch.crash_search import find_crash
from ci.lanes.executorch.emulated_trial import EmulatedTrial, graph_of
from ci.lanes.executorch.export import ChipModel, error_of
from ci.lanes.executorch.exporting import export as export
from ci.lanes.executorch.judged_choices import judge_choices
from ci.lanes.executorch.lower import SEGMENT_ALIGNMENT, lower
from ci.lanes.executorch.lower_for_chips import lower_for_chips
from ci.lanes.executorch.orders import (
    ChipsRequest,
    ChoicesRequest,
    CompileRequest,
    DivergenceRequest,
    QuantizeRequest,
    RangeRequest,
    RewriteRequest,
    WrapRequest,
)
from ci.lanes.executorch.quantization import quantize
from ci.lanes.executorch.quantization import score_groups as scores_of
from ci.lanes.executorch.replay import replay
from ci.lanes.executorch.upstream_report import report
from ci.models.inputs import order_files
from ci.models.model_checks import is_quantized
from ci.models.untouched import remember_libraries, users_modules
from ci.models.user_model import BadFactory
from ci.operators.faults import effect_db, faults_in
from ci.suite.programs import ProgramOrder
from ci.suite.runner import Runner
from ci.work import NOT_CACHED, Answer, read, reader, reporting, to_json
from provisioning.known_faults import Product

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def diverge(chip_model: ChipModel, request: DivergenceRequest) -> DivergenceResult:
    start = time.monotonic()
    graph = graph_of(chip_model)
    chip = EmulatedTrial(chip_model, Runner.ordered(request.runner), request.into)
    suspects = suspects_of(
        graph, chip_model.run.precision, chip_model.soc, request.versions, request.program_db
    )
    rest = replace(request, seconds=request.seconds - (time.monotonic() - start))
    return Divergence(graph, chip, rest, partial(keep_partial, request.into, to_json), suspects).search()


def suspects_of(
    graph: TorchGraph, precision: str, soc: str, versions: Mapping[Product, str], program_db: float | None
) -> dict[str, list[str]]:
    """Return the operators that can have a known fault, with these faults. The first operator of each fault
    comes before the second ones; before them come those that were measured to lose as much as the program
    does."""
    ranked: list[tuple[tuple[int, float], str]] = []
    times: Counter[str] = Counter()
    faults: dict[str, list[str]] = {}
    for name in graph.operators:
        for met in faults_in(graph.traits(name), precision, soc, versions, seen_db=program_db):
            distance = 0.0 if program_db is None else abs(effect_db(met.fault) - program_db)
            ranked.append(((times[met.fault.id], distance), name))
            times[met.fault.id] += 1
            faults.setdefault(name, []).append(met.fault.id)
    return {name: faults[name] for _, name in sorted(ranked, key=lambda row: row[0])}


def script_of(chip_model: ChipModel, request: ScriptRequest) -> OperatorScript:
    halves = chip_model.run.precision.startswith("fp16")
    script = partial(graph_of(chip_model).script, request, chip_model.soc, halves)
    return proved_script(request, script)


def rewrite(chip_model: ChipModel, request: RewriteRequest) -> ModelRewrite:
    """Write the model with every rewrite that is needed, matches and is proved, and samples for it."""
    if is_quantized(chip_model.model):
        message = "the model is already quantized, but rewrites need a float model"
        raise BadFactory(message, "name the float model")
    compared, calibrating = chip_model.compared, chip_model.calibrating
    if not calibrating and not chip_model.used.given:
        # A quarter of the files is compared: of all that are drawn, as many as here.
        calibrating = chip_model.exported.subject.drawn_to_calibrate(3 * len(compared))
    repaired, into = RepairedModule(chip_model.model, compared, BY_NAME), request.into
    repaired.apply(request.needs)
    if repaired.rewritten:
        (into / SAMPLES).mkdir(parents=True)
        torch.export.save(repaired.exported(), into / REWRITTEN)
        for number, sample in enumerate(order_files(compared, calibrating)):
            torch.save(sample, into / SAMPLES / f"{number:04}.pt")
    return ModelRewrite(tuple(repaired.changes), len(compared))


R = TypeVar("R")

OPERATOR = "context"
"""A context binary has this name in the program that it becomes."""


BACKEND = "executorch.backends.qualcomm"
COMPILING = ("_passes", "builders", "partition", "quantizer", "serialization", "utils")
"""These packages of the backend compile; some of their modules are imported only when they are needed."""


def prepare() -> None:
    # A fork can have threads of its own only if this process never had any; and by one number of them a
    # model's outputs are the same everywhere.
    torch.set_num_threads(1)
    # ExecuTorch turns some of torch's kernels off when it lowers: what runs before it would have other last
    # bits than what runs after.
    if choose := getattr(utils, "disable_mkldnn_on_amd", None):
        choose()
    remember_libraries(*(f"{BACKEND}.{name}" for name in COMPILING))


_order_of = reader(ProgramOrder)
_options_of = reader(dict[str, object])


def model_task(kind: type[R], work: Callable[[ChipModel, R], DataclassInstance]) -> Answer:
    """Return a function that works on a case's model. Relative paths in the user's code begin in its suite's
    folder."""
    request_of = reader(kind)

    def answer(request: Mapping[str, object]) -> dict[str, object]:
        order, options = _order_of(request), _options_of(request["options"])
        os.chdir(order.working_folder)
        exported_with = set(users_modules())
        chip_model = ChipModel.of(order)
        reply = to_json(work(chip_model, request_of({**options, "into": request["into"]})))
        late = sorted(set(users_modules()) - exported_with - chip_model.exported.annotated_with)
        reason = f"its work imported {late[0]}, which the export did not" if late else ""
        return {**reply, NOT_CACHED: chip_model.exported.not_repeated or reason}

    return reporting(answer, error_of)


compiled = model_task(CompileRequest, lower)
compiled_for_chips = model_task(ChipsRequest, lower_for_chips)
quantized = model_task(QuantizeRequest, quantize)
scored = model_task(ScoreRequest, scores_of)
diverged = model_task(DivergenceRequest, diverge)
choices_judged = model_task(ChoicesRequest, judge_choices)
range_judged = model_task(RangeRequest, judge_range)
replayed = model_task(ReplayRequest, replay)
crash_found = model_task(CrashRequest, find_crash)
fault_reported = model_task(ReportRequest, report)
script = model_task(ScriptRequest, script_of)
rewritten = model_task(RewriteRequest, rewrite)


def _wrap_context(order: Mapping[str, object]) -> dict[str, object]:
    request = read(WrapRequest, order)
    bundle = utils.from_context_binary(request.context, OPERATOR, QcomChipset[request.soc])
    config = ExecutorchBackendConfig(segment_alignment=SEGMENT_ALIGNMENT)
    request.path.write_bytes(bundle["edge_program_manager"].to_executorch(config).buffer)
    return {}


wrapped = reporting(_wrap_context, error_of)
