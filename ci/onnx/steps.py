"""The steps of a compile, each one order to a worker. Their files go to the folder that the order names."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ci.onnx import provider
from ci.onnx.arrays import Array, Sample, save, saved
from ci.onnx.context import Record, nodes_beside_context, read_context, record_path, require_fit
from ci.onnx.flexible import write_flexible
from ci.onnx.graph import (
    Problem,
    Signature,
    external_files,
    fix_dimensions,
    is_context,
    load_graph,
    problems_of,
    signature_of,
    source_digest,
    wrong_reciprocals,
)
from ci.onnx.options import Settings
from ci.onnx.profile import Place, places_of, slowest
from ci.onnx.samples import calibration_samples, checked, divided, drawn
from ci.onnx.suite import Case, Run
from ci.suites.accuracy import Pair, Unusable, compare
from ci.suites.precision import Precision, precision_named
from ci.suites.programs.compiled_onnx import CONTEXT_OPERATOR
from ci.suites.qnn_provider import installed_build
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file
from provisioning.manifest import soc_named

WITHOUT_PLACE = (CONTEXT_OPERATOR, "QuantizeLinear", "DequantizeLinear")
"""What the provider and the quantizer add to a model."""
SAMPLES = "samples.npz"
CALIBRATION = "calibration.npz"
EXPECTED = "expected.npz"
REFERENCE = "reference.npz"
OPSET = 20
DRAWN = 5
COMPARED = 2
"""How many samples `onnx compile` keeps to compare."""
SHOWN = 5
"""How many problems of a model its message names; `audit` names all."""


class NotCompilable(CheckFailed):
    """A model with problems that are found before the provider is asked."""

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        listed = "; ".join(map(str, problems[:SHOWN]))
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        remedies = dict.fromkeys(problem.remedy for problem in problems[:SHOWN])
        super().__init__(f"{path}: {listed}{more}", remedy="; ".join(remedies))
        self.problems = tuple(problems)


def look(model: Path, precision: Precision | None, dimensions: Mapping[str, int], into: Path) -> Path:
    """Refuse what cannot be compiled; returns the model with its named dimensions fixed."""
    graph = load_graph(model)
    if is_context(graph):
        raise UsageError(
            f"{model} is compiled already", remedy=session("onnx", "run", model, "--input", "FILE.npy")
        )
    external_files(graph, model.parent)
    if dimensions:
        fix_dimensions(graph, dimensions)
    if problems := problems_of(graph):
        raise NotCompilable(model, problems)
    if precision is not None:
        _require_precision(model, precision, {node.op_type for node in graph.graph.node})
    return _with_dimensions(model, dimensions, into) if dimensions else model


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
        raise UsageError(
            f"{model} is quantized already, and {precision.name} would quantize it again",
            remedy="leave --precision out, or say --precision qdq",
        )
    if precision.name == "qdq" and not has_quantization:
        raise UsageError(
            f"{model} holds no QuantizeLinear, so it is not a quantized model",
            remedy="--precision u16u8 --calibrate DIR, or --precision fp16",
        )
    if precision.name == "u16u16" and {"Conv", "ConvTranspose"} & set(operators):
        raise UsageError(
            f"{model}: HTP computes convolutions with unsigned 16-bit weights far off", remedy="use u16s16"
        )


def quantize(
    model: Path,
    samples: Sequence[Sample],
    precision: Precision,
    into: Path,
    *,
    per_channel: bool,
    name: str = "model_qdq",
) -> Path:
    if precision.quantized:
        return provider.quantized(model, samples, precision, into, per_channel=per_channel, name=name)
    return model


@dataclass(frozen=True, slots=True)
class Written:
    """A compiled model in its folder, with how it was judged."""

    record: Record
    audit: provider.Audit
    outputs: Sequence[Mapping[str, Array]]
    """Figures of the session that compiled it."""
    near: Mapping[str, float]
    """The worst figures compared with the float and the quantized model on the CPU."""
    half_floats: bool | None
    """Whether QNN computes floats in 16 bits; None if the context does not say."""
    reload_equal: bool
    ddr: dict[str, int] | None
    """Bytes between the NPU and DDR, from the compiler; None if it prints nothing."""
    reciprocals: Sequence[str]
    """Nodes that the provider computes wrongly."""


def write_context(
    model: Path,
    source: str,
    precision: Precision,
    soc_name: str,
    settings: Settings,
    samples: Sequence[Sample],
    expected: Sequence[Sample],
    reference: Sequence[Sample],
    path: Path,
    *,
    embed: bool,
    log: Path | None,
    profile: Path | None = None,
    non_finite: bool = False,
) -> Written:
    """Compile to `path`, run, reload and run again, and compare the result with the request.

    The traffic is read from `log`."""
    soc = soc_named(soc_name)
    compiled = provider.compiled(model, precision, soc, settings, path, samples, embed=embed, log=log)
    if outside := nodes_beside_context(path):
        raise CheckFailed(
            f"{path}: {len(outside)} nodes are not in the context: {', '.join(outside[:5])}",
            remedy="python -m ci audit says why",
        )
    build = installed_build()
    found = read_context(path)
    if not found.build_ids or not found.soc_id:
        raise CheckFailed(
            f"{path} says neither which QNN made it nor for which chip", remedy="compile it again"
        )
    require_fit(found, build, soc_id=soc.id, arch=soc.arch)
    again = provider.reloaded(path, soc, settings, samples[:1], profile=profile)
    record = Record(
        model=path.name,
        files={file.name: hash_file(file) for file in (path, *found.beside)},
        soc=soc_name,
        soc_id=soc.id,
        arch=soc.arch,
        precision=precision.name,
        build_id=build,
        packages=provider.packages(),
        source=source,
        settings=settings.as_dict(),
    )
    record.write(record_path(path))
    shutil.rmtree(path.parent / "trace", ignore_errors=True)
    return Written(
        record=record,
        audit=compiled.audit,
        outputs=compiled.outputs,
        near=_near(expected, reference, compiled.outputs, non_finite) if samples else {},
        half_floats=found.half_floats,
        reload_equal=_equal(compiled.outputs[:1], again),
        ddr=compiled.ddr,
        reciprocals=wrong_reciprocals(load_graph(model)),
    )


# Orders of the command line


def order_look(order: Mapping[str, Any]) -> dict[str, Any]:
    into = Path(order["into"])
    precision = precision_named(order["precision"])
    model = look(Path(order["model"]), precision, order["dimensions"], into)
    signature = signature_of(load_graph(model))
    samples = _calibration(order, order["calibrate"], signature)
    if precision.quantized and not samples:
        raise UsageError(
            f"{precision.name} needs calibration data",
            remedy="--calibrate DIR with .npy or .npz files, or --precision fp16",
        )
    return {
        "model": str(model),
        "samples": len(divided(samples, COMPARED)[1]),
        "compared": len(divided(samples, COMPARED)[0]),
        "constant": constant_inputs(samples),
        "inputs": [str(tensor) for tensor in signature.inputs],
        "outputs": [str(tensor) for tensor in signature.outputs],
    }


def order_quantize(order: Mapping[str, Any]) -> dict[str, Any]:
    model, into = Path(order["model"]), Path(order["into"])
    signature = signature_of(load_graph(model))
    compared, calibration = divided(_calibration(order, order["calibrate"], signature), COMPARED)
    precision, name = precision_named(order["precision"]), order["name"]
    quantized = quantize(model, calibration, precision, into, per_channel=order["per_channel"], name=name)
    near: Mapping[str, float] = {}
    if order["compare"]:
        samples = compared or [drawn(signature)]
        near = _near(provider.on_cpu(model, samples), [], provider.on_cpu(quantized, samples), False)
    return {"model": str(quantized), "near": dict(near), "packages": provider.packages()}


def order_compile(order: Mapping[str, Any]) -> dict[str, Any]:
    model, source = Path(order["model"]), Path(order["source"])
    precision = precision_named(order["precision"])
    signature = signature_of(load_graph(source))
    samples: list[Sample] = []
    if order["verify"]:
        samples = divided(_calibration(order, order["calibrate"], signature), COMPARED)[0]
        samples = samples or [drawn(signature)]
    expected = provider.on_cpu(source, samples)
    reference = provider.on_cpu(model, samples) if precision.quantized else []
    written = write_context(
        model,
        source_digest(source),
        precision,
        order["soc"],
        Settings(**order["settings"]),
        samples,
        expected,
        reference,
        Path(order["path"]),
        embed=order["embed"],
        log=Path(order["log"]),
        profile=Path(order["profile"]) if order["profile"] else None,
    )
    return _as_reply(written)


def order_flexible(order: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the output of `order_compile` for the first chip by one context for all chips."""
    model, source, scratch = Path(order["model"]), Path(order["source"]), Path(order["scratch"])
    precision, settings = precision_named(order["precision"]), Settings(**order["settings"])
    signature = signature_of(load_graph(source))
    samples = divided(_calibration(order, order["calibrate"], signature), COMPARED)[0] or [drawn(signature)]
    expected = provider.on_cpu(source, samples)
    reference = provider.on_cpu(model, samples) if precision.quantized else []
    near = {}
    for chip in order["chips"]:
        written = write_context(
            model,
            source_digest(source),
            precision,
            chip,
            settings,
            samples,
            expected,
            reference,
            _new_folder(scratch / chip) / "model_ctx.onnx",
            embed=False,
            log=None,
        )
        near[chip] = written.near["sqnr_db"]
    path = Path(order["path"])
    files = write_flexible(
        model, precision, order["chips"], settings, installed_build(), path, embed=order["embed"]
    )
    record = replace(
        written.record,
        model=path.name,
        files={file.name: hash_file(file) for file in files},
        soc=", ".join(order["chips"]),
        soc_id=0,
        arch=0,
    )
    record.write(record_path(path))
    return {"sqnr_db": near}


def _new_folder(path: Path) -> Path:
    path.mkdir()
    return path


def order_run(order: Mapping[str, Any]) -> dict[str, Any]:
    path = Path(order["model"])
    context = read_context(path)
    soc = soc_named(order["soc"])
    if not order.get("as_it_is"):
        require_fit(context, installed_build(), soc_id=soc.id, arch=soc.arch)
    if context.record is not None and not context.record.soc_id:
        raise UsageError(
            f"{path} is a flexible context for {context.record.soc}, and the emulator takes none",
            remedy="to run it here, compile it for one chip, without --and-soc",
        )
    sample = checked(saved(Path(order["inputs"]))[0], context.signature, "--input")
    profile = Path(order["profile"]) if order["profile"] else None
    outputs = provider.reloaded(
        path, soc, Settings(**order["settings"]), [sample], profile=profile, cpu=order.get("cpu", False)
    )
    save(Path(order["outputs"]), outputs)
    return {"build_id": installed_build()}


# Orders of the suite


def order_prepare(order: Mapping[str, Any]) -> dict[str, Any]:
    """Export or copy the model, and save inputs and the float model's outputs beside it."""
    case, into, search_path = _case(order), Path(order["into"]), Path(order["search_path"])
    notes: list[list[str]] = []
    if case.factory:
        count = max(run.calibration for run in case.runs)
        model, samples, calibration, notes = _exported(case, search_path, into, count)
    else:
        model = look(search_path / case.model, None, case.dimensions, into)
        signature = signature_of(load_graph(model))
        samples, calibration = divided(_calibration(order, case.calibrate, signature), case.inferences)
    made_up = not samples
    signature = signature_of(load_graph(model))
    samples = samples or [drawn(signature)]
    if order.get("drawn"):
        calibration = calibration or [drawn(signature, seed) for seed in range(1, DRAWN)]
    save(into / SAMPLES, samples)
    save(into / CALIBRATION, calibration)
    save(into / EXPECTED, provider.on_cpu(model, samples))
    source = source_digest(model)
    return {"model": str(model), "source": source, "made_up_inputs": made_up, "notes": notes}


def _exported(
    case: Case, search_path: Path, into: Path, count: int
) -> tuple[Path, list[Sample], list[Sample], list[list[str]]]:
    from ci.suites.factory import CALIBRATION_SEED

    assert case.factory is not None
    model, loaded = provider.export(case.factory, case.arguments, search_path, into, OPSET)
    names = [tensor.name for tensor in signature_of(load_graph(model)).inputs]

    def sample(seed: int) -> Sample:
        return dict(zip(names, (each.numpy() for each in loaded.sample(seed)), strict=True))

    samples = [sample(seed) for seed in range(case.inferences)]
    calibration = [sample(CALIBRATION_SEED + index) for index in range(count)]
    return model, samples, calibration, [list(note) for note in loaded.notes]


def order_quantize_run(order: Mapping[str, Any]) -> dict[str, Any]:
    """The prepared model in a run's precision, with its outputs on the CPU."""
    run, prepared, into = _run(order), Path(order["prepared"]), Path(order["into"])
    precision = precision_named(run.precision)
    model = look(Path(order["model"]), precision, {}, into)
    calibration = saved(prepared / CALIBRATION)[: run.calibration] if precision.quantized else []
    quantized = quantize(model, calibration, precision, into, per_channel=run.per_channel)
    if precision.quantized:
        save(into / REFERENCE, provider.on_cpu(quantized, saved(prepared / SAMPLES)))
    return {"model": str(quantized), "calibrated_by": len(calibration)}


def order_case(order: Mapping[str, Any]) -> dict[str, Any]:
    """One chip: the context beside the .onnx and the embedded one, both reloaded.

    Both have the same graph, so costs and accuracy are measured once, and the embedded one's outputs are
    compared with the other's."""
    run, prepared, into = _run(order), Path(order["prepared"]), Path(order["into"])
    precision = precision_named(run.precision)
    samples, expected = saved(prepared / SAMPLES), saved(prepared / EXPECTED)
    reference = saved(Path(order["variant"]) / REFERENCE) if precision.quantized else []

    def write(form: str, count: int, *, log: Path | None = None, profile: Path | None = None) -> Written:
        (into / form).mkdir(parents=True)
        return write_context(
            Path(order["model"]),
            order["source"],
            precision,
            order["soc"],
            run.settings(order["soc"]),
            samples[:count],
            expected[:count],
            reference[:count],
            into / form / "model_ctx.onnx",
            embed=form == "embedded",
            log=log,
            profile=profile,
            non_finite=_case(order).non_finite,
        )

    profile = into / "beside" / "profile.csv" if run.profiling else None
    beside = write("beside", len(samples), log=Path(order["log"]), profile=profile)
    embedded = write("embedded", 1)
    size = sum((into / "beside" / file).stat().st_size for file in beside.record.files)
    return {
        "beside": {**_as_reply(beside), "bytes": size},
        "embedded": _as_reply(embedded),
        "forms_equal": _equal(beside.outputs[:1], embedded.outputs),
        "slowest": [str(cost) for cost in slowest(profile)] if profile else [],
    }


def order_mixed(order: Mapping[str, Any]) -> dict[str, Any]:
    """Compile for HTP what it takes, and say what stays on the CPU and why."""
    run, path = _run(order), Path(order["into"]) / "model_ctx.onnx"
    model, source = Path(order["model"]), load_graph(Path(order["source"]))
    audit, ddr = provider.mixed(
        model,
        precision_named(run.precision),
        soc_named(order["soc"]),
        run.settings(order["soc"]),
        path,
        Path(order["log"]),
    )
    shutil.rmtree(path.parent / "trace", ignore_errors=True)
    compiled = path if path.exists() else model
    nodes = [node for node in load_graph(compiled).graph.node if node.op_type not in WITHOUT_PLACE]
    reasons = {each.node: each.reason for each in audit.unsupported}
    places, left = places_of(source), {node.name or node.output[0] for node in nodes}
    delegated = [
        node.op_type
        for node in load_graph(model).graph.node
        if node.op_type not in WITHOUT_PLACE and (node.name or node.output[0]) not in left
    ]
    return {
        "delegated": dict(Counter(delegated)),
        "cpu": [
            {
                "operator": node.op_type,
                "node": node.name,
                "reason": reasons.get(node.name, "the provider gives no reason"),
                **asdict(places.get(node.name, Place())),
            }
            for node in nodes
        ],
        "delegates": audit.graphs,
        "ddr": ddr or {"read": 0, "written": 0},
        "reciprocals": wrong_reciprocals(load_graph(model)),
    }


def order_diverge(order: Mapping[str, Any]) -> dict[str, Any]:
    """Where the quantized model on HTP first differs from itself on the CPU."""
    from ci.onnx.cuts import searched

    run, prepared = _run(order), Path(order["prepared"])
    result = searched(
        Path(order["model"]),
        places_of(load_graph(Path(order["source"]))),
        saved(prepared / SAMPLES),
        precision_named(run.precision),
        soc_named(order["soc"]),
        run.settings(order["soc"]),
        Path(order["into"]),
        order["least"],
    )
    return {"result": result}


def _case(order: Mapping[str, Any]) -> Case:
    return Case.model_validate_json(json.dumps(order["case"]))


def _run(order: Mapping[str, Any]) -> Run:
    return Run.model_validate_json(json.dumps(order["run"]))


ORDERS = {
    "look": order_look,
    "quantize": order_quantize,
    "compile": order_compile,
    "flexible": order_flexible,
    "run": order_run,
    "prepare": order_prepare,
    "quantize_run": order_quantize_run,
    "case": order_case,
    "mixed": order_mixed,
    "diverge": order_diverge,
}


def _calibration(order: Mapping[str, Any], source: str, signature: Signature) -> list[Sample]:
    """None if there is no data."""
    return calibration_samples(source, signature, Path(order["search_path"])) if source else []


def _as_reply(written: Written) -> dict[str, Any]:
    return {
        "record": asdict(written.record),
        "audit": asdict(written.audit),
        "near": dict(written.near),
        "half_floats": written.half_floats,
        "ddr": written.ddr,
        "reciprocals": list(written.reciprocals),
        "reload_equal": written.reload_equal,
    }


REMEDIES = {
    "shape": "pad it in the model to a fixed size, so that HTP gives what the CPU gives",
    "not-finite": "try --precision u16u8",
    "reference-not-finite": "look for what the model divides by or takes the logarithm of",
}


def _near(
    expected: Sequence[Sample], reference: Sequence[Sample], outputs: Sequence[Sample], non_finite: bool
) -> dict[str, float]:
    try:
        against = _pairs(reference, outputs) if reference else ()
        return compare(_pairs(expected, outputs), against, non_finite=non_finite)
    except Unusable as error:
        raise CheckFailed(
            f"the outputs cannot be compared: {error}", remedy=REMEDIES.get(error.rule, "")
        ) from error


def _pairs(expected: Sequence[Sample], outputs: Sequence[Sample]) -> Iterator[Pair]:
    for number, (one, other) in enumerate(zip(expected, outputs, strict=True)):
        for name in one:
            yield f"output {name} of sample {number}", one[name], other[name]


def _equal(one: Sequence[Mapping[str, Array]], other: Sequence[Mapping[str, Array]]) -> bool:
    return all(
        a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)
        for a, b in zip(one, other, strict=True)
    )


def _with_dimensions(model: Path, dimensions: Mapping[str, int], into: Path) -> Path:
    import onnx

    whole = onnx.load(str(model))
    fix_dimensions(whole, dimensions)
    path = into / "static.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(whole), str(path))
    return path
