"""The steps of a compile, each of them one order to a worker. What they make goes into the folder given."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ci.onnx import engine
from ci.onnx.arrays import Array, Sample, save, saved
from ci.onnx.context import Record, digest, nodes_beside_context, read_context, record_path, require_fit
from ci.onnx.graph import (
    Problem,
    Signature,
    external_files,
    fix_dimensions,
    is_context,
    load_graph,
    problems_of,
    signature_of,
)
from ci.onnx.options import Settings
from ci.onnx.precision import Precision, precision_named
from ci.onnx.samples import calibration_samples, checked
from ci.suites.accuracy import Pair, Unusable, compare
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.manifest import soc_named

SAMPLES = "samples.npz"
CALIBRATION = "calibration.npz"
EXPECTED = "expected.npz"
OPSET = 20
SHOWN = 5
"""Problems of a model named in its message; `onnx audit` names all."""


class NotCompilable(CheckFailed):
    """A model with problems that are known before the provider is asked."""

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        listed = "; ".join(map(str, problems[:SHOWN]))
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        mends = dict.fromkeys(problem.remedy for problem in problems[:SHOWN])
        super().__init__(f"{path}: {listed}{more}", remedy="; ".join(mends))
        self.problems = tuple(problems)


def look(model: Path, precision: Precision | None, dimensions: Mapping[str, int], into: Path) -> Path:
    """Refuse what cannot be compiled; returns the model to go on with, its named dimensions fixed."""
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
    """Float inputs with one value throughout all samples, from which no range can be taken."""
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
    model: Path, samples: Sequence[Sample], precision: Precision, into: Path, *, per_channel: bool
) -> Path:
    if precision.quantized:
        return engine.quantized(model, samples, precision, into, per_channel=per_channel)
    return model


@dataclass(frozen=True, slots=True)
class Written:
    """A compiled model in its folder, with how it was judged."""

    record: Record
    audit: engine.Audit
    outputs: Sequence[Mapping[str, Array]]
    """Of the session that compiled it."""
    near: Mapping[str, float]
    """To the float model on the CPU: the worst of every figure."""
    reload_equal: bool
    ddr: dict[str, int] | None
    """Bytes between the NPU and DDR, as the compiler says; None when it says nothing."""


def write_context(
    model: Path,
    source: str,
    precision: Precision,
    soc_name: str,
    settings: Settings,
    samples: Sequence[Sample],
    expected: Sequence[Mapping[str, Array]],
    path: Path,
    *,
    embed: bool,
    log: Path | None,
    profile: Path | None = None,
    non_finite: bool = False,
) -> Written:
    """Compile to `path`, run there, reload and run again, and hold what was written to what was asked for.

    The traffic is read from `log`."""
    soc = soc_named(soc_name)
    made = engine.compiled(model, precision, soc, settings, path, samples, embed=embed, log=log)
    if outside := nodes_beside_context(path):
        raise CheckFailed(
            f"{path}: {len(outside)} nodes are not in the context: {', '.join(outside[:5])}",
            remedy="python -m ci onnx audit says why",
        )
    build = engine.installed_build()
    found = read_context(path)
    if not found.build_ids or not found.soc_id:
        raise CheckFailed(
            f"{path} says neither which QNN made it nor for which chip", remedy="compile it again"
        )
    require_fit(found, build, soc_id=soc.id, arch=soc.arch)
    again = engine.reloaded(path, soc, settings, samples[:1], profile=profile)
    record = Record(
        model=path.name,
        files={file.name: digest(file) for file in (path, *found.beside)},
        soc=soc_name,
        soc_id=soc.id,
        arch=soc.arch,
        precision=precision.name,
        build_id=build,
        packages=engine.packages(),
        source=source,
        settings=settings.as_dict(),
    )
    record.write(record_path(path))
    shutil.rmtree(path.parent / "trace", ignore_errors=True)
    return Written(
        record=record,
        audit=made.audit,
        outputs=made.outputs,
        near=_near(expected, made.outputs, non_finite),
        reload_equal=_equal(made.outputs[:1], again),
        ddr=made.ddr,
    )


def source_digest(model: Path) -> str:
    """Of the model and of its external data."""
    files = [model, *external_files(load_graph(model), model.parent)]
    return digest(model) if len(files) == 1 else " ".join(digest(file) for file in files)


# Orders of the command line


def order_look(order: Mapping[str, Any]) -> dict[str, Any]:
    into = Path(order["into"])
    precision = precision_named(order["precision"])
    model = look(Path(order["model"]), precision, order["dimensions"], into)
    signature = signature_of(load_graph(model))
    samples = _calibration(order, signature)
    if precision.quantized and not samples:
        raise UsageError(
            f"{precision.name} needs calibration data",
            remedy="--calibrate DIR with .npy or .npz files, or --precision fp16",
        )
    return {
        "model": str(model),
        "samples": len(samples),
        "constant": constant_inputs(samples),
        "inputs": [str(tensor) for tensor in signature.inputs],
        "outputs": [str(tensor) for tensor in signature.outputs],
    }


def order_quantize(order: Mapping[str, Any]) -> dict[str, Any]:
    model, into = Path(order["model"]), Path(order["into"])
    samples = _calibration(order, signature_of(load_graph(model)))
    precision = precision_named(order["precision"])
    return {"model": str(quantize(model, samples, precision, into, per_channel=order["per_channel"]))}


def order_compile(order: Mapping[str, Any]) -> dict[str, Any]:
    model, source = Path(order["model"]), Path(order["source"])
    precision = precision_named(order["precision"])
    signature = signature_of(load_graph(source))
    samples = _calibration(order, signature)[:2] or [_random(signature)]
    expected = engine.reference(source, samples)
    written = write_context(
        model,
        source_digest(source),
        precision,
        order["soc"],
        Settings(**order["settings"]),
        samples,
        expected,
        Path(order["path"]),
        embed=order["embed"],
        log=Path(order["log"]),
        profile=Path(order["profile"]) if order["profile"] else None,
    )
    return _as_reply(written)


def order_run(order: Mapping[str, Any]) -> dict[str, Any]:
    path = Path(order["model"])
    context = read_context(path)
    soc = soc_named(order["soc"])
    require_fit(context, engine.installed_build(), soc_id=soc.id, arch=soc.arch)
    sample = checked(saved(Path(order["inputs"]))[0], context.signature, "--input")
    profile = Path(order["profile"]) if order["profile"] else None
    outputs = engine.reloaded(path, soc, Settings(**order["settings"]), [sample], profile=profile)
    save(Path(order["outputs"]), outputs)
    return {"build_id": engine.installed_build()}


def order_audit(order: Mapping[str, Any]) -> dict[str, Any]:
    precision = precision_named(order["precision"])
    model = Path(order["model"])
    audit = engine.audited(
        model, precision, soc_named(order["soc"]), Settings(**order["settings"]), Path(order["into"])
    )
    return asdict(audit)


# Orders of the suite


def order_prepare(order: Mapping[str, Any]) -> dict[str, Any]:
    """Export or take the model, and keep inputs and the float model's outputs beside it."""
    into = Path(order["into"])
    calibration: list[Sample]
    if order["factory"]:
        from ci.suites.factory import CALIBRATION_SEED

        model, made = engine.export(
            order["factory"], order["arguments"], Path(order["search_path"]), into, OPSET
        )
        signature = signature_of(load_graph(model))
        names = [tensor.name for tensor in signature.inputs]

        def sample(seed: int) -> Sample:
            return dict(zip(names, (each.numpy() for each in made.sample(seed)), strict=True))

        samples = [sample(seed) for seed in range(order["inferences"])]
        calibration = [sample(CALIBRATION_SEED + index) for index in range(order["calibration"])]
    else:
        model = look(Path(order["model"]), None, order["dimensions"], into)
        signature = signature_of(load_graph(model))
        calibration = _calibration(order, signature)
        samples = calibration[: order["inferences"]] or [_random(signature)]
    save(into / SAMPLES, samples)
    save(into / CALIBRATION, calibration)
    save(into / EXPECTED, engine.reference(model, samples))
    return {"model": str(model), "source": source_digest(model)}


def order_variant(order: Mapping[str, Any]) -> dict[str, Any]:
    """The prepared model in one precision."""
    prepared, into = Path(order["prepared"]), Path(order["into"])
    precision = precision_named(order["precision"])
    model = look(Path(order["model"]), precision, {}, into)
    calibration = saved(prepared / CALIBRATION)[: order["calibration"]]
    return {"model": str(quantize(model, calibration, precision, into, per_channel=order["per_channel"]))}


def order_case(order: Mapping[str, Any]) -> dict[str, Any]:
    """One chip: the context beside the .onnx and embedded, both reloaded.

    The same graph is compiled for both, so costs and accuracy are measured once, and the embedded one is held
    to the outputs of the other."""
    prepared, into = Path(order["prepared"]), Path(order["into"])
    samples, expected = saved(prepared / SAMPLES), saved(prepared / EXPECTED)

    def write(form: str, count: int, *, log: Path | None = None, profile: Path | None = None) -> Written:
        return write_context(
            Path(order["model"]),
            order["source"],
            precision_named(order["precision"]),
            order["soc"],
            Settings(**order["settings"]),
            samples[:count],
            expected[:count],
            into / form / "model_ctx.onnx",
            embed=form == "embedded",
            log=log,
            profile=profile,
            non_finite=order["non_finite"],
        )

    for form in ("beside", "embedded"):
        (into / form).mkdir(parents=True)
    profile = into / "beside" / "profile.csv" if order["profiling"] else None
    beside = write("beside", len(samples), log=Path(order["log"]), profile=profile)
    embedded = write("embedded", 1)
    size = sum((into / "beside" / file).stat().st_size for file in beside.record.files)
    return {
        "beside": {**_as_reply(beside), "bytes": size},
        "embedded": _as_reply(embedded),
        "forms_equal": _equal(beside.outputs[:1], embedded.outputs),
        "profile": str(profile) if profile else "",
    }


ORDERS = {
    "look": order_look,
    "quantize": order_quantize,
    "compile": order_compile,
    "run": order_run,
    "audit": order_audit,
    "prepare": order_prepare,
    "variant": order_variant,
    "case": order_case,
}


def _calibration(order: Mapping[str, Any], signature: Signature) -> list[Sample]:
    """None where no data is given."""
    source = order["calibrate"]
    return calibration_samples(source, signature, Path(order["search_path"])) if source else []


def _as_reply(written: Written) -> dict[str, Any]:
    return {
        "record": asdict(written.record),
        "audit": asdict(written.audit),
        "near": dict(written.near),
        "ddr": written.ddr,
        "reload_equal": written.reload_equal,
    }


REMEDIES = {
    "shape": "pad it in the model to a fixed size, so that HTP gives what the CPU gives",
    "not-finite": "try --precision u16u8",
    "reference-not-finite": "look for what the model divides by or takes the logarithm of",
}


def _near(
    expected: Sequence[Mapping[str, Array]], outputs: Sequence[Mapping[str, Array]], non_finite: bool
) -> dict[str, float]:
    try:
        return compare(_pairs(expected, outputs), non_finite=non_finite)
    except Unusable as error:
        raise CheckFailed(
            f"the outputs cannot be compared: {error}", remedy=REMEDIES.get(error.rule, "")
        ) from error


def _pairs(expected: Sequence[Mapping[str, Array]], outputs: Sequence[Mapping[str, Array]]) -> Iterator[Pair]:
    for number, (one, other) in enumerate(zip(expected, outputs, strict=True)):
        for name in one:
            yield f"output {name} of sample {number}", one[name], other[name]


def _equal(one: Sequence[Mapping[str, Array]], other: Sequence[Mapping[str, Array]]) -> bool:
    return all(
        a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)
        for a, b in zip(one, other, strict=True)
    )


def _random(signature: Any) -> Sample:
    """Stands in where the user gives no data: enough to compare a run with its reload."""
    generator = np.random.default_rng(0)

    def of(tensor: Any) -> Array:
        if np.dtype(tensor.dtype).kind == "f":
            made: Array = generator.standard_normal(tensor.shape).astype(tensor.dtype)
            return made
        return np.zeros(tensor.shape, tensor.dtype)

    return {tensor.name: of(tensor) for tensor in signature.inputs}


def _with_dimensions(model: Path, dimensions: Mapping[str, int], into: Path) -> Path:
    import onnx

    whole = onnx.load(str(model))
    fix_dimensions(whole, dimensions)
    path = into / "static.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(whole), str(path))
    return path
