"""The steps of a compile, each one order to a worker. Their files go to the folder that the order names."""

from __future__ import annotations

import json
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from ci.artifacts.compiled_onnx import CONTEXT_OPERATOR
from ci.artifacts.record import record_path
from ci.child import blame, doing
from ci.explain.onnx_rewriting import make_plain
from ci.explain.rewriting import RewriteChoice
from ci.lanes.onnx import provider
from ci.lanes.onnx.choices import NONE, Choices, choices_of
from ci.lanes.onnx.context import ContextRecord, nodes_beside_context, read_context, require_fit
from ci.lanes.onnx.flexible import write_flexible
from ci.lanes.onnx.graph import (
    REWRITTEN,
    NotCompilable,
    Size,
    all_in_float,
    external_files,
    fix_dimensions,
    is_context,
    load_graph,
    problems_of,
    shapes_of,
    signature_of,
    size_of,
    source_digest,
    wrong_reciprocals,
)
from ci.lanes.onnx.options import Settings
from ci.lanes.onnx.samples import OUTPUTS, Divided, calibration_samples, divided, resembling
from ci.lanes.onnx.source_places import SourcePlace, places_of
from ci.lanes.onnx.suite import OnnxCase, OnnxRun, calibrating, command_for_one
from ci.models.arrays import Array, Sample, save, saved
from ci.models.imports import modules_in
from ci.models.inputs import (
    DRAWN_COMPARED,
    Input,
    InputsUsed,
    checked,
    drawn,
    drawn_compared,
    most_calibrating,
)
from ci.models.wheels import located
from ci.suite.accuracy import (
    FLOAT_KIND,
    OF_A_DRAW,
    Pair,
    Unusable,
    compare,
    compared,
    each_sample_db,
    in_words,
    missed,
    pair_of_choice,
)
from ci.suite.findings import BEYOND_FIX, below_usual, beyond_in_words
from ci.suite.metric import side_by_side
from ci.suite.precision import Precision, precision_named
from ci.suite.programs import Thresholds
from ci.suite.qnn_provider import installed_build
from provisioning.base import commands
from provisioning.base.commands import Fix, leave_out
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError
from provisioning.base.files import hash_file
from provisioning.manifest import Soc, soc_named

WITHOUT_PLACE = (CONTEXT_OPERATOR, *provider.QUANTIZERS)
"""What the provider and the quantizer add to a model."""
SAMPLES = "samples.npz"
CALIBRATION = "calibration.npz"
EXPECTED = "expected.npz"
REFERENCE = "reference.npz"
OPSET = 20
DRAWN = 9
MESSAGE = 600


def look(model: Path, dimensions: Mapping[str, Size], into: Path) -> Path:
    """Refuse what cannot be compiled; returns the model made plain, with its named dimensions fixed."""
    graph = load_graph(model)
    if is_context(graph):
        message = f"{model} is compiled already"
        raise UsageError(message, fix=commands.session("run", model, "--input", "FILE.npy"))
    beside = external_files(graph, model.parent)
    if dimensions:
        fix_dimensions(graph, dimensions)
    if problems := problems_of(graph):
        raise NotCompilable(model, problems)
    if not make_plain(graph) and not dimensions:
        return model
    return _rewritten(model, dimensions, into, beside=bool(beside))


def constant_inputs(samples: Sequence[Sample]) -> list[str]:
    """Float inputs with the same value in all samples, which gives no range."""
    return [
        name
        for name, first in (samples[0] if samples else {}).items()
        if first.dtype.kind == "f" and all((sample[name] == first.flat[0]).all() for sample in samples)
    ]


def _require_precision(model: Path, precision: Precision, operators: Collection[str]) -> None:
    has_quantization = "QuantizeLinear" in operators or "DequantizeLinear" in operators
    if has_quantization and precision.name != "qdq":
        message = f"{model} is quantized already, and {precision.written} would quantize it again"
        raise UsageError(message, fix=leave_out("--precision", ", or say --precision qdq"))
    if precision.name == "qdq" and not has_quantization:
        message = f"{model} holds no QuantizeLinear, so it is not a quantized model"
        fix = Fix("{}, or --precision fp16", ("--precision", "16a8w", "--calibrate", "DIR"))
        raise UsageError(message, fix=fix)
    if precision.name == "u16u16" and {"Conv", "ConvTranspose"} & set(operators):
        message = f"{model}: HTP computes convolutions with unsigned 16-bit weights far off"
        raise UsageError(message, fix="use u16s16")


def write_context(
    order: Mapping[str, Any],
    soc_name: str,
    settings: Settings,
    path: Path,
    *,
    embed: bool,
    most: int | None = None,
    log: Path | None = None,
) -> tuple[dict[str, Any], list[Sample]]:
    """Compile the quantized model to `path`, run, reload and run again, and compare the result with the
    request. Returns the facts for a reply, and the outputs of the session that compiled it.

    At most `most` inferences are compared. The traffic is read from `log`."""
    model, source, soc = Path(order["model"]), Path(order["source"]), soc_named(soc_name)
    case, precision = case_of(order), precision_named(run_of(order).precision)
    prepared, quantized = Path(order["prepared"]), Path(order["quantized"])
    files = (prepared / SAMPLES, prepared / EXPECTED, quantized / REFERENCE)
    samples, expected, reference = (saved(file)[:most] if file.is_file() else [] for file in files)
    traced = order.get("trace", True)
    why = command_for_one("audit", case, run_of(order), soc_name, Path(order["search_path"]))
    session, audit, ddr = provider.compiled(
        model, precision, soc, settings, path, embed=embed, log=log, traced=traced, why=why
    )
    doing("run")
    outputs = [provider.run(session, sample, settings) for sample in samples]
    # The reload below must be a session by itself.
    del session
    if outside := nodes_beside_context(path):
        message = f"{path}: {len(outside)} nodes are not in the context: {', '.join(outside[:5])}"
        raise CheckFailed(message, fix=why and f"{why} says why")
    build = installed_build()
    context = read_context(path)
    if not context.build_ids or not context.soc_id:
        raise CheckFailed(f"{path} says neither which QNN made it nor for which chip", fix="compile it again")
    require_fit(context, build, soc_id=soc.id, arch=soc.arch)
    again = provider.reloaded(path, soc, settings, samples[:1])
    record = ContextRecord(
        model=path.name,
        files={file.name: hash_file(file) for file in (path, *context.beside)},
        soc=soc_name,
        soc_id=soc.id,
        arch=soc.arch,
        precision=precision.written,
        build_id=build,
        packages=provider.packages(),
        source=source_digest(located(case.model, Path(order["search_path"])) if case.model else source),
        settings=settings.as_dict(),
    )
    record.write(record_path(path))
    shutil.rmtree(path.parent / "trace", ignore_errors=True)
    among = choices_of(source, model if reference else None, samples, path.parent / "choices")
    shutil.rmtree(path.parent / "choices", ignore_errors=True)

    def beyond() -> list[dict[str, Any]]:
        return _beyond_half(source, samples, path.parent) if precision.name == FLOAT_KIND else []

    near = _near(expected, reference, outputs, case.non_finite, among, beyond, kind=precision.name)
    facts = {
        "record": asdict(record),
        "audit": asdict(audit),
        **near,
        "draws": _each_draw(expected, reference, outputs, case.non_finite, among) if case.recorded else [],
        "each_db": each_sample_db(_pairs(expected, outputs, NONE), len(expected)) if expected else [],
        "choices": list(among[0].operators),
        # Whether QNN computes floats in 16 bits; None if the context does not say.
        "half_floats": context.half_floats,
        "reload_equal": _equal(outputs[:1], again),
        "ddr": ddr,
        "reciprocals": wrong_reciprocals(load_graph(model)),
    }
    return facts, outputs


# Orders, by their names: a model is prepared, then quantized, then whatever a stage or a command wants of it.


def order_prepare(order: Mapping[str, Any]) -> dict[str, Any]:
    """Export or check the model, and save inputs and the float model's outputs beside it.

    With `calibration`, this many samples of a factory are kept to calibrate by, instead of the run's number.
    With `drawn`, a model without samples is calibrated by drawn ones; without `verify`, none are compared."""
    case, into, search_path = case_of(order), Path(order["into"]), Path(order["search_path"])
    notes, constant = list[list[str]](), list[str]()
    count = order["calibration"] if "calibration" in order else run_of(order).calibration
    if case.factory:
        model, (samples, calibration, used), notes = _exported(case, search_path, into, count)
        signature = signature_of(load_graph(model))
    else:
        model = look(located(case.model, search_path), case.dimensions, into)
        signature = signature_of(load_graph(model))
        every = calibration_samples(case.samples, signature, search_path) if case.samples else []
        samples, calibration, used = divided(every, case.inferences, count)
        constant = constant_inputs(every)
    facts = {
        "model": str(model),
        "inputs": [str(tensor) for tensor in signature.inputs],
        "used": asdict(used),
        "build_id": installed_build(),
        "constant": constant,
        "notes": notes,
        "modules": modules_in(search_path),
    }
    if order.get("drawn"):
        calibration = calibration or [drawn(signature, seed) for seed in range(1, DRAWN)]
    if not order.get("verify", True):
        samples = []
    elif not samples:
        count = case.inferences or drawn_compared(2 * size_of(load_graph(model))["macs"])
        samples = [drawn(signature), *(drawn(signature, DRAWN + number) for number in range(count - 1))]
        facts["used"] = asdict(replace(used, compared=count))
    save(into / SAMPLES, samples)
    save(into / CALIBRATION, calibration)
    save(into / EXPECTED, provider.on_cpu(model, samples))
    return facts


def _exported(
    case: OnnxCase, search_path: Path, into: Path, count: int | None
) -> tuple[Path, Divided, list[list[str]]]:
    from ci.models.samples import inputs_named
    from ci.models.user_model import BadFactory

    assert case.factory is not None
    try:
        inputs = inputs_named(case.samples, case.inputs, search_path)
    except BadFactory as error:
        raise CheckFailed(str(error), fix=error.fix) from error
    model, loaded = provider.export(case.factory, case.arguments, search_path, into, OPSET, inputs)
    if isinstance(loaded, dict):
        return model, _resembling(loaded, case, count), []
    names = [tensor.name for tensor in signature_of(load_graph(model)).inputs]

    def named(samples: list[tuple[Any, ...]]) -> list[Sample]:
        return [dict(zip(names, (tensor.numpy() for tensor in sample), strict=True)) for sample in samples]

    try:
        chosen = loaded.chosen(case.inferences, count)
    except BadFactory as error:
        raise CheckFailed(str(error), fix=error.fix) from error
    divided = Divided(named(chosen.compared), named(chosen.calibrating), chosen.used)
    return model, divided, [list(note) for note in loaded.notes]


def _resembling(sample: Sample, case: OnnxCase, count: int | None) -> Divided:
    """Of an ONNX model with one sample: that one. A case whose results are recorded gets drawn ones, too."""
    if not case.recorded:
        return Divided([sample], [sample], InputsUsed(1, 1, given=1))
    from ci.models.factory import CALIBRATION_SEED

    count = most_calibrating(count, given=False)
    samples = [resembling(sample, number) for number in range(case.inferences or DRAWN_COMPARED)]
    others = [resembling(sample, CALIBRATION_SEED + index) for index in range(count)]
    return Divided(samples, [*samples, *others][:count], InputsUsed(len(samples), count))


def order_quantize(order: Mapping[str, Any]) -> dict[str, Any]:
    """With `name`, which a user's file gets, the outputs on the CPU are compared with the float model's."""
    try:
        return _quantized(order)
    except Exception as error:
        return _failed(order, error)


def _quantized(order: Mapping[str, Any]) -> dict[str, Any]:
    run, prepared, into = run_of(order), Path(order["prepared"]), Path(order["into"])
    model, precision = Path(order["model"]), precision_named(run.precision)
    _require_precision(model, precision, {node.op_type for node in load_graph(model).graph.node})
    if run.repaired:
        model = _repaired(model, prepared, into, run.precision)
    if not precision.quantized:
        return {"model": str(model), "calibrated_by": 0}
    calibration = saved(prepared / CALIBRATION)[: calibrating(case_of(order), run)]
    if not calibration:
        message = f"{precision.written} needs calibration data"
        fix = "calibrate with .npy or .npz files (--calibrate DIR), or compile in fp16"
        raise UsageError(message, fix=fix)
    name = order.get("name")
    quantized = provider.quantized(
        model,
        calibration,
        precision,
        into,
        per_channel=run.per_channel,
        nodes=run.nodes,
        name=name or "model_qdq",
        alone=case_of(order).recorded,
    )
    outputs = provider.on_cpu(quantized, saved(prepared / SAMPLES))
    save(into / REFERENCE, outputs)
    return {
        "model": str(quantized),
        "calibrated_by": len(calibration),
        "in_float": case_of(order).recorded and all_in_float(load_graph(quantized)),
        **_near(saved(prepared / EXPECTED) if name else [], [], outputs, False),
        "packages": provider.packages(),
    }


def _repaired(model: Path, prepared: Path, into: Path, precision: str) -> Path:
    import onnx

    from ci.lanes.onnx.graphs import repair

    samples = [*saved(prepared / SAMPLES), *saved(prepared / CALIBRATION)]
    if not repair(onnx.load(str(model)), samples, into, precision, RewriteChoice()).rewritten:
        message = f"{model}: no known fault of this build affects it"
        raise UsageError(message, fix="take repaired out of this run")
    return into / REWRITTEN


def order_flexible(order: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the context of `order_case` for the first chip by one context for all chips."""
    settings, path = Settings(**order["settings"]), Path(order["path"])
    near = {}
    for chip in order["chips"]:
        folder = Path(order["into"]) / chip
        folder.mkdir()
        facts, _ = write_context(order, chip, settings, folder / "model_ctx.onnx", embed=False)
        near[chip] = in_words(facts["near"])
    model, precision = Path(order["model"]), precision_named(run_of(order).precision)
    files = write_flexible(model, precision, order["chips"], settings, path, embed=order["embed"])
    record = replace(
        ContextRecord(**facts["record"]),
        model=path.name,
        files={file.name: hash_file(file) for file in files},
        soc=", ".join(order["chips"]),
        soc_id=0,
        arch=0,
    )
    record.write(record_path(path))
    return {"near": near}


def order_run(order: Mapping[str, Any]) -> dict[str, Any]:
    path, soc = Path(order["model"]), soc_named(order["soc"])
    context = read_context(path)
    if not order.get("as_it_is"):
        require_fit(context, installed_build(), soc_id=soc.id, arch=soc.arch)
    if context.record is not None and not context.record.soc_id:
        message = f"{path} is a flexible context for {context.record.soc}, which the emulator cannot run"
        raise UsageError(message, fix="to run it here, compile it for one chip, without --and-soc")
    sample = checked(saved(Path(order["inputs"]))[0], context.signature, "--input")
    took, cpu, settings = list[float](), order.get("cpu", False), Settings(**order["settings"])
    samples = [sample] * order.get("repeat", 1)
    outputs = provider.reloaded(path, soc, settings, samples, cpu=cpu, took=took)
    save(Path(order["outputs"]), outputs[-1:])
    return {"build_id": installed_build(), "milliseconds": took}


def order_run_on_cpu(order: Mapping[str, Any]) -> dict[str, Any]:
    path, took = Path(order["model"]), list[float]()
    sample = checked(saved(Path(order["inputs"]))[0], signature_of(load_graph(path)), "--input")
    outputs = provider.on_cpu(path, [sample] * order["repeat"], took)
    save(Path(order["outputs"]), outputs[-1:])
    return {"milliseconds": took}


def order_case(order: Mapping[str, Any]) -> dict[str, Any]:
    """One chip: the context beside the .onnx and the embedded one, both reloaded; or those of
    `forms`.

    Both have the same graph, so costs and accuracy are measured once, and the second one's outputs are
    compared with the first's."""
    run, into = run_of(order), Path(order["into"])
    if run.refused:
        return _refused(order, run, into / "model_ctx.onnx")
    try:
        return _contexts(order, run, into)
    except CheckFailed as error:
        return _failed(order, error)


def _contexts(order: Mapping[str, Any], run: OnnxRun, into: Path) -> dict[str, Any]:
    soc, log, stem = order["soc"], Path(order["log"]), order.get("stem", "model_ctx")
    settings = Settings(**order["settings"]) if "settings" in order else run.settings(soc)
    first, *others = order.get("forms", ("beside", "embedded"))

    def write(form: str, **more: Any) -> tuple[dict[str, Any], list[Sample]]:
        (into / form).mkdir(parents=True)
        path = into / form / f"{stem}.onnx"
        return write_context(order, soc, settings, path, embed=form == "embedded", **more)

    measured, outputs = write(first, log=log)
    if order.get("keeps_outputs") and measured["near"]:
        for file in (Path(order["prepared"]) / EXPECTED, Path(order["quantized"]) / REFERENCE):
            if file.is_file():
                shutil.copyfile(file, into / file.name)
        save(into / OUTPUTS, outputs)
    size = sum((into / first / file).stat().st_size for file in measured["record"]["files"])
    again = {form: write(form, most=1) for form in others}
    return {
        first: {**measured, "bytes": size},
        **{form: facts for form, (facts, _) in again.items()},
        "forms_equal": all(_equal(outputs[:1], other) for _, other in again.values()),
    }


def _refused(order: Mapping[str, Any], run: OnnxRun, path: Path) -> dict[str, Any]:
    """QNN is to refuse the model for the operators that the suite names, and for no others."""
    expected = ", ".join(sorted(run.refused))
    try:
        write_context(order, order["soc"], run.settings(order["soc"]), path, embed=False, most=1)
    except provider.NotOnProvider as error:
        refused = error.operators.difference(WITHOUT_PLACE)
    else:
        message = f"QNN compiles the whole model, but the suite says that it refuses {expected}"
        raise CheckFailed(message, fix="remove refused from this run, so that its figures are held")
    if refused != set(run.refused):
        raise CheckFailed(
            f"QNN refuses {', '.join(sorted(refused)) or 'quantizers alone'}, but the suite says that it"
            f" refuses {expected}",
            fix=f"write refused = {json.dumps(sorted(refused))} into this run, or change the model",
        )
    return _refusal(order, refused)


def _refusal(order: Mapping[str, Any], refused: Collection[str]) -> dict[str, Any]:
    operators = {node.op_type for node in load_graph(Path(order["model"])).graph.node}
    taken = operators.difference(WITHOUT_PLACE, refused)
    return {"refused": sorted(refused), "taken": sorted(taken), "build_id": installed_build()}


def _failed(order: Mapping[str, Any], error: Exception) -> dict[str, Any]:
    """The error as the result of a case whose failures are results. Raises it again for other cases."""
    if not case_of(order).recorded:
        raise error
    blame(error, order)
    if isinstance(error, provider.NotOnProvider):
        # Where nothing else is refused, quantizers stand for types that do not go together.
        refused = error.operators.difference(WITHOUT_PLACE) or error.operators
        return {**_refusal(order, refused), "message": error.message[:MESSAGE]}
    traceback.print_exception(error)
    cause = error.__cause__
    failed = "dies"
    if isinstance(cause, Unusable):
        failed = "bad_test" if cause.rule.startswith("reference") else "wrong"
    message = error.message if isinstance(error, ToolkitError) else f"{type(error).__name__}: {error}"
    return {"failed": failed, "message": message[:MESSAGE], "build_id": installed_build()}


def order_metric(order: Mapping[str, Any]) -> dict[str, Any]:
    folder = Path(order["outputs"])
    files = (folder / EXPECTED, folder / OUTPUTS, folder / REFERENCE)
    expected, outputs, reference = (saved(file) if file.is_file() else [] for file in files)
    pairs, against = _pairs(expected, outputs, NONE), _pairs(reference, outputs, NONE)
    against = against if reference else iter(())
    return {"figures": side_by_side(order["function"], pairs, against, len(expected))}


def order_mixed(order: Mapping[str, Any]) -> dict[str, Any]:
    """Compile for HTP what it takes, and say what stays on the CPU and why."""
    path, model = Path(order["into"]) / "model_ctx.onnx", Path(order["model"])
    source, log = load_graph(Path(order["source"])), Path(order["log"])
    _, audit, ddr = provider.compiled(model, *_target_of(order), path, log=log, cpu=True)
    shutil.rmtree(path.parent / "trace", ignore_errors=True)
    compiled = path if path.exists() else model
    nodes = [node for node in load_graph(compiled).graph.node if node.op_type not in WITHOUT_PLACE]
    reasons = {node.node: node.reason for node in audit.unsupported}
    places, cpu_nodes = places_of(source), {node.name or node.output[0] for node in nodes}
    delegated = [
        node.op_type
        for node in load_graph(model).graph.node
        if node.op_type not in WITHOUT_PLACE and (node.name or node.output[0]) not in cpu_nodes
    ]
    return {
        "delegated": dict(Counter(delegated)),
        "cpu": [
            {
                "operator": node.op_type,
                "node": node.name,
                "reason": reasons.get(node.name, "the provider gives no reason"),
                **asdict(places.get(node.name, SourcePlace())),
            }
            for node in nodes
        ],
        "delegates": audit.graphs,
        "ddr": ddr or {"read": 0, "written": 0},
        "reciprocals": wrong_reciprocals(load_graph(model)),
    }


def order_estimate(order: Mapping[str, Any]) -> dict[str, Any]:
    """QNN's estimates of the quantized model for the chips that it has them for, and why one has none."""
    model, into, estimates, refused = Path(order["model"]), Path(order["into"]), {}, {}
    for chip in order["chips"]:
        try:
            found = provider.estimated(model, *_target_of(order, chip), into)
        except CheckFailed as error:
            refused[chip] = error.message
        else:
            if found:
                estimates[chip] = found.as_dict()
    graph = load_graph(model)
    nodes = [node for node in graph.graph.node if node.op_type not in WITHOUT_PLACE]
    return {
        "build_id": installed_build(),
        "estimates": estimates,
        "refused": refused,
        "operators": dict(Counter(node.op_type for node in nodes)),
        "shapes": shapes_of(graph, nodes),
        "size": size_of(load_graph(provider.folded(Path(order["source"]), into))),
    }


def order_diverge(order: Mapping[str, Any]) -> dict[str, Any]:
    """Where the quantized model on HTP first differs from itself on the CPU."""
    from ci.lanes.onnx.graphs import divergence_of

    model, places = Path(order["model"]), places_of(load_graph(Path(order["source"])))
    samples, limits = saved(Path(order["prepared"]) / SAMPLES), (order["least"], order["seconds"])
    into, whole = Path(order["into"]), order["whole"]
    return {"result": divergence_of(model, places, samples, _target_of(order), into, *limits, whole)}


def order_script(order: Mapping[str, Any]) -> dict[str, Any]:
    """One operator of the quantized model, alone."""
    from ci.lanes.onnx.graphs import script

    sample = saved(Path(order["prepared"]) / SAMPLES)[order["sample"]]
    into, target = Path(order["into"]), _target_of(order)
    return script(Path(order["model"]), order["operator"], sample, order["before"], target, into)


def order_losses(order: Mapping[str, Any]) -> dict[str, Any]:
    from ci.lanes.onnx.graphs import losses

    source, places = Path(order["source"]), places_of(load_graph(Path(order["source"])))
    sample = saved(Path(order["prepared"]) / SAMPLES)[0]
    return {"losses": losses(source, Path(order["model"]), places, sample, Path(order["quantized"]))}


def order_rewrite(order: Mapping[str, Any]) -> dict[str, Any]:
    from ci.lanes.onnx.graphs import rewritten

    choice = RewriteChoice(order["rules"] and tuple(order["rules"]), order["interface"])
    precision, into = run_of(order).precision, Path(order["into"])
    return rewritten(case_of(order), Path(order["search_path"]), into, precision, choice)


def order_scores(order: Mapping[str, Any]) -> dict[str, Any]:
    """What each group of operators adds to the noise in the outputs of the quantized models of `folders`."""
    from ci.lanes.onnx.graphs import scores

    folders = [Path(folder) for folder in order["folders"]]
    changed = folders[0] / provider.PREPROCESSED
    source = changed if changed.is_file() else Path(order["source"])
    sample = saved(Path(order["prepared"]) / CALIBRATION)[0]
    places = places_of(load_graph(Path(order["source"])))
    models = [folder / "model_qdq.onnx" for folder in folders]
    return scores(source, models, places, sample, Path(order["into"]), order["seconds"])


def case_of(order: Mapping[str, Any]) -> OnnxCase:
    inputs = tuple(Input.model_validate_json(json.dumps(text)) for text in order["case"].get("inputs", ()))
    return OnnxCase.model_construct(**{**order["case"], "inputs": inputs})


def run_of(order: Mapping[str, Any]) -> OnnxRun:
    # An order lacks the fields that are judged later, without which a run is not valid.
    return OnnxRun.model_construct(**order["run"])


def _target_of(order: Mapping[str, Any], soc: str = "") -> tuple[Precision, Soc, Settings]:
    """What the run is compiled for: the order's chip, or another."""
    run, soc = run_of(order), soc or order["soc"]
    return precision_named(run.precision), soc_named(soc), run.settings(soc)


FIXES = {
    "shape": "pad it in the model to a fixed size, so that HTP gives what the CPU gives",
    "not-finite": "try --precision 16a8w",
    "reference-not-finite": "look for divisions and logarithms in the model, or give inputs"
    " that it is made for: --calibrate DIR",
}


def _near(
    expected: Sequence[Sample],
    reference: Sequence[Sample],
    outputs: Sequence[Sample],
    non_finite: bool,
    among: tuple[Choices, Choices] = (NONE, NONE),
    beyond: Callable[[], list[dict[str, Any]]] = list,
    *,
    kind: str = "",
) -> dict[str, Any]:
    """The worst figures, the slices that are lost, and, where too much is, what `beyond` gives."""
    if not expected:
        return {"near": {}, "slices": [], "beyond": []}
    try:
        floats, quantized = among
        against = _pairs(reference, outputs, quantized) if reference else ()
        near, slices = compared(_pairs(expected, outputs, floats), against, non_finite=non_finite)
    except Unusable as error:
        words = beyond_in_words(beyond())
        message = "; ".join(filter(None, [f"the outputs cannot be compared: {error}", words]))
        raise CheckFailed(message, fix=BEYOND_FIX if words else FIXES.get(error.rule, "")) from error
    low = missed(Thresholds(), near, kind) or below_usual(kind, near)
    return {"near": near, "slices": slices, "beyond": beyond() if low else []}


def _each_draw(
    expected: Sequence[Sample],
    reference: Sequence[Sample],
    outputs: Sequence[Sample],
    non_finite: bool,
    among: tuple[Choices, Choices],
) -> list[dict[str, float]]:
    """The figures of each sample by itself that a word of the operator table is made from."""
    both = zip((expected, reference), among, strict=True)
    floats, quantized = (_pairs_by_sample(wanted, outputs, choices) for wanted, choices in both)
    every = (compare(*pairs, non_finite=non_finite) for pairs in zip_longest(floats, quantized, fillvalue=()))
    return [{name: figure for name, figure in figures.items() if name in OF_A_DRAW} for figures in every]


def _beyond_half(source: Path, samples: Sequence[Sample], into: Path) -> list[dict[str, Any]]:
    from ci.lanes.onnx.graphs import beyond_half

    return beyond_half(source, places_of(load_graph(source)), samples, into)


def _pairs(expected: Sequence[Sample], outputs: Sequence[Sample], among: Choices) -> Iterator[Pair]:
    return chain.from_iterable(_pairs_by_sample(expected, outputs, among))


def _pairs_by_sample(
    expected: Sequence[Sample], outputs: Sequence[Sample], among: Choices
) -> Iterator[Iterator[Pair]]:
    """None if nothing is expected."""
    both = zip(expected, outputs, strict=True) if expected else ()
    return (_pairs_of(number, wanted, found, among) for number, (wanted, found) in enumerate(both))


def _pairs_of(number: int, wanted: Sample, found: Sample, among: Choices) -> Iterator[Pair]:
    for name in wanted:
        title, arrays = f"output {name} of sample {number}", (wanted[name], found[name])
        if name in among.values and arrays[0].shape == arrays[1].shape:
            values, dim, noise = among.values[name][number], among.axes[name], among.noise[name]
            yield pair_of_choice(title, *arrays, name, values, dim=dim, noise=noise)
        else:
            yield Pair(title, *arrays, name)


def _equal(one: Sequence[Mapping[str, Array]], other: Sequence[Mapping[str, Array]]) -> bool:
    first, second = ([{name: row[name].tobytes() for name in row} for row in rows] for rows in (one, other))
    return first == second


def _rewritten(model: Path, dimensions: Mapping[str, Size], into: Path, *, beside: bool) -> Path:
    """With `beside`, its weights are external data again: one file may not hold more than 2 GB."""
    import onnx

    whole = onnx.load(str(model))
    if dimensions:
        fix_dimensions(whole, dimensions)
        whole = onnx.shape_inference.infer_shapes(whole)
    make_plain(whole)
    path = into / "static.onnx"
    onnx.save(whole, str(path), save_as_external_data=beside, location="static.bin" if beside else None)
    return path
