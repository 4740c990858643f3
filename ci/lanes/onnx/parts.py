"""Do the parts of a program's work in `order.into`: quantize its model, compile it, compare it, estimate its
time. Each part runs in a process of its own (`worker`), behind `prepare`, and gets the files that the parts
before it left."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import onnx

from ci.artifacts.compiled_onnx import CONTEXT_OPERATOR
from ci.artifacts.compiler_log import NO_TRAFFIC, Traffic
from ci.artifacts.records import record_path
from ci.explain.losses import BeyondHalf, ScoreRequest, Scores, scores_of
from ci.explain.onnx_graph import NO_PLACE, name_of
from ci.lanes.onnx import provider
from ci.lanes.onnx.comparison import Comparison, comparison_of
from ci.lanes.onnx.model_file import (
    ContextRecord,
    OnnxContext,
    all_in_float,
    load_graph,
    nodes_beside_context,
    read_context,
    require_fit,
    size_of,
    source_digest,
)
from ci.lanes.onnx.orders import (
    CONTEXT,
    MODEL,
    QUANTIZED,
    Accuracy,
    Chips,
    CompiledContext,
    CompileOptions,
    Mixed,
    QuantizedModel,
)
from ci.lanes.onnx.searches import beyond_half, graph_of, places_of, target_of
from ci.lanes.onnx.suite import OnnxOrder, calibrating
from ci.lanes.onnx.task_files import EXPECTED, JUDGED, OUTPUTS, REFERENCE, ModelFiles
from ci.models.inputs import save
from ci.models.wheels import locate_file
from ci.one_model.forecast import QnnEstimates
from ci.operators import CpuOperator
from ci.suite.judged_samples import JudgedSamples, SampleFacts, digest_of_files, write_samples
from ci.suite.limits import FLOAT_KIND
from ci.suite.model_outputs import ModelOutputs
from ci.suite.onnx_runtime import fold_constants, installed_build, run_on_cpu
from ci.suite.precision import Precision, precision_named
from ci.work import Nothing, to_json
from provisioning.base.commands import Fix, leave_out
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import empty_folder, hash_file
from provisioning.manifest import soc_named

NOT_THE_MODELS = (CONTEXT_OPERATOR, *provider.QUANTIZERS)
"""The provider and the quantizer add these operators to a model."""


def quantize(order: OnnxOrder, files: ModelFiles, name: str) -> QuantizedModel:
    """Quantize the model. A user's file gets a `name`; its outputs on the CPU are then compared with the
    float model's."""
    run, into = order.run, order.into
    precision = precision_named(run.precision)
    operators = {node.op_type for node in load_graph(files.source).graph.node}
    _require_precision(order.case.model or str(files.source), precision, operators)
    if not precision.quantized:
        return QuantizedModel(model=str(files.source))
    calibration = files.calibration()[: calibrating(order.case, run)]
    if not calibration:
        message = f"{precision.suite_name} needs calibration data"
        fix = "calibrate with .npy or .npz files (--calibrate DIR), or compile in fp16"
        raise UsageError(message, fix=fix)
    quantized = provider.quantize_model(
        files.source,
        calibration,
        precision,
        into,
        per_channel=run.per_channel,
        nodes=run.nodes,
        name=name or QUANTIZED,
        alone=order.case.recorded,
    )
    outputs = run_on_cpu(quantized, files.samples())
    save(into / REFERENCE, outputs)
    near = Accuracy()
    if name:
        comparison = Comparison(ModelOutputs(files.float_outputs()), ModelOutputs([]))
        near = comparison.accuracy(outputs, "", tuple)
    return QuantizedModel(
        model=str(quantized),
        calibrated_by=len(calibration),
        in_float=order.case.recorded and all_in_float(load_graph(quantized)),
        near=near,
        packages=provider.packages(),
    )


def _require_precision(model: str, precision: Precision, operators: Collection[str]) -> None:
    has_quantization = "QuantizeLinear" in operators or "DequantizeLinear" in operators
    if has_quantization and precision.name != "qdq":
        message = f"{model} is quantized already, and {precision.suite_name} would quantize it again"
        raise UsageError(message, fix=leave_out("--precision", ", or say --precision qdq"))
    if precision.name == "qdq" and not has_quantization:
        message = f"{model} holds no QuantizeLinear, so it is not a quantized model"
        fix = Fix("{}, or --precision fp16", ("--precision", "16a8w", "--calibrate", "DIR"))
        raise UsageError(message, fix=fix)
    has_convolution = "Conv" in operators or "ConvTranspose" in operators
    if precision.name == "u16u16" and has_convolution:
        message = f"{model}: HTP computes convolutions with unsigned 16-bit weights far off"
        raise UsageError(message, fix="use u16s16")


def compile_context(order: OnnxOrder, files: ModelFiles, options: CompileOptions) -> CompiledContext:
    """Compile for one chip; then load, run and compare the context as a device would."""
    precision, samples = precision_named(order.run.precision), files.samples()
    path = empty_folder(order.into / CONTEXT) / f"{options.stem}.onnx"
    context, traffic = _compile_whole(order, files.model, path, embed=options.embed)
    outputs = provider.run_context(path, soc_named(order.soc), order.run.settings(order.soc), samples)
    context_files = (path, *context.data_files)
    record = _record_of(order, files, path, context_files)
    record.write(record_path(path))
    comparison = comparison_of(files, samples, non_finite=order.case.non_finite)
    if options.keeps_outputs and comparison.exact.by_sample:
        for file in (files.prepared / EXPECTED, files.quantized / REFERENCE):
            if file.is_file():
                shutil.copyfile(file, order.into / file.name)
        save(order.into / OUTPUTS, outputs)
    if options.keeps_samples and comparison.exact.by_sample:
        facts = SampleFacts(
            program=digest_of_files(context_files),
            soc=order.soc,
            build_id=record.build_id,
            kind=order.run.kind,
            non_finite=order.case.non_finite,
        )
        judged = JudgedSamples(
            facts=facts,
            inputs=samples,
            exact=comparison.exact,
            reference=comparison.reference,
            emulated=outputs,
        )
        write_samples(order.into / JUDGED, judged)

    def beyond() -> tuple[BeyondHalf, ...]:
        return beyond_half(files.source, samples) if precision.name == FLOAT_KIND else ()

    return CompiledContext(
        record=record,
        near=comparison.accuracy(outputs, precision.name, beyond),
        bytes=sum(file.stat().st_size for file in context_files),
        ddr=traffic,
        half_floats=context.half_floats,
        each_db=tuple(comparison.each_db(outputs)),
        draws=tuple(comparison.each_draw(outputs)) if order.case.recorded else (),
        choices=tuple(comparison.choosers),
    )


def _compile_whole(
    order: OnnxOrder, model: Path, path: Path, *, embed: bool
) -> tuple[OnnxContext, Traffic | None]:
    """Compile the whole model into a context, or raise the reason why that is not possible."""
    soc, precision = soc_named(order.soc), precision_named(order.run.precision)
    settings, why = order.run.settings(order.soc), order.command("audit")
    traffic = provider.compile_context(model, precision, soc, settings, path, embed=embed, why=why)
    if outside := nodes_beside_context(path):
        message = f"{path}: {len(outside)} nodes are not in the context: {', '.join(outside[:5])}"
        raise CheckFailed(message, fix=why and f"{why} says why")
    context = read_context(path)
    if not context.build_ids or not context.soc_id:
        raise CheckFailed(f"{path} says neither which QNN made it nor for which chip", fix="compile it again")
    require_fit(context, installed_build(), soc)
    return context, traffic


def _record_of(
    order: OnnxOrder, files: ModelFiles, path: Path, context_files: Sequence[Path]
) -> ContextRecord:
    case, soc = order.case, soc_named(order.soc)
    source = locate_file(case.model, order.search_path) if case.model else files.source
    return ContextRecord(
        model=path.name,
        files={file.name: hash_file(file) for file in context_files},
        soc=order.soc,
        soc_id=soc.id,
        arch=soc.arch,
        precision=precision_named(order.run.precision).suite_name,
        build_id=installed_build(),
        packages=provider.packages(),
        source=source_digest(source),
        settings=to_json(order.run.settings(order.soc)),
    )


def compile_mixed(order: OnnxOrder, files: ModelFiles, _: Nothing) -> Mixed:
    """Compile for HTP what it accepts, and say what stays on the CPU and why."""
    path = order.into / f"{MODEL}.onnx"
    audit, traffic = provider.audit_model(files.model, *target_of(order), path)
    # Without a compiled model, HTP accepts nothing.
    on_cpu = _own_nodes(path if path.exists() else files.model)
    names_on_cpu = {name_of(node) for node in on_cpu}
    delegated = Counter[str]()
    for node in _own_nodes(files.model):
        if name_of(node) not in names_on_cpu:
            delegated[node.op_type] += 1
    reasons = {node.node: node.reason for node in audit.unsupported}
    places = places_of(files.source)
    cpu_operators = []
    for node in on_cpu:
        place = replace(places.get(node.name, NO_PLACE), operator=node.op_type)
        reason = reasons.get(node.name, "the provider gives no reason")
        # ONNX Runtime has a CPU kernel of each: without it there would be no session.
        cpu_operators.append(CpuOperator(**asdict(place), node=node.name, reason=reason, kernel=True))
    return Mixed(dict(delegated), tuple(cpu_operators), audit.graphs, traffic or NO_TRAFFIC)


def _own_nodes(path: Path) -> list[onnx.NodeProto]:
    """Return the nodes that neither the provider nor the quantizer added."""
    return [node for node in load_graph(path).graph.node if node.op_type not in NOT_THE_MODELS]


def estimate(order: OnnxOrder, files: ModelFiles, chips: Chips) -> QnnEstimates:
    """Return QNN's estimates of the quantized model for the chips that it can estimate, and why there is none
    for the others."""
    into = empty_folder(order.scratch / "estimate")
    estimates, refused, on_cpu = {}, {}, ""
    for chip in chips.names:
        try:
            estimated = provider.estimate_time(files.model, *target_of(order, chip), into)
        except provider.NotOnProvider as error:
            on_cpu = error.message
            break
        except CheckFailed as error:
            refused[chip] = error.message
        else:
            if estimated:
                estimates[chip] = estimated
    return QnnEstimates(
        build_id=installed_build(),
        estimates=estimates,
        refused=refused,
        on_cpu=on_cpu,
        operators=dict(Counter(node.op_type for node in _own_nodes(files.model))),
        size=size_of(fold_constants(files.source)),
    )


def scores(order: OnnxOrder, files: ModelFiles, limits: ScoreRequest) -> Scores:
    """Score each group of operators: what it adds to the outputs' noise at the run's precision, and at
    `exact`."""
    models = [files.model]
    # What is not quantized adds nothing that quantizing would take away.
    if precision_named(limits.exact).quantized:
        run = order.run.model_copy(update={"precision": limits.exact})
        into = empty_folder(order.scratch / "exact")
        models.append(Path(quantize(replace(order, run=run, into=into), files, "").model))
    sample = files.calibration()[:1]
    preprocessed = files.quantized / provider.PREPROCESSED
    source = preprocessed if preprocessed.is_file() else files.source
    floats = graph_of(source, sample, places_of(files.source))
    graphs = [graph_of(model, sample) for model in models]
    return scores_of(floats, graphs, limits.seconds)
