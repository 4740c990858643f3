"""Does the parts of a program's work in `order.into`: prepares its model, quantizes, compiles, runs and
compares it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import onnx

from ci.artifacts.compiled_onnx import CONTEXT_OPERATOR
from ci.artifacts.compiler_log import NO_TRAFFIC
from ci.artifacts.program import record_path
from ci.explain.losses import BeyondHalf, ScoreRequest, Scores, beyond_in_words, scores_of
from ci.explain.onnx_graph import NO_PLACE, make_plain, values_of
from ci.lanes.onnx import provider
from ci.lanes.onnx.model_file import (
    ContextRecord,
    NotCompilable,
    Size,
    all_in_float,
    external_files,
    fix_dimensions,
    is_context,
    load_graph,
    nodes_beside_context,
    problems_of,
    read_context,
    require_fit,
    signature_of,
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
    ExportedFile,
    ExportToFile,
    Mixed,
    PreparedModel,
    Preparing,
    QuantizedModel,
)
from ci.lanes.onnx.samples import (
    CALIBRATION,
    EXPECTED,
    OUTPUTS,
    REFERENCE,
    SAMPLES,
    Divided,
    ModelFiles,
    calibration_samples,
    divide_samples,
    resembling,
)
from ci.lanes.onnx.searches import beyond_half, graph_of, places_of, target_of
from ci.lanes.onnx.suite import OnnxCase, OnnxOrder, calibrating
from ci.models.inputs import (
    DRAWN_COMPARED,
    Array,
    InputsUsed,
    Sample,
    draw_sample,
    drawn_compared,
    most_calibrating,
    order_files,
    save,
)
from ci.models.user_model import modules_in
from ci.models.wheels import locate_file
from ci.one_model.forecast import QnnEstimates
from ci.operators import CpuOperator
from ci.suite.accuracy import (
    FLOAT_KIND,
    OF_A_DRAW,
    Pair,
    Unusable,
    compare,
    compare_with_slices,
    each_sample_db,
    missed_thresholds,
    pair_of_choice,
    side_by_side,
    tie_noise,
)
from ci.suite.findings import BEYOND_FIX, below_usual
from ci.suite.onnx_runtime import fold_constants, installed_build, run_on_cpu
from ci.suite.precision import Precision, precision_named
from ci.suite.suite_file import Thresholds
from ci.work import Nothing, to_json
from provisioning.base import commands
from provisioning.base.commands import Fix, leave_out
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import empty_folder, hash_file
from provisioning.manifest import soc_named

CHOOSERS = {"ArgMax": 0, "ArgMin": 0, "TopK": -1}
"""Each operator is mapped to its default axis."""
SAME_VALUES = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
FIXES = {
    "shape": "pad it in the model to a fixed size, so that HTP gives what the CPU gives",
    "not-finite": "try --precision 16a8w",
    "reference-not-finite": "look for divisions and logarithms in the model, or give inputs"
    " that it is made for: --calibrate DIR",
}


@dataclass(frozen=True)
class Choices:
    """Holds, for each output and inference, what the indices chose among."""

    values: Mapping[str, Sequence[Array]]
    axes: Mapping[str, int]
    noise: Mapping[str, float]


NO_CHOICES = Choices({}, {}, {})


@dataclass(frozen=True)
class Comparison:
    """Holds the outputs that a program's are compared with; in float there are none of a quantized model."""

    exact: Sequence[Sample]
    reference: Sequence[Sample]
    non_finite: bool
    floats: Choices = NO_CHOICES
    quantized: Choices = NO_CHOICES
    choosers: Sequence[str] = ()
    """These operators compute indices that are outputs."""

    def near(
        self, outputs: Sequence[Sample], kind: str, beyond: Callable[[], Sequence[BeyondHalf]]
    ) -> Accuracy:
        """Return the worst figures and the slices that are lost. If too much is lost, `beyond` is asked for
        operators that leave fp16."""
        if not self.exact:
            return Accuracy()
        pairs = _pairs(self.exact, outputs, self.floats), _pairs(self.reference, outputs, self.quantized)
        try:
            figures, slices = compare_with_slices(*pairs, non_finite=self.non_finite)
        except Unusable as error:
            words = beyond_in_words(beyond())
            message = "; ".join(filter(None, [f"the outputs cannot be compared: {error}", words]))
            raise CheckFailed(message, fix=BEYOND_FIX if words else FIXES.get(error.rule, "")) from error
        low = missed_thresholds(Thresholds(), figures, kind) or below_usual(kind, figures)
        return Accuracy(figures, tuple(slices), tuple(beyond()) if low else ())

    def each_draw(self, outputs: Sequence[Sample]) -> list[dict[str, float]]:
        """Return, for each sample by itself, the figures that decide a word of the operator table."""
        floats = _pairs_by_sample(self.exact, outputs, self.floats)
        quantized = _pairs_by_sample(self.reference, outputs, self.quantized)
        samples = zip_longest(floats, quantized, fillvalue=())
        draws = []
        for pairs in samples:
            figures = compare(*pairs, non_finite=self.non_finite)
            draws.append({name: figure for name, figure in figures.items() if name in OF_A_DRAW})
        return draws

    def each_db(self, outputs: Sequence[Sample]) -> list[float]:
        count = len(self.exact)
        return each_sample_db(_pairs(self.exact, outputs, NO_CHOICES), count) if count else []

    def measured_by(self, metric: str, outputs: Sequence[Sample]) -> dict[str, float]:
        """Return the figures of the user's own metric."""
        pairs, against = (_pairs(rows, outputs, NO_CHOICES) for rows in (self.exact, self.reference))
        return side_by_side(metric, pairs, against, len(self.exact))


def comparison_of(
    files: ModelFiles,
    samples: Sequence[Sample],
    exact: Sequence[Sample],
    reference: Sequence[Sample],
    *,
    non_finite: bool,
) -> Comparison:
    """Return what outputs are compared with, including what indices chose among: in the float model, and in
    the quantized one if it has outputs."""
    floats = _choosers(files.source)
    of_quantized = _choosers(files.model) if reference else floats
    names = [name for name in floats if name in of_quantized]
    if not names or not samples:
        return Comparison(exact, reference, non_finite)
    values = _chosen_among(files.source, floats, names, samples)
    quantized = _chosen_among(files.model, of_quantized, names, samples) if reference else {}
    axes = {name: _axis(floats[name]) % values[name][0].ndim for name in names}
    noise = {name: tie_noise(values[name], quantized.get(name, ()), axes[name]) for name in names}
    choosers = [f"{floats[name].op_type} ({floats[name].name})" for name in names]
    choices = Choices(values, axes, noise), Choices(quantized, axes, noise)
    return Comparison(exact, reference, non_finite, *choices, choosers)


def _choosers(path: Path) -> dict[str, onnx.NodeProto]:
    """Return the operators that compute indices as outputs, by output."""
    model = onnx.load(str(path), load_external_data=False)
    maker = {name: node for node in model.graph.node for name in node.output}
    choosers = {}
    for output in model.graph.output:
        node, tensor = maker.get(output.name), output.name
        while node is not None and node.op_type in SAME_VALUES:
            tensor = node.input[0]
            node = maker.get(tensor)
        # TopK's first output are the values.
        if node is not None and node.op_type in CHOOSERS and tensor == node.output[-1]:
            choosers[output.name] = node
    return choosers


def _axis(node: onnx.NodeProto) -> int:
    return next((int(row.i) for row in node.attribute if row.name == "axis"), CHOOSERS[node.op_type])


def _chosen_among(
    path: Path,
    choosers: Mapping[str, onnx.NodeProto],
    names: Sequence[str],
    samples: Sequence[Sample],
) -> dict[str, list[Array]]:
    operands = {name: str(choosers[name].input[0]) for name in names}
    rows = values_of(onnx.load(str(path)), samples, operands.values())
    values = {}
    for name, tensor in operands.items():
        values[name] = [row[tensor] for row in rows]
    return values


def _pairs(exact: Sequence[Sample], outputs: Sequence[Sample], among: Choices) -> Iterator[Pair]:
    return chain.from_iterable(_pairs_by_sample(exact, outputs, among))


def _pairs_by_sample(
    exact: Sequence[Sample], outputs: Sequence[Sample], among: Choices
) -> Iterator[Iterator[Pair]]:
    """Pair the outputs of each sample; there are no pairs if nothing is expected."""
    pairs = zip(exact, outputs, strict=True) if exact else ()
    return (_pairs_of(number, row, output, among) for number, (row, output) in enumerate(pairs))


def _pairs_of(number: int, exact: Sample, output: Sample, among: Choices) -> Iterator[Pair]:
    for name in exact:
        title, arrays = f"output {name} of sample {number}", (exact[name], output[name])
        if name in among.values and arrays[0].shape == arrays[1].shape:
            values, dim, noise = among.values[name][number], among.axes[name], among.noise[name]
            yield pair_of_choice(title, *arrays, name, values, dim=dim, noise=noise)
        else:
            yield Pair(title, *arrays, name)


WITHOUT_PLACE = (CONTEXT_OPERATOR, *provider.QUANTIZERS)
"""The provider and the quantizer add these operators to a model."""
OPSET = 20
COMPARED_SEED = 1 << 20
"""Drawn samples that are compared have numbers from here on, except for the first; samples that calibrate
have other numbers."""


def prepare(order: OnnxOrder, preparing: Preparing) -> PreparedModel:
    """Export or check the model, and save inputs and the float model's outputs beside it."""
    case, into = order.case, order.into
    count = order.run.calibration if preparing.calibration is None else preparing.calibration
    notes: Sequence[tuple[str, str]] = ()
    if case.factory:
        model, (samples, calibration, used), notes = _export_model(order, count)
        signature = signature_of(load_graph(model))
    else:
        model = look(locate_file(case.model, order.search_path), case.dimensions, into)
        signature = signature_of(load_graph(model))
        rows = calibration_samples(case.samples, signature, order.search_path) if case.samples else []
        samples, calibration, used = divide_samples(rows, case.inferences, count)
    if preparing.drawn and not calibration:
        most = most_calibrating(count, has_data=False)
        calibration = [draw_sample(signature, seed) for seed in range(1, most + 1)]
        used = replace(used, calibrating=most)
    if not preparing.compares:
        samples = []
    elif not samples:
        count = case.inferences or drawn_compared(2 * size_of(load_graph(model)).macs)
        samples = [
            draw_sample(signature),
            *(draw_sample(signature, COMPARED_SEED + number) for number in range(count - 1)),
        ]
        used = replace(used, compared=count)
    save(into / SAMPLES, samples)
    save(into / CALIBRATION, calibration)
    save(into / EXPECTED, run_on_cpu(model, samples))
    return PreparedModel(
        model=str(model),
        used=used,
        inputs=tuple(str(tensor) for tensor in signature.inputs),
        notes=tuple(notes),
        modules=tuple(modules_in(order.search_path)),
    )


def look(model: Path, dimensions: Mapping[str, Size], into: Path) -> Path:
    """Refuse what cannot be compiled; return the model made plain, with its named dimensions fixed."""
    graph = load_graph(model)
    if is_context(graph):
        message = f"{model} is compiled already"
        raise UsageError(message, fix=commands.session("run", model, "--input", "FILE.npy"))
    data_files = external_files(graph, model.parent)
    if dimensions:
        fix_dimensions(graph, dimensions)
    if problems := problems_of(graph):
        raise NotCompilable(model, problems)
    if not make_plain(graph) and not dimensions:
        return model
    proto = onnx.load(str(model))
    if dimensions:
        fix_dimensions(proto, dimensions)
        proto = onnx.shape_inference.infer_shapes(proto)
    make_plain(proto)
    path = into / "static.onnx"
    # Its weights are external data again: one file may not hold more than 2 GB.
    more = {"save_as_external_data": True, "location": "static.bin"} if data_files else {}
    onnx.save(proto, str(path), **more)
    return path


def _export_model(order: OnnxOrder, count: int | None) -> tuple[Path, Divided, Sequence[tuple[str, str]]]:
    from ci.models.factory import inputs_named

    case = order.case
    assert case.factory is not None
    inputs = inputs_named(case.samples, case.inputs, order.search_path)
    arguments = case.arguments, order.search_path, order.into, OPSET, inputs
    model, subject = provider.export(case.factory, *arguments, non_finite=case.non_finite)
    if isinstance(subject, dict):
        return model, _resembling(subject, case, count), ()
    return model, _choose_samples(model, subject, case.inferences, count), subject.notes


def _choose_samples(model: Path, subject: Any, inferences: int | None, calibration: int | None) -> Divided:
    """Return the samples of a PyTorch model, by the names of the exported model's inputs."""
    choice = subject.choose(inferences, calibration)
    names = [tensor.name for tensor in signature_of(load_graph(model)).inputs]

    def name_inputs(samples: list[tuple[Any, ...]]) -> list[Sample]:
        named = []
        for sample in samples:
            named.append({name: tensor.numpy() for name, tensor in zip(names, sample, strict=True)})
        return named

    return Divided(name_inputs(choice.compared), name_inputs(choice.calibrating), choice.used)


def export_file(request: ExportToFile) -> ExportedFile:
    """Write a PyTorch model as an .onnx, and a file for each sample, of the user or of the model's own
    function."""
    import numpy as np

    from ci.models.factory import inputs_named

    into, user_folder = Path(request.into), Path(request.user_folder)
    inputs = inputs_named(request.samples, (), user_folder)
    search_path = Path(request.search_path)
    model, subject = provider.export(request.factory, {}, search_path, into, OPSET, inputs, own_names=True)
    if isinstance(subject, dict):
        chosen, notes = Divided([subject], [subject], InputsUsed(1, 1, given=1)), list[tuple[str, str]]()
    else:
        chosen, notes = (
            _choose_samples(model, subject, request.inferences, request.calibration),
            subject.notes,
        )
    model.rename(into / request.model)
    folder = into / request.folder
    folder.mkdir()
    is_single = chosen.used.given == 1
    samples = chosen.compared if is_single else order_files(chosen.compared, chosen.calibrating)
    for number, sample in enumerate(samples):
        np.savez(folder / f"{number:03}.npz", **sample)  # type: ignore[arg-type]
    compared = None if chosen.used.given else chosen.used.compared
    return ExportedFile(tuple(message for _, message in notes), compared)


def _resembling(sample: Sample, case: OnnxCase, count: int | None) -> Divided:
    """Calibrate and compare an ONNX model by its one sample. A case whose results are recorded also gets
    drawn ones."""
    if not case.recorded:
        return Divided([sample], [sample], InputsUsed(1, 1, given=1))
    from ci.models.factory import CALIBRATION_SEED

    count = most_calibrating(count, has_data=False)
    samples = [resembling(sample, number) for number in range(case.inferences or DRAWN_COMPARED)]
    calibration = [resembling(sample, CALIBRATION_SEED + index) for index in range(count)]
    return Divided(samples, [*samples, *calibration][:count], InputsUsed(len(samples), count))


def quantize(order: OnnxOrder, files: ModelFiles, name: str) -> QuantizedModel:
    """Quantize the model. Given `name`, which a user's file gets, compare its outputs on the CPU with the
    float model's."""
    run, into, model = order.run, order.into, files.source
    precision = precision_named(run.precision)
    operators = {node.op_type for node in load_graph(model).graph.node}
    _require_precision(order.case.model or str(model), precision, operators)
    if not precision.quantized:
        return QuantizedModel(model=str(model))
    calibration = files.calibration()[: calibrating(order.case, run)]
    if not calibration:
        message = f"{precision.suite_name} needs calibration data"
        fix = "calibrate with .npy or .npz files (--calibrate DIR), or compile in fp16"
        raise UsageError(message, fix=fix)
    quantized = provider.quantize_model(
        model,
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
    compared = Comparison(files.float_outputs() if name else [], [], non_finite=False)
    return QuantizedModel(
        model=str(quantized),
        calibrated_by=len(calibration),
        in_float=order.case.recorded and all_in_float(load_graph(quantized)),
        near=compared.near(outputs, "", tuple),
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
    if precision.name == "u16u16" and {"Conv", "ConvTranspose"} & set(operators):
        message = f"{model}: HTP computes convolutions with unsigned 16-bit weights far off"
        raise UsageError(message, fix="use u16s16")


def compile_context(order: OnnxOrder, files: ModelFiles, options: CompileOptions) -> CompiledContext:
    """Compile for one chip; then load, run and compare the context as a device would."""
    case, soc, precision = order.case, soc_named(order.soc), precision_named(order.run.precision)
    settings = order.run.settings(order.soc)
    path = empty_folder(order.into / CONTEXT) / f"{options.stem}.onnx"
    why = order.command("audit")
    ddr = provider.compile_context(files.model, precision, soc, settings, path, embed=options.embed, why=why)
    if outside := nodes_beside_context(path):
        message = f"{path}: {len(outside)} nodes are not in the context: {', '.join(outside[:5])}"
        raise CheckFailed(message, fix=why and f"{why} says why")
    build = installed_build()
    context = read_context(path)
    if not context.build_ids or not context.soc_id:
        raise CheckFailed(f"{path} says neither which QNN made it nor for which chip", fix="compile it again")
    require_fit(context, build, soc)
    samples, exact, reference = files.samples(), files.float_outputs(), files.reference()
    outputs = provider.run_context(path, soc, settings, samples)
    paths = (path, *context.data_files)
    record = ContextRecord(
        model=path.name,
        files={file.name: hash_file(file) for file in paths},
        soc=order.soc,
        soc_id=soc.id,
        arch=soc.arch,
        precision=precision.suite_name,
        build_id=build,
        packages=provider.packages(),
        source=source_digest(locate_file(case.model, order.search_path) if case.model else files.source),
        settings=to_json(settings),
    )
    record.write(record_path(path))
    compared = comparison_of(files, samples, exact, reference, non_finite=case.non_finite)
    if options.keeps_outputs and exact:
        for file in (files.prepared / EXPECTED, files.quantized / REFERENCE):
            if file.is_file():
                shutil.copyfile(file, order.into / file.name)
        save(order.into / OUTPUTS, outputs)

    def beyond() -> tuple[BeyondHalf, ...]:
        return beyond_half(files.source, samples) if precision.name == FLOAT_KIND else ()

    return CompiledContext(
        record=record,
        near=compared.near(outputs, precision.name, beyond),
        bytes=sum(file.stat().st_size for file in paths),
        ddr=ddr,
        half_floats=context.half_floats,
        each_db=tuple(compared.each_db(outputs)),
        draws=tuple(compared.each_draw(outputs)) if case.recorded else (),
        choices=tuple(compared.choosers),
    )


def compile_mixed(order: OnnxOrder, files: ModelFiles, _: Nothing) -> Mixed:
    """Compile for HTP what it accepts, and say what stays on the CPU and why."""
    path = order.into / f"{MODEL}.onnx"
    audit, ddr = provider.audit_model(files.model, *target_of(order), path)
    compiled = path if path.exists() else files.model
    nodes = [node for node in load_graph(compiled).graph.node if node.op_type not in WITHOUT_PLACE]
    reasons = {node.node: node.reason for node in audit.unsupported}
    places, model = places_of(files.source), load_graph(files.model)
    cpu_nodes = {node.name or node.output[0] for node in nodes}
    delegated = [
        node.op_type
        for node in model.graph.node
        if node.op_type not in WITHOUT_PLACE and (node.name or node.output[0]) not in cpu_nodes
    ]
    unknown = "the provider gives no reason"
    operators = (
        # ONNX Runtime has a CPU kernel of each: without it there would be no session.
        CpuOperator(
            **asdict(replace(places.get(node.name, NO_PLACE), operator=node.op_type)),
            node=node.name,
            reason=reasons.get(node.name, unknown),
            kernel=True,
        )
        for node in nodes
    )
    return Mixed(dict(Counter(delegated)), tuple(operators), audit.graphs, ddr or NO_TRAFFIC)


def estimate(order: OnnxOrder, files: ModelFiles, chips: Chips) -> QnnEstimates:
    """Return QNN's estimates of the quantized model for the chips that it can estimate, and why there is none
    for the others."""
    estimates, refused, into = {}, {}, empty_folder(order.scratch / "estimate")
    for chip in chips.names:
        try:
            answer = provider.estimate_time(files.model, *target_of(order, chip), into)
        except CheckFailed as error:
            refused[chip] = error.message
        else:
            if answer:
                estimates[chip] = answer
    graph = load_graph(files.model)
    nodes = [node for node in graph.graph.node if node.op_type not in WITHOUT_PLACE]
    return QnnEstimates(
        build_id=installed_build(),
        estimates=estimates,
        refused=refused,
        operators=dict(Counter(node.op_type for node in nodes)),
        size=size_of(fold_constants(files.source)),
    )


def scores(order: OnnxOrder, files: ModelFiles, limits: ScoreRequest) -> Scores:
    """Score each group of operators: what it adds to the outputs' noise at the run's precision, and at
    `exact`."""
    models, float_file = [files.model], files.quantized / provider.PREPROCESSED
    # What is not quantized adds nothing that quantizing would take away.
    if precision_named(limits.exact).quantized:
        run = order.run.model_copy(update={"precision": limits.exact})
        into = empty_folder(order.scratch / "exact")
        models.append(Path(quantize(replace(order, run=run, into=into), files, "").model))
    sample, source = files.calibration()[:1], float_file if float_file.is_file() else files.source
    floats = graph_of(source, sample, places_of(files.source))
    graphs = [graph_of(model, sample) for model in models]
    return scores_of(floats, graphs, limits.seconds)
