"""Export a decoder to ONNX graphs, and quantize them by samples of their own inputs, as Genie needs them.

Genie runs one model as several graphs, which read many tokens at once or one. They share caches and weights,
so a tensor that two graphs have is encoded alike in both (`shared_encodings`). Only workers import this."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from ci.lanes.llm.architecture import HIDDEN, Architecture
from ci.models.inputs import Array, Sample
from ci.work import quiet

if TYPE_CHECKING:
    from ci.lanes.llm.decoder import Decoder

Step = Callable[[Sample], Sample]
"""Calls a graph: takes inputs and returns outputs as floats, with Genie's names."""
OPSET = 18
FAR = -1000.0
"""Genie adds this to the scores of hidden places, in a mask of floats."""
CACHE = "uint8"
"""Keys and values have this type. With 16 bits HTP would convert the second of two multiplied activations to
8 anyway."""
MARGIN = 1.1
"""The range of a cache is this much wider than calibration saw, because other values occur."""
WIDER = 1.25
"""The range of an activation is this much wider; with 16 bits the larger step adds no noise that shows."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """Says how integers stand for floats: (integer - zero) * scale."""

    dtype: str
    scale: float
    zero: int

    def integers(self, values: Array) -> Array:
        limits = np.iinfo(self.dtype)
        rounded = np.rint(values / np.float32(self.scale)) + self.zero
        integers: Array = rounded.clip(limits.min, limits.max).astype(self.dtype)
        return integers

    def floats(self, integers: Array) -> Array:
        values: Array = (integers.astype(np.float32) - self.zero) * np.float32(self.scale)
        return values


LEAST = 1e-4
"""This is onnxruntime's MinimumRealRange for QNN: a tensor with a narrower range has fewer levels than its
bits allow."""
Ranges: TypeAlias = Sequence[tuple[float, float] | None]
"""Has the range of each tensor that a graph computes, in the order of its operators; None if it has no
floats."""


def export(decoder: Decoder, path: Path) -> None:
    """Write a decoder as an .onnx, with its weights beside it."""
    import torch

    with torch.no_grad(), quiet():
        torch.onnx.export(
            decoder,
            decoder.example(),
            str(path),
            input_names=decoder.inputs,
            output_names=decoder.outputs,
            dynamo=True,
            opset_version=OPSET,
            external_data=True,
            verbose=False,
        )
    # The exporter leaves a copy of the weights in a cycle, for each graph.
    gc.collect()


def inputs_of_call(
    shape: Architecture,
    context: int,
    count: int,
    tokens: Sequence[int] | Array,
    position: int,
    caches: Sample,
    *,
    far: float = FAR,
    name: str = "input_ids",
) -> Sample:
    """Return the inputs of a graph of `count` places for tokens, or rows of hidden values, that begin at
    `position`. Zeros fill the other places, and nothing looks back at them. `caches` are those of this
    graph."""
    past, length = context - count, len(tokens)
    values = np.asarray(tokens)
    x = np.zeros((1, count, *values.shape[1:]), np.int32 if values.ndim == 1 else np.float32)
    x[0, :length] = values
    mask = np.full((1, 1, count, context), far, np.float32)
    mask[..., :position] = 0
    mask[..., past:][..., np.tril(np.ones((count, count), bool))] = 0
    inputs = {name: x, "attention_mask": mask}
    for rope in shape.ropes:
        cos, sin = shape.rotation(np.arange(position, position + count), rope)
        inputs |= {f"{rope}position_ids_cos": cos[None, None], f"{rope}position_ids_sin": sin[None, None]}
    return {**inputs, **caches}


def place_axis(name: str) -> int:
    """Return the axis of a cache that counts places: the last for keys, the one before for values."""
    return 3 if "_key_" in name else 2


def empty_caches(shape: Architecture, layers: Iterable[int], places: int) -> Sample:
    """Return the inputs with the empty cache of these layers, by name."""
    groups, size = shape.num_kv_heads, shape.head_dim
    sizes = {"key": (groups, 1, size, places), "value": (groups, 1, places, size)}
    return {
        f"past_{kind}_{layer}_in": np.zeros(sizes[kind], np.float32) for layer in layers for kind in sizes
    }


def outputs_of(decoder: Decoder, row: Sequence[int] | Array) -> Sample:
    """Return what the float model computes of a whole row, which `decoder` reads at once: tokens, or its
    part's hidden values."""
    import torch

    assert len(row) == decoder.context
    empty = empty_caches(decoder.shape, range(decoder.first, decoder.last), 0)
    inputs = inputs_of_call(decoder.shape, len(row), len(row), row, 0, empty, name=decoder.inputs[0])
    with torch.no_grad():
        outputs = decoder(*(torch.from_numpy(inputs[name]) for name in decoder.inputs))
    return {name: tensor.numpy() for name, tensor in zip(decoder.outputs, outputs, strict=True)}


def outputs_of_rows(
    decoder: Decoder, rows: Sequence[Sequence[int] | Array], tokens: Sequence[Sequence[int]]
) -> tuple[list[Sample], list[float]]:
    """Return the float model's outputs, computed once for all graphs that are quantized, and, if it has the
    head, what the model loses on the tokens of each row. Logits are left out because they would fill the
    memory. `decoder` reads a whole row at once."""
    outputs, losses = [], []
    for row, row_tokens in zip(rows, tokens, strict=True):
        output = outputs_of(decoder, row)
        if "logits" in output:
            losses.append(_loss_of(output["logits"][0], row_tokens))
        outputs.append({name: output[name] for name in output if name != "logits"})
    return outputs, losses


def _loss_of(logits: Array, tokens: Sequence[int]) -> float:
    """Return the mean negative log-likelihood of each token after the first, in nats."""
    import torch
    from torch.nn import functional

    return float(functional.cross_entropy(torch.from_numpy(logits[:-1]), torch.tensor(list(tokens[1:]))))


def blocks(
    decoder: Decoder,
    row: Sequence[int] | Array,
    outputs: Sample,
    context: int,
    count: int,
    begins: Iterable[int],
) -> Iterator[tuple[int, Sample]]:
    """Yield, for each call of a graph of `count` places, the place where it begins in the row and its inputs,
    with the float model's caches."""
    for start in begins:
        caches = empty_caches(decoder.shape, range(decoder.first, decoder.last), context - count)
        for name, cache in caches.items():
            before = (slice(None),) * place_axis(name) + (slice(0, start),)
            cache[before] = outputs[name.replace("_in", "_out")][before]
        block = row[start : start + count]
        yield (
            start,
            inputs_of_call(decoder.shape, context, count, block, start, caches, name=decoder.inputs[0]),
        )


def samples(
    decoder: Decoder,
    rows: Iterable[Sequence[int] | Array],
    outputs: Iterable[Sample],
    context: int,
    count: int,
) -> Iterator[Sample]:
    """Yield the inputs of a graph of `count` places while it reads all of these rows, one by one: all at once
    would fill the memory."""
    for row, output in zip(rows, outputs, strict=True):
        begins = [*range(0, len(row) - count, count), len(row) - count]
        for _, inputs in blocks(decoder, row, output, context, count, begins):
            yield inputs


def compared_places(length: int, count: int) -> list[int]:
    """Return where the blocks begin by which a graph is compared. A longer graph is compared by all of them;
    single tokens by the first, which see the least, and some others."""
    if count > 1:
        return list(range(0, length - count + 1, count))
    step = max(4, length // 32)
    return [start for start in range(length - 1) if start < 8 or start % step == step - 1]


def preprocess_graph(model: Path) -> Path:
    """Preprocess the graph for QNN's quantizer."""
    from onnxruntime.quantization.execution_providers.qnn import qnn_preprocess_model

    output = model.with_name("preprocessed.onnx")
    with quiet():
        return output if qnn_preprocess_model(str(model), str(output)) else model


def ranges_of(graph: Path, calibration: Iterable[Sample]) -> Ranges:
    """Return the ranges of a `prepared` graph's tensors for these samples. Graphs with the same operators for
    other counts of places have the same ranges."""
    from onnxruntime.quantization.calibrate import create_calibrator

    with quiet():
        augmented = str(graph.with_name("augmented.onnx"))
        calibrator = create_calibrator(graph, augmented_model_path=augmented, use_external_data_format=True)
        calibrator.collect_data(_reader(calibration))
        data = calibrator.compute_data()
    ends = {name: (float(ends.lowest.min()), float(ends.highest.max())) for name, ends in data.items()}
    operators = onnx.load(str(graph), load_external_data=False).graph
    return [ends.get(name) for name in _computed_tensors(operators)]


def _reader(samples: Iterable[Sample]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Samples(CalibrationDataReader):
        remaining = iter(samples)

        def get_next(self) -> Sample | None:
            return next(self.remaining, None)

    return Samples()


def _computed_tensors(graph: onnx.GraphProto) -> list[str]:
    """Return the tensors that a graph computes, which are as many for any count of places. A Reshape has its
    input's encoding, and may be needless for one token."""
    return [name for node in graph.node if node.op_type != "Reshape" for name in node.output]


def widen_range(low: float, high: float) -> tuple[float, float]:
    """Widen a range for values that calibration did not see. The value that hides a place is known, and
    stays."""
    return low if low <= FAR else low * WIDER, high * WIDER


def quantize(
    graph: Path,
    ranges: Ranges,
    sample: Sample,
    output: Path,
    encodings: Mapping[str, Encoding],
    *,
    four_bits: bool = False,
) -> None:
    """Quantize a `prepared` graph: QuantizeLinear and DequantizeLinear go around every operator, and inputs
    and outputs become integers. Activations and the embedding get 16 bits, weights 8. All graphs of a model
    must share `encodings`. The matrices in `four_bits` get a scale for each channel. The quantizer demands a
    `sample`."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize as run_quantizer
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    with quiet():
        operators = onnx.load(str(graph), load_external_data=False).graph
        overrides = _overrides(operators, encodings)
        for name, bounds in zip(_computed_tensors(operators), ranges, strict=True):
            if bounds:
                override = _override_of(_encoding_of(*widen_range(*bounds)))
                overrides[name] = {**override, **overrides.get(name, {})}
        if four_bits:
            channels = {"quant_type": QuantType.QInt4, "axis": 1, "symmetric": True}
            overrides |= dict.fromkeys(_matrices_of_layers(operators), channels)
        config = get_qnn_qdq_config(
            str(graph),
            _reader([sample]),
            activation_type=QuantType.QUInt16,
            weight_type=QuantType.QUInt8,
            init_overrides={name: [override] for name, override in overrides.items()},
            # They would give a cache's few bits to all that meets it: query, scores, softmax and mix.
            add_qtype_converts=False,
        )
        run_quantizer(str(graph), str(output), config)
    _remove_edge_conversions(output)


def _encoding_of(low: float, high: float) -> Encoding:
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max(high - low, LEAST) / 65535
    return Encoding("uint16", scale, round(-low / scale))


def shared_encodings(outputs: Iterable[Sample], ropes: Iterable[str] = ("",)) -> dict[str, Encoding]:
    """Return the encodings that all graphs of a model use, because Genie refuses two graphs that encode a
    tensor differently. `outputs` are the float model's, of whole rows."""
    limits = np.iinfo(CACHE)
    encodings: dict[str, Encoding] = {}
    for rope in ropes:
        for kind in ("cos", "sin"):
            encodings[f"{rope}position_ids_{kind}"] = Encoding("uint16", 2 / 65535, 32768)
    encodings["attention_mask"] = Encoding("uint16", -FAR / 65535, 65535)
    ranges: dict[str, tuple[float, float]] = {}
    for row in outputs:
        for name, values in row.items():
            low, high = ranges.get(name, (0.0, 0.0))
            ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
    for name, (low, high) in ranges.items():
        if name.startswith("past_"):
            largest = max(-low, high) * MARGIN
            # Around the middle, so that zero, an empty place, is exact.
            encodings[name.replace("_out", "_in")] = Encoding(
                CACHE, 2 * largest / limits.max, int(limits.max + 1) // 2
            )
        elif name.startswith(HIDDEN):
            encodings[name] = _encoding_of(*widen_range(low, high))
    return encodings


def _overrides(graph: onnx.GraphProto, encodings: Mapping[str, Encoding]) -> dict[str, dict[str, object]]:
    """Give a cache's output, its inputs through operators that only move data, and their concatenation the
    encoding of the cache's input. The operator that computes the output has activations, which are
    converted."""
    from onnxruntime.quantization import QuantType

    makers = {output: node for node in graph.node for output in node.output}
    overrides = {name: _override_of(encoding) for name, encoding in encodings.items()}
    for name in [encoding for encoding in encodings if encoding.startswith("past_")]:
        cache, tensor = overrides[name], name.replace("_in", "_out")
        [concat] = [node for node in graph.node if node.op_type == "Concat" and name in node.input]
        overrides |= {concat.output[0]: cache, tensor: cache}
        while makers[tensor].op_type in ("Transpose", "Reshape", "Unsqueeze"):
            tensor = makers[tensor].input[0]
            overrides[tensor] = cache
        overrides[tensor] = {"quant_type": QuantType.QUInt16, "convert": cache}
    return overrides


def _override_of(encoding: Encoding) -> dict[str, object]:
    from onnxruntime.quantization import QuantType

    return {
        "quant_type": QuantType[f"Q{encoding.dtype.replace('u', 'U').replace('i', 'I')}"],
        "scale": np.array(encoding.scale, np.float32),
        "zero_point": np.array(encoding.zero, encoding.dtype),
    }


def _matrices_of_layers(graph: onnx.GraphProto) -> list[str]:
    constants = {tensor.name for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMul" and "logits" not in node.output]
    return [node.input[1] for node in products if node.input[1] in constants]


def _remove_edge_conversions(path: Path) -> None:
    """Remove the conversions at inputs and outputs: Genie itself converts, and caches stay integers."""
    model = onnx.load(str(path))
    graph = model.graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    makers = {output: node for node in graph.node for output in node.output}
    for value in graph.input:
        converters = readers.get(value.name, [])
        if converters and all(node.op_type == "QuantizeLinear" for node in converters):
            value.type.tensor_type.elem_type = types[converters[0].input[2]]
            for converter in converters:
                _replace_input(readers.get(converter.output[0], []), converter.output[0], value.name)
                graph.node.remove(converter)
    for value in graph.output:
        converter = makers[value.name]
        if converter.op_type != "DequantizeLinear":
            continue
        value.type.tensor_type.elem_type = types[converter.input[2]]
        # What computes the integers takes the output's name, and what else reads the floats another one.
        integers, float_readers = converter.input[0], readers.get(value.name, [])
        _replace_input(readers[integers], integers, value.name)
        maker = makers[integers]
        maker.output[list(maker.output).index(integers)] = value.name
        if not float_readers:
            graph.node.remove(converter)
            continue
        converter.output[0] = f"{value.name}_float"
        _replace_input(
            [node for node in float_readers if node is not converter], value.name, converter.output[0]
        )
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _replace_input(nodes: Sequence[onnx.NodeProto], old: str, new: str) -> None:
    for node in nodes:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new


def edge_encodings(path: Path) -> dict[str, Encoding]:
    """Return the encodings of the inputs and outputs that are integers."""
    graph = onnx.load(str(path)).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    edges = {value.name for value in (*graph.input, *graph.output)}
    encodings: dict[str, Encoding] = {}
    for node in graph.node:
        if node.op_type not in ("DequantizeLinear", "QuantizeLinear"):
            continue
        integers = node.input[0] if node.op_type == "DequantizeLinear" else node.output[0]
        if integers in edges:
            scale, zero = (numpy_helper.to_array(constants[name]) for name in node.input[1:3])
            encodings[integers] = Encoding(str(zero.dtype), float(scale), int(zero))
    return encodings
