"""Call ONNX Runtime and its QNN provider: quantize a model, compile it to a context, audit it, estimate its
time, run it.

What HTP does not take of a model is raised as NotOnProvider, which names each node and the reason. Only
workers import this."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

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
from ci.explain.onnx_graph import make_plain
from ci.lanes.onnx.model_file import opset_of, overrides_of, simplify_gathers
from ci.lanes.onnx.options import Settings
from ci.lanes.onnx.orders import Audit, Unsupported
from ci.models.inputs import Sample
from ci.suite.onnx_runtime import (
    FALLBACK,
    VERBOSE,
    OnnxModel,
    explain_codes,
    failing,
    htp_options,
    message_of,
    run,
    session_on_htp,
)
from ci.suite.precision import Precision
from ci.work import doing, printed_so_far, quiet, text_since
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed
from provisioning.manifest import Soc

PREPROCESSED = "preprocessed.onnx"
"""If the quantizer changed the model first, it left it in this file, which has the names of `nodes`."""
TRACE = "qnn_op_trace.json"
LEFT_TO_CPU = "assigned to the default CPU EP, but fallback to CPU EP has been explicitly disabled"
PACKAGES = ("onnx", "onnxruntime", "onnxruntime-qnn")
MOST_REASONS = 5
"""A message names this many of the nodes that QNN refused."""
QUANTIZERS = {"QuantizeLinear", "DequantizeLinear"}
AXIS_OPSET = 13
"""ONNX's QuantizeLinear and DequantizeLinear have an axis from this opset on."""


class NotOnProvider(CheckFailed):
    """Reports a model that HTP does not take entirely."""

    def __init__(self, message: str, fix: str, refused: Collection[str], operators: Collection[str]) -> None:
        """HTP refused the operators `refused`, among all `operators` of the model."""
        super().__init__(message, fix=fix)
        # Where nothing else is refused, quantizers stand for types that do not go together.
        self.refused = sorted(set(refused).difference(QUANTIZERS) or refused)
        self.taken = sorted(set(operators).difference(QUANTIZERS, self.refused))


def packages() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def quantize_model(
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
    """Put QuantizeLinear and DequantizeLinear around every operator, as QNN needs it. The quantizer leaves an
    operator that only passes values on, such as MaxPool, in float if its input is. With `alone`, that
    operator is quantized all the same."""
    # Imported late: nothing else here needs it.
    with _hiding_torch():
        from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
        from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        remaining = iter(samples)

        def get_next(self) -> Sample | None:
            return next(self.remaining, None)

    with quiet():
        source, metadata = _preprocess_model(model, into, qnn_preprocess_model)
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
        output = into / f"{name}.onnx"
        quantize(str(source), str(output), config)
        if metadata:
            _add_metadata(output, metadata)
    return output


def _preprocess_model(
    model: Path, into: Path, preprocess: Callable[[onnx.ModelProto, str], bool]
) -> tuple[Path, dict[str, str]]:
    """Return the model that the quantizer reads, in `into` where that is possible, and the metadata of the
    model, which it lacks."""
    prepared, bare = into / PREPROCESSED, onnx.load(str(model))
    metadata = {prop.key: prop.value for prop in bare.metadata_props}
    # qnn_preprocess_model ends with a TypeError for a model that has any.
    del bare.metadata_props[:]
    is_small = bare.ByteSize() < onnx.checker.MAXIMUM_PROTOBUF
    if preprocess(bare, str(prepared)):
        return prepared, metadata
    if not is_small:
        return model, metadata
    # The quantizer writes beside the model, and the user's folder may be read-only. The model is loaded
    # again, since the call above may leave it without its data.
    onnx.save(onnx.load(str(model)), str(prepared))
    return prepared, metadata


def _add_metadata(file: Path, metadata: Mapping[str, str]) -> None:
    product = onnx.load(str(file), load_external_data=False)
    own = {prop.key: prop.value for prop in product.metadata_props}
    onnx.helper.set_model_props(product, {**own, **metadata})
    onnx.save(product, str(file))


@contextlib.contextmanager
def _hiding_torch() -> Iterator[None]:
    """Hide torch from ONNX Runtime's tools: they import it for an exporter of theirs, which takes a second
    for each model."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


def compile_context(
    model: Path,
    precision: Precision,
    soc: Soc,
    settings: Settings,
    context: Path,
    *,
    embed: bool = False,
    why: str = "",
) -> Traffic | None:
    """Write the context and return the compiler's traffic. NotOnProvider names what HTP does not take. The
    traffic and QNN's reasons are read from what this process prints. `why` is the command that names all
    nodes that HTP refuses."""
    doing("compile")
    begin = printed_so_far()
    _compile(model, precision, soc, settings, context, embed=embed, why=why)
    return _traffic(begin)


def _compile(
    model: Path,
    precision: Precision,
    soc: Soc,
    settings: Settings,
    context: Path,
    *,
    embed: bool = False,
    profile: Path | None = None,
    why: str = "",
) -> None:
    begin = printed_so_far()
    provider = provider_options(precision, soc, settings, profile)
    try:
        session_on_htp(model, provider, _context_options(settings, context, embed), severity=VERBOSE)
    except Exception as error:
        if LEFT_TO_CPU in str(error):
            # Traced only now: at a quantized GRU the trace itself crashes (trace-of-a-quantized-gru).
            # What HTP takes may be written already, and the provider replaces no context.
            aside = context.with_stem(f"{context.stem}-audited")
            audit, _ = audit_model(model, precision, soc, settings, aside, begin)
            raise _not_taken(model, audit, precision, why) from error
        raise _not_compiled(error, refusals(text_since(begin)), why) from error


def audit_model(
    model: Path,
    precision: Precision,
    soc: Soc,
    settings: Settings,
    context: Path,
    begin: int | None = None,
) -> tuple[Audit, Traffic | None]:
    """Compile what HTP takes, and find what it does not take and why; the other nodes are beside the context.
    QNN gives its reasons once in a process: `begin` is where an earlier compile's reasons begin in the
    log."""
    doing("compile")
    begin, trace = printed_so_far() if begin is None else begin, context.parent / "trace"
    provider = provider_options(precision, soc, settings, None)
    provider |= {"enable_framework_op_trace": "1", "framework_op_trace_dir": str(trace)}
    options = {**_context_options(settings, context, False), FALLBACK: "0"}
    try:
        session_on_htp(model, provider, options, severity=VERBOSE)
    except Exception as error:
        raise _not_compiled(error, refusals(text_since(begin)), "") from error
    return _audit(model, trace, refusals(text_since(begin))), _traffic(begin)


def _not_compiled(error: Exception, reasons: Mapping[str, Refusal], why: str) -> CheckFailed:
    message = f"the QNN provider cannot compile it: {message_of(error)}"
    lines = [f"\n  {node}: {reason}" for node, reason in reasons.items()][:MOST_REASONS]
    fix = explain_codes(message, *reasons.values()) or (why and f"{why} says why")
    return CheckFailed("".join([message, *lines]), fix=fix)


def estimate_time(
    model: Path, precision: Precision, soc: Soc, settings: Settings, into: Path
) -> QnnEstimate | None:
    """Return QNN's own estimate, for which it compiles the model again. Raises NotOnProvider if HTP does not
    take all of it."""
    profile, context = into / f"{soc.id}.csv", into / f"{soc.id}_ctx.onnx"
    _compile(model, precision, soc, settings, context, profile=profile)
    return read_estimate(profile)


def _context_options(settings: Settings, context: Path, embed: bool) -> dict[str, str]:
    return {
        **settings.session,
        FALLBACK: "1",
        "ep.context_enable": "1",
        "ep.context_file_path": str(context),
        "ep.context_embed_mode": "1" if embed else "0",
    }


def run_context(
    context: Path,
    soc: Soc,
    settings: Settings,
    samples: Sequence[Sample],
    *,
    cpu: bool = False,
) -> list[Sample]:
    """Run a compiled model as a device would, without its original model. With `cpu`, nodes beside the
    contexts run on the CPU."""
    doing("run")
    provider = provider_options(None, soc, settings, None)
    provider = {name: value for name, value in provider.items() if not name.startswith("dump_")}
    session_options = {**settings.session, FALLBACK: "0" if cpu else "1"}
    with failing(f"{context} cannot be loaded", "compile it again"):
        session = session_on_htp(context, provider, session_options)
    return [run(session, sample) for sample in samples]


def outputs_on_htp(
    model: OnnxModel, precision: Precision, soc: Soc, settings: Settings, samples: Sequence[Sample]
) -> list[Sample]:
    """Compile the model for HTP and return its outputs, without keeping the context; the CPU runs what HTP
    does not take."""
    with failing("the QNN provider cannot compile it"):
        session = session_on_htp(model, provider_options(precision, soc, settings, None), settings.session)
    return [run(session, sample) for sample in samples]


def provider_options(
    precision: Precision | None, soc: Soc, settings: Settings, profile: Path | None
) -> dict[str, str]:
    options = {**settings.provider, **htp_options(soc)}
    if precision is not None:
        options["enable_htp_fp16_precision"] = "0" if precision.quantized else "1"
    if profile is not None:
        options |= {"profiling_level": "detailed", "profiling_file_path": str(profile)}
    return options


def _traffic(start: int) -> Traffic | None:
    text = COLOUR.sub("", text_since(start))
    lines = [line.rpartition(OF_QNN)[2].strip() for line in text.splitlines()]
    graphs = traffic("\n".join(filter(None, lines)) + "\n")
    return total(graphs) if graphs else None


def _audit(model: Path, folder: Path, reasons: Mapping[str, Refusal]) -> Audit:
    path = folder / TRACE
    if not path.is_file():
        # Where QNN takes no operator at all of a quantized model, the provider writes no trace.
        nodes = onnx.load(str(model), load_external_data=False).graph.node
        rows = [(node.name, node.op_type, "QNN supports no node of this model") for node in nodes]
        unsupported = [row for row in rows if row[1] not in QUANTIZERS]
        count, graphs = len(nodes), 0
    else:
        trace = json.loads(path.read_text(encoding="utf-8"))
        nodes = trace["unsupported_nodes"]
        unsupported = [(node["node_name"], node["op_type"], node["reason"]) for node in nodes]
        count, graphs = (int(trace["summary"][name]) for name in ("total_onnx_nodes", "qnn_subgraphs"))
    by_name = {
        name: Unsupported(name, operator, _reason(reason, reasons.get(name)))
        for name, operator, reason in unsupported
    }
    return Audit(count, tuple(by_name.values()), graphs)


def _reason(text: str, of_qnn: Refusal | None) -> str:
    """Return the reason without the node's name, which the provider repeats, and with QNN's own reason."""
    first = text.split("QNN EP.")[0] + "QNN EP." if "QNN EP." in text else text
    reason = " ".join(first.split()) or "the provider gives no reason"
    return f"{reason.rstrip('.')} ({of_qnn})" if of_qnn else reason


def _not_taken(model: Path, audit: Audit, precision: Precision, why: str) -> NotOnProvider:
    words = "; ".join(map(str, audit.unsupported[:5]))
    more = f"; and {len(audit.unsupported) - 5} more" if len(audit.unsupported) > 5 else ""
    kinds = {node.operator for node in audit.unsupported}
    if precision.quantized and kinds <= QUANTIZERS:
        near = "16a8w" if precision.activations.endswith("16") else "8a8w"
        fix = f"HTP does not support this combination of types: use --precision {near}"
    else:
        fix = "replace these operators by ones that HTP supports"
        fix = Fix("{}; {} names all", fix, why) if why else fix
    message = f"{len(audit.unsupported)} of {audit.nodes} nodes do not run on HTP: {words}{more}"
    operators = {node.op_type for node in onnx.load(str(model), load_external_data=False).graph.node}
    return NotOnProvider(message, fix, kinds, operators)


def export(
    dotted: str,
    arguments: Mapping[str, object],
    search_path: Path,
    into: Path,
    opset: int,
    inputs: Any = None,
    *,
    own_names: bool = False,
    non_finite: bool = False,
) -> tuple[Path, Any]:
    """Write the factory's model, or a .pt2, as model.onnx, and return the path and the model; for an ONNX
    model, return the factory's sample instead. A PyTorch model gets inputs input_0, input_1 …, or those of
    its forward. `inputs` replaces the factory's own. With `non_finite`, parameters may be NaN."""
    from ci.models.factory import call, factory_of, make, model_of
    from ci.models.user_model import BadFactory

    path = into / "model.onnx"
    if dotted.endswith(".pt2"):
        return path, _export_module(
            dotted, make(dotted, arguments, search_path, inputs), path, opset, own_names
        )
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
    subject = model_of(dotted, product, inputs, factory, non_finite=non_finite)
    return path, _export_module(dotted, subject, path, opset, own_names)


def _export_module(dotted: str, subject: Any, path: Path, opset: int, own_names: bool) -> Any:
    import torch

    from ci.models.compiler_errors import explain_error
    from ci.models.mistakes import parameters_of
    from ci.models.model_checks import require_float32

    sample = subject.sample(0)
    names = parameters_of(subject.model.forward) if own_names else ()
    if len(names) < len(sample):
        names = tuple(f"input_{index}" for index in range(len(sample)))
    # Refuse a model that keeps state, because an export would leave the state out.
    require_float32([*sample, *subject.outputs([sample])[0]])
    try:
        with torch.no_grad(), quiet():
            torch.onnx.export(
                subject.model,
                sample,
                str(path),
                dynamo=True,
                opset_version=opset,
                input_names=list(names[: len(sample)]),
                external_data=False,
                optimize=True,
                verbose=False,
            )
    except Exception as error:
        message, fix = explain_error(error)
        message = f"{dotted} cannot be exported to ONNX: {message}"
        raise CheckFailed(message, fix=fix or "export it yourself") from error
    proto = onnx.load(str(path))
    simplify_gathers(proto)
    onnx.save(proto, str(path))
    onnx.checker.check_model(str(path), full_check=True)
    return subject
