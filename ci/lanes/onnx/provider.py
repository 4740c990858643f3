"""Calls of ONNX Runtime: quantize, compile to a context, run, audit. Imported only by workers."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
import onnxruntime as ort

from ci.artifacts.compiler_log import (
    COLOUR,
    OF_QNN,
    QnnEstimate,
    Refusal,
    Traffic,
    read_estimate,
    refusals,
    total,
    traffic,
)
from ci.child import doing, quiet, size_of, text_since, threads
from ci.diagnose.explain import read
from ci.lanes.onnx.graph import nodes_beside_context, opset_of, overrides_of, simplify_gathers
from ci.lanes.onnx.options import Settings
from ci.lanes.onnx.records import Audit, Unsupported
from ci.models.arrays import Sample
from ci.models.plain_onnx import make_plain
from ci.suite.precision import Precision
from ci.suite.qnn_provider import ERRORS_ONLY, VERBOSE, device, htp_options
from provisioning.base.commands import Fix, joined
from provisioning.base.errors import CheckFailed
from provisioning.manifest import Soc

PREPROCESSED = "preprocessed.onnx"
"""What the quantizer made of a model first, if it changed it: it has the names of `nodes`."""
FOLDED = "folded.onnx"
TRACE = "qnn_op_trace.json"
FALLBACK = "session.disable_cpu_ep_fallback"
NOT_WHOLE = "it does not compile whole"
LEFT_TO_CPU = "assigned to the default CPU EP, but fallback to CPU EP has been explicitly disabled"
PACKAGES = ("onnx", "onnxruntime", "onnxruntime-qnn")
MOST_REASONS = 5
"""How many of the nodes that QNN refused a message names."""
QUANTIZERS = {"QuantizeLinear", "DequantizeLinear"}
AXIS_OPSET = 13
"""The first in which ONNX's QuantizeLinear and DequantizeLinear have an axis."""
SOURCE = re.compile(r"(?:\[ONNXRuntimeError\] : \d+ : \w+ : )|/onnxruntime_src/\S+?:\d+ .*?\) (?=[A-Z\"'])")


class NotOnProvider(CheckFailed):
    def __init__(self, audit: Audit, message: str, fix: str) -> None:
        super().__init__(message, fix=fix)
        self.audit = audit

    @property
    def operators(self) -> set[str]:
        return {node.operator for node in self.audit.unsupported}


def packages() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def quantized(
    model: Path,
    samples: Sequence[Sample],
    precision: Precision,
    into: Path,
    *,
    per_channel: bool = False,
    nodes: Mapping[str, Sequence[str]] = MappingProxyType({}),
    name: str = "model_qdq",
    alone: bool = False,
) -> Path:
    """The model with QuantizeLinear and DequantizeLinear around every operator, as QNN needs it.

    The quantizer leaves an operator that only passes values on, such as MaxPool, in float if its input is.
    With `alone`, it is quantized all the same."""
    if not samples:
        raise CheckFailed("no calibration sample", fix="give at least one")
    # Imported late: nothing else here needs it.
    with _without_torch():
        from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
        from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        remaining = iter(samples)

        def get_next(self) -> Sample | None:
            return next(self.remaining, None)

    with quiet():
        prepared, bare = into / PREPROCESSED, onnx.load(str(model))
        metadata = [(prop.key, prop.value) for prop in bare.metadata_props]
        # qnn_preprocess_model ends with a TypeError for a model that has any.
        del bare.metadata_props[:]
        small = bare.ByteSize() < onnx.checker.MAXIMUM_PROTOBUF
        changed = qnn_preprocess_model(bare, str(prepared))
        if not changed and small:
            # The quantizer writes beside the model, and the user's folder may be read-only. The model is
            # loaded again, since the call above may leave it without its data.
            onnx.save(onnx.load(str(model)), str(prepared))
            changed = True
        source = prepared if changed else model
        plain = onnx.load(str(source))
        types, excluded = overrides_of(plain, nodes) if nodes else ({}, [])
        config = get_qnn_qdq_config(
            str(source),
            Samples(),
            init_overrides={tensor: [{"quant_type": QuantType[kind]}] for tensor, kind in types.items()},
            nodes_to_exclude=excluded or None,
            activation_type=QuantType[precision.activations],
            weight_type=QuantType[precision.weights],
            per_channel=per_channel,
            weight_symmetric=precision.symmetric_weights,
        )
        if alone:
            config.extra_options["ForceQuantizeNoInputCheck"] = True
        if per_channel and opset_of(plain) < AXIS_OPSET:
            # Microsoft's own pair has an axis in each.
            config.extra_options["UseQDQContribOps"] = True
        # The quantizer rebuilds the model after calibrating; its temporary files stay in this folder.
        written = into / f"{name}.onnx"
        quantize(str(source), str(written), config)
        if metadata:
            product = onnx.load(str(written), load_external_data=False)
            own = {prop.key: prop.value for prop in product.metadata_props}
            onnx.helper.set_model_props(product, {**own, **dict(metadata)})
            onnx.save(product, str(written))
    return written


@contextlib.contextmanager
def _failing(message: str, *fixes: str) -> Iterator[None]:
    """An error is one of ours that begins so."""
    try:
        yield
    except Exception as error:
        fix = joined([*fixes, _explained(str(error))])
        raise CheckFailed(f"{message}: {_message_of(error)}", fix=fix) from error


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """ONNX Runtime's tools import it where it is found, for an exporter of theirs: a second a model."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


def on_cpu(model: Path, samples: Iterable[Sample], took: list[float] | None = None) -> list[Sample]:
    """The outputs of the model as written: a quantized one computes in float between roundings."""
    doing("run on CPU")
    options = _options(ERRORS_ONLY)
    # Optimizing would compute quantized operators in integers, which round differently.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        message = _message_of(error)
        unknown = "not a registered function/op" in message
        message = f"the CPU cannot run the model either: {message}"
        fix = "write it with operators that ONNX Runtime has" if unknown else "export the model again"
        raise CheckFailed(message, fix=fix) from error
    return [run(session, sample, None, took) for sample in samples]


def compiled(
    model: Path,
    precision: Precision,
    soc: Soc,
    settings: Settings,
    context: Path,
    *,
    log: Path | None,
    embed: bool = False,
    cpu: bool = False,
    traced: bool = True,
    why: str = "",
) -> tuple[Audit, Traffic | None]:
    """Write the context. Returns the audit and the compiler's traffic.

    NotOnProvider names what HTP cannot take; with `cpu`, those nodes are written beside the contexts. The
    traffic and QNN's reasons are read from `log`, which must receive the printed output; without `log`
    there are none. What is not `traced` has no audit. `why` is the command that names all nodes that HTP
    refuses."""
    doing("compile")
    before = size_of(log) if log else 0
    trace = context.parent / "trace"
    shutil.rmtree(trace, ignore_errors=True)
    provider = provider_options(precision, soc, settings, None)
    if traced:
        provider |= {"enable_framework_op_trace": "1", "framework_op_trace_dir": str(trace)}
    wanted = {**_context_options(settings, context, embed), FALLBACK: "0" if cpu else "1"}
    severity = VERBOSE if log else ERRORS_ONLY
    try:
        _session(model, provider, wanted, severity=severity)
    except Exception as error:
        reasons = refusals(text_since(log, before)) if log else {}
        audit = _audit(trace, reasons)
        if traced and not audit.nodes and LEFT_TO_CPU in str(error):
            audit = _none_taken(model, reasons)
        if audit.unsupported and not cpu:
            raise NotOnProvider(audit, *_unsupported(audit, precision, why)) from error
        message = f"the QNN provider cannot compile it: {_message_of(error)}"
        listed = [f"\n  {node}: {reason}" for node, reason in reasons.items()][:MOST_REASONS]
        fix = _explained(message, *reasons.values()) or (why and f"{why} says why")
        raise CheckFailed("".join([message, *listed]), fix=fix) from error
    reasons = refusals(text_since(log, before)) if log else {}
    return _audit(trace, reasons), _traffic(log, before) if log else None


def estimated(
    model: Path, precision: Precision, soc: Soc, settings: Settings, into: Path
) -> QnnEstimate | None:
    """QNN's own estimate, of a compile of its own. Raises CheckFailed where HTP does not take all of it."""
    profile, context = into / f"{soc.id}.csv", into / f"{soc.id}_ctx.onnx"
    with _failing(NOT_WHOLE):
        provider = provider_options(precision, soc, settings, profile)
        _session(model, provider, _context_options(settings, context, False))
    if nodes_beside_context(context):
        raise CheckFailed("HTP does not support all of it")
    return read_estimate(profile)


def folded(model: Path, into: Path) -> Path:
    """A copy without what does not depend on inputs, so that the shapes of all values can be told."""
    options, path = _options(ERRORS_ONLY), into / FOLDED
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return path


def _context_options(settings: Settings, context: Path, embed: bool) -> dict[str, str]:
    return {
        **settings.session,
        FALLBACK: "1",
        "ep.context_enable": "1",
        "ep.context_file_path": str(context),
        "ep.context_embed_mode": "1" if embed else "0",
    }


def reloaded(
    context: Path,
    soc: Soc,
    settings: Settings,
    samples: Sequence[Sample],
    *,
    cpu: bool = False,
    took: list[float] | None = None,
) -> list[Sample]:
    """Run a compiled model as a device would, without its original model. With `cpu`, nodes beside the
    contexts run on the CPU."""
    doing("run")
    provider = provider_options(None, soc, settings, None)
    provider = {name: value for name, value in provider.items() if not name.startswith("dump_")}
    wanted = {**settings.session, FALLBACK: "0" if cpu else "1"}
    with _failing(f"{context} cannot be loaded", "compile it again"):
        session = _session(context, provider, wanted, settings.dynamic)
    return [run(session, sample, settings, took) for sample in samples]


def on_htp(
    model: Path, precision: Precision, soc: Soc, settings: Settings, samples: Sequence[Sample]
) -> list[Sample]:
    """The outputs of a model that is compiled for it and not kept; the CPU takes what HTP does not."""
    with _failing("the QNN provider cannot compile it"):
        session = _session(model, provider_options(precision, soc, settings, None), settings.session)
    return [run(session, sample, settings) for sample in samples]


def provider_options(
    precision: Precision | None, soc: Soc, settings: Settings, profile: Path | None
) -> dict[str, str]:
    options = {**settings.provider, **htp_options(soc)}
    if precision is not None:
        options["enable_htp_fp16_precision"] = "0" if precision.quantized else "1"
    if profile is not None:
        options |= {"profiling_level": "detailed", "profiling_file_path": str(profile)}
    return options


def _traffic(log: Path, start: int) -> Traffic | None:
    text = COLOUR.sub("", text_since(log, start))
    lines = [line.rpartition(OF_QNN)[2].strip() for line in text.splitlines()]
    graphs = traffic("\n".join(filter(None, lines)) + "\n")
    return total(graphs) if graphs else None


def _session(
    model: Path,
    provider: Mapping[str, str],
    session: Mapping[str, str],
    dynamic: Mapping[str, str] | None = None,
    *,
    severity: int = ERRORS_ONLY,
) -> Any:
    options = _options(severity)
    for name, value in session.items():
        options.add_session_config_entry(name, value)
    options.add_provider_for_devices([device()], dict(provider))
    session_on_htp = ort.InferenceSession(str(model), options)
    # Otherwise a failed run would be repeated on the CPU, and its outputs taken for the chip's.
    session_on_htp.disable_fallback()
    if dynamic:
        session_on_htp.set_ep_dynamic_options(dict(dynamic))
    return session_on_htp


def _options(severity: int) -> Any:
    """Session options with this worker's number of threads, none of which waits by spinning."""
    options = ort.SessionOptions()
    options.log_severity_level = severity
    options.intra_op_num_threads = threads(0)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def run(session: Any, sample: Sample, settings: Settings | None, took: list[float] | None = None) -> Sample:
    """The outputs of one inference; `took` gets its milliseconds."""
    options = ort.RunOptions()
    for name, value in (settings.run if settings else {}).items():
        options.add_run_config_entry(name, value)
    names = [output.name for output in session.get_outputs()]
    began = time.perf_counter()
    with _failing("it was compiled, and running it fails", "look at run options and at the inputs' values"):
        outputs = session.run(names, sample, options)
    if took is not None:
        took.append(1000 * (time.perf_counter() - began))
    return dict(zip(names, outputs, strict=True))


def _audit(folder: Path, reasons: Mapping[str, Refusal]) -> Audit:
    path = folder / TRACE
    if not path.is_file():
        return Audit(0, (), 0)
    trace = json.loads(path.read_text(encoding="utf-8"))
    shutil.rmtree(folder)
    nodes = {
        node["node_name"]: Unsupported(
            node["node_name"], node["op_type"], _reason(node["reason"], reasons.get(node["node_name"]))
        )
        for node in trace["unsupported_nodes"]
    }
    summary = trace["summary"]
    return Audit(int(summary["total_onnx_nodes"]), tuple(nodes.values()), int(summary["qnn_subgraphs"]))


def _none_taken(model: Path, reasons: Mapping[str, Refusal]) -> Audit:
    """Where QNN takes no operator at all of a quantized model, the provider writes no trace."""
    nodes = onnx.load(str(model), load_external_data=False).graph.node
    why = "QNN supports no node of this model"
    unsupported = (
        Unsupported(node.name, node.op_type, _reason(why, reasons.get(node.name)))
        for node in nodes
        if node.op_type not in QUANTIZERS
    )
    return Audit(len(nodes), tuple(unsupported), 0)


def _reason(text: str, of_qnn: Refusal | None) -> str:
    """The reason without the node's name, which the provider repeats, and with QNN's own."""
    first = text.split("QNN EP.")[0] + "QNN EP." if "QNN EP." in text else text
    reason = " ".join(first.split()) or "the provider gives no reason"
    return f"{reason.rstrip('.')} ({of_qnn})" if of_qnn else reason


def _explained(message: str, *refused: Refusal) -> str:
    """The command that explains the codes; empty if none is known."""
    codes = dict.fromkeys(str(code.code) for code in [*read(message).codes, *(row.code for row in refused)])
    word = "code" if len(codes) == 1 else "codes"
    return Fix(f"{{}} explains the {word}", ("diagnose", *codes)) if codes else ""


def _unsupported(audit: Audit, precision: Precision, why: str) -> tuple[str, str]:
    named = "; ".join(map(str, audit.unsupported[:5]))
    more = f"; and {len(audit.unsupported) - 5} more" if len(audit.unsupported) > 5 else ""
    kinds = {node.operator for node in audit.unsupported}
    if precision.quantized and kinds <= QUANTIZERS:
        near = "16a8w" if precision.activations.endswith("16") else "8a8w"
        fix = f"HTP does not support this combination of types: use --precision {near}"
    else:
        fix = "replace these operators by ones that HTP supports"
        fix = Fix("{}; {} names all", fix, why) if why else fix
    return f"{len(audit.unsupported)} of {audit.nodes} nodes do not run on HTP: {named}{more}", fix


def _message_of(error: Exception) -> str:
    """The message without the place in ONNX Runtime's source."""
    text = SOURCE.sub("", " ".join(str(error).split()))
    return text[:600] or type(error).__name__


def export(
    dotted: str,
    arguments: Mapping[str, object],
    search_path: Path,
    into: Path,
    opset: int,
    inputs: Any = None,
) -> tuple[Path, Any]:
    """Write the factory's model as model.onnx; returns the model too. One of torch gets inputs input_0,
    input_1 …; of an ONNX model, the factory's sample is returned. `inputs` replaces the factory's own."""
    import torch

    from ci.models.factory import call, explained, factory_of, infer_all, model_of, require_float32
    from ci.models.user_model import BadFactory

    path = into / "model.onnx"
    factory = factory_of(dotted, arguments, search_path)
    product = call(dotted, factory, arguments)
    if isinstance(product, tuple) and isinstance(product[0], onnx.ModelProto):
        if inputs is not None:
            message = "the factory returns an ONNX model with a sample, and the suite names others"
            raise BadFactory(message, "leave inputs and samples out of its case")
        model, values = product
        make_plain(model)
        onnx.save(model, str(path))
        return path, values
    loaded = model_of(dotted, product, inputs, factory)
    sample = loaded.sample(0)
    # Refuse a model that keeps state, because an export would leave the state out.
    require_float32([*sample, *infer_all(loaded.model, [sample])[0]])
    try:
        with torch.no_grad(), quiet():
            torch.onnx.export(
                loaded.model,
                sample,
                str(path),
                dynamo=True,
                opset_version=opset,
                input_names=[f"input_{index}" for index in range(len(sample))],
                external_data=False,
                optimize=True,
                verbose=False,
            )
    except Exception as error:
        message, fix = explained(error)
        message = f"{dotted} cannot be exported to ONNX: {message}"
        raise CheckFailed(message, fix=fix or "export it yourself") from error
    whole = onnx.load(str(path))
    simplify_gathers(whole)
    onnx.save(whole, str(path))
    onnx.checker.check_model(str(path), full_check=True)
    return path, loaded
