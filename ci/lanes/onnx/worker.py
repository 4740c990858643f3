"""ONNX Runtime works in these processes: this says what they import, and which tasks they do. Each part of a
task is done in a fork, so that a crash can be looked at."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

from ci.explain.divergence import DivergenceLimits, DivergenceResult, keep_partial
from ci.explain.losses import ScoreRequest
from ci.explain.operator_script import ScriptRequest
from ci.lanes.onnx import parts, preparation, provider, searches
from ci.lanes.onnx.comparison import Comparison
from ci.lanes.onnx.model_file import (
    NotCompilable,
    digest_without_metadata,
    load_graph,
    read_context,
    require_fit,
    signature_of,
    source_digest,
)
from ci.lanes.onnx.orders import (
    QUANTIZED,
    Chips,
    CommandAnswer,
    CompileOptions,
    ExportedModel,
    ExportToFile,
    FileName,
    OnnxRunRequest,
    PreparedModel,
    Preparing,
    ProgramFacts,
    QuantizedModel,
    RunReply,
    WantedRewrites,
)
from ci.lanes.onnx.provider import NotOnProvider
from ci.lanes.onnx.suite import OnnxOrder, OnnxRequest
from ci.lanes.onnx.task_files import (
    CALIBRATION,
    EXPECTED,
    OUTPUTS,
    REFERENCE,
    SAMPLES,
    ModelFiles,
    arrays_in,
)
from ci.models.inputs import check_sample, load_samples, save
from ci.models.user_model import BadFactory
from ci.models.wheels import locate_file
from ci.suite import onnx_runtime
from ci.suite.accuracy import Unusable
from ci.suite.model_outputs import ModelOutputs
from ci.suite.task_metric import MetricFigures, MetricRequest, error_of_metric
from ci.work import (
    UNFORESEEN,
    Answer,
    Key,
    Nothing,
    Refused,
    digest_of,
    read,
    reporting,
    run_in_fork,
    to_json,
)
from provisioning.base.commands import Fix
from provisioning.base.errors import INTERNAL, CheckFailed, ToolkitError
from provisioning.base.files import empty_folder, hash_file
from provisioning.manifest import soc_named

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

EXPORTING = (
    "torch.onnx",
    "onnxscript",
    "onnxruntime.quantization",
    "ci.models.factory",
)
KINDS = {"NotOnProvider": "cpu-node", "UsageError": "suite"}
"""Findings for errors without a problem of their own have these names."""

T = TypeVar("T")
A = ParamSpec("A")
models: list[tuple[PreparedModel, Path]] = []
"""This process has this model, which its forks compile, and this folder of its samples."""


def prepare() -> None:
    """Do nothing: this module's imports are all that is needed."""


def prepare_exporting() -> None:
    """Import what every model of a factory needs."""
    for name in EXPORTING:
        importlib.import_module(name)
    import torch

    # A fork can have threads of its own only if this process never had any.
    torch.set_num_threads(1)
    onnx_runtime.load()


def error_of(error: Exception, request: Mapping[str, object]) -> dict[str, object]:
    missing = error.missing if isinstance(error, BadFactory) else ""
    if isinstance(error, BadFactory):
        error = CheckFailed(str(error), fix=error.fix)
    if not isinstance(error, ToolkitError):
        text, log = " ".join(str(error).split())[:1000], str(request["log"])
        return {
            "kind": UNFORESEEN,
            "exit_code": INTERNAL,
            "message": f"{request['do']}: {type(error).__name__}: {text}",
            "fix": Fix("the traceback is in {}; {} explains what is known of it", log, ("diagnose", log)),
        }
    problems = error.problems if isinstance(error, NotCompilable) else ()
    rule = problems[0].rule.removeprefix("onnx-") if problems else ""
    return {
        "kind": rule or KINDS.get(type(error).__name__, "refused"),
        "exit_code": error.exit_code,
        "message": error.message,
        "fix": error.fix,
        "problems": [to_json(problem) for problem in problems],
        "unusable": error.__cause__.rule if isinstance(error.__cause__, Unusable) else "",
        "operators": [error.refused, error.taken] if isinstance(error, NotOnProvider) else [],
        "build_id": onnx_runtime.installed_build(),
        "missing": missing,
    }


def answer(order: OnnxOrder, work: Callable[..., Any], *arguments: Any, **keywords: Any) -> dict[str, object]:
    """Do a part of a task. The working folder is the suite's for preparing, which runs the user's code, and
    otherwise the user's."""
    os.chdir(order.working_folder if work is preparation.prepare else order.user_folder)
    return to_json(work(order, *arguments, **keywords))


class PartDied(Exception):
    """Reports that a part of a task ended before it was done."""

    def __init__(self, reply: dict[str, object]) -> None:
        super().__init__(str(reply))
        self.reply = reply
        """The task replies this too, because it died with its part."""


def run_part(
    order: OnnxOrder,
    work: Callable[Concatenate[OnnxOrder, A], T],
    *arguments: A.args,
    **keywords: A.kwargs,
) -> T:
    """Do the work in a fork, and return what it gives, read as its annotation says. Raises Refused and
    PartDied."""
    request = {"do": work.__name__, **order.writes}
    part = reporting(lambda _: answer(order, work, *arguments, **keywords), error_of)
    reply = run_in_fork(part, request)
    if "error" in reply:
        raise Refused(reply["error"])
    if {"died", "trouble"} & reply.keys():
        raise PartDied(reply)
    return cast(T, read(get_type_hints(work)["return"], reply))


def _task(work: Callable[[OnnxOrder, Any], DataclassInstance], kind: Any) -> Answer:
    """Return an answer that does the work; `kind` is the record of its options. If a part was refused, so is
    the whole; if a part died, the process ends as it did."""

    def reply(request: Mapping[str, object]) -> dict[str, object]:
        try:
            order = OnnxOrder.of(read(OnnxRequest, request))
            return to_json(work(order, read(kind, request["task_options"])))
        except Refused as refused:
            return {"error": dict(refused.details)}
        except PartDied as died:
            return died.reply

    return reply


def _export(order: OnnxOrder, preparing: Preparing) -> ExportedModel:
    folder, case = empty_folder(order.exports / "prepared"), order.case
    prepared = run_part(replace(order, into=folder), preparation.prepare, preparing)
    models.append((prepared, folder))
    model, samples = Path(prepared.model), (SAMPLES, CALIBRATION, EXPECTED)
    rows: Key = {
        "samples": {name: hash_file(folder / name) for name in samples},
        "used": to_json(prepared.used),
        "notes": [list(note) for note in prepared.notes],
        "model": digest_without_metadata(model),
    }
    if case.model:
        # Its record names the file.
        rows = {**rows, "source": source_digest(locate_file(case.model, order.search_path))}
    places = searches.places_of(model).items()
    lines = {name: (place.source, place.code) for name, place in places if place.source}
    return ExportedModel(rows=rows, lines=lines, modules=prepared.modules)


def _files(order: OnnxOrder) -> ModelFiles:
    """Return the files of this process's model before it is quantized; programs of one run share them."""
    prepared, folder = models[0]
    run = digest_of(order.run.model_dump(mode="json", exclude=set(order.run.judged_later)))
    source = Path(prepared.model)
    return ModelFiles(folder, source, source, order.exports / f"run {run[:16]}")


def quantize_once(order: OnnxOrder, name: str = "") -> tuple[ModelFiles, QuantizedModel]:
    """Return the quantized model. The first process that needs it makes it; the others wait."""
    files = _files(order)
    record = files.quantized.with_suffix(".json")
    files.quantized.parent.mkdir(parents=True, exist_ok=True)
    with record.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists():
            own_order = replace(order, into=empty_folder(files.quantized))
            try:
                document = to_json(run_part(own_order, parts.quantize, files, name))
            except Refused as refused:
                document = {"error": dict(refused.details)}
            record.write_text(json.dumps(document), encoding="utf-8")
    document = json.loads(record.read_text(encoding="utf-8"))
    if "error" in document:
        raise Refused(document["error"])
    model = read(QuantizedModel, document)
    return replace(files, model=Path(model.model)), model


def _compile_and_compare(order: OnnxOrder, options: CompileOptions) -> ProgramFacts:
    """Compile, run and compare a chip's context; the reply includes what a report tells of the model and
    samples."""
    files, model = quantize_once(order)
    context = run_part(order, parts.compile_context, files, options)
    return ProgramFacts(prepared=models[0][0], quantized=model, context=context)


def _answering(work: Callable[[OnnxOrder, ModelFiles, T], Any], kind: type[T], name: str = "") -> Answer:
    """Return a task with only one part, which gets the model as its run has it."""

    def answer_part(order: OnnxOrder, options: T) -> CommandAnswer:
        files, model = quantize_once(order, name)
        result = run_part(order, work, files, options)
        return CommandAnswer(prepared=models[0][0], quantized=model, answer=to_json(result))

    return _task(answer_part, kind)


def _search_divergence(order: OnnxOrder, limits: DivergenceLimits) -> CommandAnswer:
    files, model = quantize_once(order)

    def answer_of(result: DivergenceResult) -> CommandAnswer:
        return CommandAnswer(prepared=models[0][0], quantized=model, answer=to_json(result))

    keep = partial(keep_partial, order.into, lambda result: to_json(answer_of(result)))
    return answer_of(run_part(order, searches.diverge, files, limits, keep))


def _quantized_file(order: OnnxOrder, name: FileName) -> CommandAnswer:
    files, model = quantize_once(order, name.stem)
    for path in files.quantized.glob(f"{name.stem}*"):
        shutil.copyfile(path, order.into / path.name)
    return CommandAnswer(prepared=models[0][0], quantized=model)


def _rewritten(order: OnnxOrder, choice: WantedRewrites) -> CommandAnswer:
    changes = run_part(order, searches.rewrite, _files(order), choice)
    return CommandAnswer(prepared=models[0][0], answer=to_json(changes))


def _run_model(request: Mapping[str, object]) -> dict[str, object]:
    """Run a compiled .onnx on the emulator, another one on the CPU."""
    order = read(OnnxRunRequest, request)
    os.chdir(order.user_folder)
    path = Path(order.model)
    (arrays,) = load_samples(Path(order.inputs))
    inputs = [check_sample(arrays, signature_of(load_graph(path)), "--input")]
    if not order.soc:
        outputs = onnx_runtime.run_on_cpu(path, inputs)
    else:
        context, soc = read_context(path), soc_named(order.soc)
        if not order.as_it_is:
            require_fit(context, onnx_runtime.installed_build(), soc)
        outputs = provider.run_context(path, soc, order.settings, inputs, cpu=True)
    save(Path(order.outputs), outputs)
    return to_json(RunReply(onnx_runtime.installed_build()))


def _exported_file(request: Mapping[str, object]) -> dict[str, object]:
    order = read(ExportToFile, request)
    os.chdir(order.user_folder)
    return to_json(preparation.export_file(order))


def _metric_of(order: Mapping[str, object]) -> dict[str, object]:
    """Compute the metric of a task."""
    request = read(MetricRequest, order)
    os.chdir(request.working_folder)
    folder = request.outputs
    expected, reference = (
        ModelOutputs(arrays_in(folder / EXPECTED)),
        ModelOutputs(arrays_in(folder / REFERENCE)),
    )
    comparison = Comparison(expected, reference)
    figures = comparison.figures_of_metric(request.function, arrays_in(folder / OUTPUTS))
    return to_json(MetricFigures(figures))


export = _task(_export, Preparing)
compiled = _task(_compile_and_compare, CompileOptions)
quantized_file = _task(_quantized_file, FileName)
rewritten = _task(_rewritten, WantedRewrites)
mixed = _answering(parts.compile_mixed, Nothing)
losses = _answering(searches.losses, Nothing, name=QUANTIZED)
estimated = _answering(parts.estimate, Chips)
searched = _task(_search_divergence, DivergenceLimits)
script = _answering(searches.script, ScriptRequest)
scored = _answering(parts.scores, ScoreRequest)
run_model = reporting(_run_model, error_of)
exported_file = reporting(_exported_file, error_of)
metric_of = reporting(_metric_of, error_of_metric)
