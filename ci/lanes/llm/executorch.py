"""Writes a decoder as an ExecuTorch program for HTP, for a device, and runs it by ExecuTorch's runtime. Only
workers import this, and these never import onnxruntime-qnn: it loads another QNN."""

from __future__ import annotations

import itertools
import operator
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.backends.qualcomm._passes import BuildQuantIo, TagQuantIO
from executorch.backends.qualcomm._passes.qnn_pass_manager import get_qnn_pass_manager_cls
from executorch.backends.qualcomm.builders.utils import is_graph_output
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset, QnnExecuTorchBackendType
from executorch.backends.qualcomm.utils.constants import (
    QCOM_PASS_ACTIVATE_KEY,
    QCOM_PASS_ARGS_KWARGS_DEFAULTS_KEY,
)
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    to_edge_transform_and_lower_to_qnn,
)
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import MinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ci.lanes.llm.architecture import Architecture, read_architecture
from ci.lanes.llm.decoder import Decoder, load_decoder, require_halves, resize_decoder
from ci.lanes.llm.genie import PROGRAM
from ci.lanes.llm.graphs import Encoding, Step, inputs_of_call, outputs_of_rows, samples
from ci.lanes.llm.orders import CompileOrder, Written
from ci.lanes.llm.tokenizer import SETTINGS, TEMPLATE
from ci.models.inputs import Array, Sample
from provisioning.base.errors import CheckFailed

PREFILL_METHOD, DECODE_METHOD = "prefill_forward", "kv_forward"
"""Upstream's qnn_llama_runner calls these methods."""
FAR = -100.0
"""This hides a place. Integers span from here to the highest score, so a lower number would cost
precision."""

Method = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class RunnerLayout(nn.Module):
    """Gives a decoder the inputs and outputs that upstream's qnn_llama_runner expects: tokens, mask,
    positions, all keys, all values; logits, new keys, new values. Keys are [1, groups, size, places]."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder
        self.tables = _register_ropes(self, decoder)

    def forward(self, tokens: Tensor, mask: Tensor, positions: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        layers = len(caches) // 2
        pairs = zip(caches[:layers], caches[layers:], strict=True)
        ropes = [getattr(self, table)[positions][:, None] for table in self.tables]
        decoder_caches = [
            cache.reshape(cache.shape[1], 1, *cache.shape[2:]) for pair in pairs for cache in pair
        ]
        logits, *new = self.decoder(tokens, mask, *ropes, *decoder_caches)
        ordered = (*new[0::2], *new[1::2])
        return (logits, *(cache.reshape(1, cache.shape[0], *cache.shape[2:]) for cache in ordered))

    def inputs(self, tokens: Sequence[int], position: int, caches: Sequence[Tensor]) -> tuple[Tensor, ...]:
        decoder = self.decoder
        sample = inputs_of_call(decoder.shape, decoder.context, decoder.count, tokens, position, {}, far=FAR)
        places = np.arange(position, position + decoder.count)
        return (
            torch.from_numpy(sample["input_ids"]),
            torch.from_numpy(sample["attention_mask"]),
            # Places beyond the context hold no token.
            torch.from_numpy(places.clip(max=decoder.context - 1).astype(np.int32).reshape(1, -1)),
            *caches,
        )

    def empty(self) -> list[Tensor]:
        examples = self.decoder.example()[-len(self.decoder.caches) :]
        caches = [cache.transpose(0, 1).contiguous() for cache in examples]
        return [*caches[0::2], *caches[1::2]]

    def calibration(self, samples: Iterable[Sample]) -> Iterator[tuple[Tensor, ...]]:
        """Convert Genie's inputs to this layout one by one: all at once would fill the memory."""
        for sample in samples:
            caches = [torch.from_numpy(sample[name]).transpose(0, 1) for name in self.decoder.caches]
            position = _position(sample["attention_mask"])
            tokens = sample["input_ids"][0].tolist()
            yield self.inputs(tokens, position, [*caches[0::2], *caches[1::2]])


def _register_ropes(module: nn.Module, decoder: Decoder) -> list[str]:
    """Register tables of cosines and sines in a module, and return their names."""
    tables: dict[str, Array] = {}
    for rope in decoder.shape.ropes:
        rotation = decoder.shape.rotation(np.arange(decoder.context), rope)
        tables |= dict(zip((f"{rope}cos", f"{rope}sin"), rotation, strict=True))
    for name, table in tables.items():
        module.register_buffer(name, torch.from_numpy(table))
    return list(tables)


def _position(mask: Array) -> int:
    """Return the first token's position, which is the number of past places that it sees."""
    count, context = mask.shape[-2:]
    return int((mask[0, 0, 0, : context - count] == 0).sum())


def quantize_methods(
    modules: Mapping[str, nn.Module],
    samples: Mapping[str, Iterator[tuple[Tensor, ...]]],
    scheme: str,
    soc: str,
) -> dict[str, GraphModule]:
    """Quantize the methods of one program, which have the same operators. All methods get the ranges of the
    first, which sees all of its samples; the others see one sample each. What reads and writes a cache shares
    one encoding."""
    prepared: dict[str, GraphModule] = {}
    for name, module in modules.items():
        quantizer = QnnQuantizer(QnnExecuTorchBackendType.kHtpBackend, QcomChipset[soc])
        quantizer.set_default_quant_config(
            QuantDtype[f"use_{scheme}"], is_linear_per_channel=True, act_observer=MinMaxObserver
        )
        first = next(samples[name])
        more_samples = () if prepared else samples[name]
        exported = torch.export.export(module, first, strict=True).module()
        prepared[name] = prepare_pt2e(exported, quantizer)
        for sample in itertools.chain([first], more_samples):
            prepared[name](*sample)
    for observers in zip(*map(_observers, prepared.values()), strict=True):
        _share_range(observers)
    for graph in prepared.values():
        caches = _readers_of_floats(graph, "activation_post_process")[1:]
        new = list(graph.graph.nodes)[-1].args[0][1:]
        for edge in zip(caches, new, strict=True):
            _share_range([graph.get_submodule(str(node.target)) for node in edge])
    return {name: convert_pt2e(graph) for name, graph in prepared.items()}


def _observers(prepared: GraphModule) -> list[Any]:
    """Return the observers in the order of the graph's operators."""
    nodes = (node for node in prepared.graph.nodes if node.op == "call_module")
    observers = (prepared.get_submodule(str(node.target)) for node in nodes)
    return [observer for observer in observers if hasattr(observer, "min_val")]


def _share_range(observers: Sequence[Any]) -> None:
    low = torch.stack([observer.min_val for observer in observers]).amin(0)
    high = torch.stack([observer.max_val for observer in observers]).amax(0)
    for observer in observers:
        observer.min_val.copy_(low)
        observer.max_val.copy_(high)


def edge_encodings(converted: GraphModule) -> dict[str, Encoding]:
    """Return the encodings of the mask, of the logits, and of each cache in the layout's order."""
    mask, *caches = _readers_of_floats(converted, "quantize_per_tensor")
    nodes = {"mask": mask, "logits": list(converted.graph.nodes)[-1].args[0][0]}
    nodes |= {str(number): cache for number, cache in enumerate(caches)}
    return {
        name: Encoding("uint16" if node.args[4] > 255 else "uint8", float(node.args[1]), int(node.args[2]))
        for name, node in nodes.items()
    }


def _readers_of_floats(graph: GraphModule, kind: str) -> list[Node]:
    """Return the node that reads the mask, and the node that reads each cache."""
    users = (node.users for node in graph.graph.nodes if node.op == "placeholder")
    return [user for readers in users for user in readers if kind in str(user.target)]


def metadata(
    shape: Architecture, context: int, count: int, encodings: Mapping[str, Encoding]
) -> dict[str, object]:
    """Return what upstream's qnn_llama_runner asks a program for."""
    logits = encodings.get("logits")
    quantization = {"get_logits_scale": logits.scale, "get_logits_zero_point": logits.zero} if logits else {}
    return {
        "get_ar_len": count,
        "get_bos_id": shape.eos[0] if shape.bos is None else shape.bos,
        "get_eos_id": shape.eos[0],
        "get_dim": shape.hidden_size,
        "get_head_dim": shape.head_dim,
        "get_max_batch_size": 1,
        "get_max_seq_len": context,
        "get_max_context_len": context,
        "get_n_bos": len(shape.beginning),
        "get_n_eos": len(shape.eos),
        "get_n_kv_heads": shape.num_kv_heads,
        "get_n_layers": shape.num_layers,
        "get_vocab_size": shape.vocab_size,
        "get_use_kv_cache": True,
        "get_kv_io_bit_width": 8 * np.dtype(logits.dtype).itemsize if logits else 32,
        **quantization,
    }


def lower(
    modules: Mapping[str, Any],
    inputs: Mapping[str, tuple[Tensor, ...]],
    constants: Mapping[str, object],
    soc: str,
    path: Path,
    integers: str = "",
) -> None:
    """Lower these methods to one program that runs entirely on HTP. `integers` is the type of mask, caches
    and logits; without it the program is fp16."""
    spec = generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset[soc], backend_options=generate_htp_compiler_spec(use_fp16=not integers)
    )
    edge = to_edge_transform_and_lower_to_qnn(
        dict(modules),
        dict(inputs),
        spec,
        constant_methods=dict(constants),
        passes_job=_passes(getattr(torch, integers)) if integers else None,
        # QNN never gets the first values of a buffer that it keeps: it reads what the memory holds.
        skip_mutable_buffer=True,
    )
    for name in modules:
        nodes = [node for node in edge.exported_program(name).graph.nodes if node.op == "call_function"]
        operators = [str(node.target) for node in nodes if node.target is not operator.getitem]
        if [target for target in operators if "executorch_call_delegate" not in target] or len(
            operators
        ) != 1:
            raise CheckFailed(
                f"{name} is not one delegate: {', '.join(sorted(set(operators)))}",
                fix="report it: the decoder has an operator that HTP does not take",
            )
    # qnn_llama_runner gives the memory of inputs and outputs itself.
    planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    config = ExecutorchBackendConfig(memory_planning_pass=planning, passes=[BuildQuantIo()])
    with path.open("wb") as file:
        edge.to_executorch(config).write_to_file(file)


def _passes(integers: torch.dtype) -> Any:
    """Return ExecuTorch's passes without conversions at the inputs and outputs."""

    def type_of(node: Node) -> torch.dtype | None:
        is_input = node.op == "placeholder" and (node.name == "mask" or node.name.startswith("caches_"))
        return integers if is_input or is_graph_output(node) else None

    manager = get_qnn_pass_manager_cls(QnnExecuTorchBackendType.kHtpBackend)
    passes = manager.get_capture_program_passes()
    passes[TagQuantIO][QCOM_PASS_ACTIVATE_KEY] = True
    passes[TagQuantIO][QCOM_PASS_ARGS_KWARGS_DEFAULTS_KEY]["get_quant_io_dtype_fn"] = type_of
    return passes


def method_of(path: Path, name: str) -> Method:
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(path)

    method = program.load_method(name)

    def run(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        # The runtime reads memory as if it were contiguous, and writes its outputs again the next time.
        outputs = method.execute([tensor.contiguous() for tensor in inputs])
        return [output.clone() for output in outputs]

    return run


def step_of(layout: RunnerLayout, method: Method, encodings: Mapping[str, Encoding]) -> Step:
    """Return a function that calls a method with Genie's names of inputs and outputs."""

    def step(inputs: Sample) -> Sample:
        [(ids, mask, positions, *caches)] = layout.calibration([inputs])
        names = [str(number) for number in range(len(caches))]
        if encodings:
            mask, *caches = (
                torch.from_numpy(encodings[name].integers(tensor.numpy()))
                for name, tensor in zip(("mask", *names), (mask, *caches), strict=True)
            )
        results = [tensor.numpy() for tensor in method((ids, mask, positions, *caches))]
        if encodings:
            results = [
                encodings[name].floats(array) for name, array in zip(("logits", *names), results, strict=True)
            ]
        logits, *new = layout.decoder.outputs
        outputs = dict(zip((logits, *new[0::2], *new[1::2]), results, strict=True))
        return {
            # The caches of Genie have their groups first.
            name: values if name == logits else values.swapaxes(0, 1)
            for name, values in outputs.items()
        }

    return step


METHODS = {"prefill": PREFILL_METHOD, "decode": DECODE_METHOD}
"""Maps each kind of graph that `check` names to its method."""
SHIPPED = ("config.json", "generation_config.json", "tokenizer.json", SETTINGS, TEMPLATE)


def compile_checkpoint(order: CompileOrder) -> Written:
    """Compile a checkpoint to a program, and write what the device and `check` read beside it."""
    torch.set_grad_enabled(False)
    folder, out = Path(order.model), Path(order.into)
    shape = read_architecture(folder)
    counts = {METHODS[kind]: order.count(kind) for kind in METHODS}
    decoder = load_decoder(folder, shape, order.context, order.context)
    layouts = {name: RunnerLayout(resize_decoder(decoder, count)) for name, count in counts.items()}
    inputs = {name: layout.inputs([0], 0, layout.empty()) for name, layout in layouts.items()}
    modules: dict[str, Any] = dict(layouts)
    edges: Mapping[str, Encoding] = {}
    losses: list[float] = []
    if order.quantized:
        rows = order.calibration
        outputs, losses = outputs_of_rows(decoder, rows, rows)
        calls = {
            name: layouts[name].calibration(samples(decoder, rows, outputs, order.context, count))
            for name, count in counts.items()
        }
        modules = quantize_methods(layouts, calls, order.precision, order.soc)
        edges = edge_encodings(modules[DECODE_METHOD])
        for name, module in modules.items():
            torch.export.save(torch.export.export(module, inputs[name]), cpu_module_file(out, name))
    else:
        require_halves(decoder)
    constants = metadata(shape, order.context, order.prefill, edges)
    lower(modules, inputs, constants, order.soc, out / PROGRAM, edges["mask"].dtype if edges else "")
    for name in SHIPPED:
        if (folder / name).is_file():
            shutil.copy(folder / name, out)
    return Written(1, (out / PROGRAM).stat().st_size, losses)


def cpu_module_file(out: Path, method: str) -> Path:
    """Name the file of the quantized method, which `check` runs on the CPU."""
    return out / f"{method}_cpu.pt2"


def htp_step(order: CompileOrder, shape: Architecture, kind: str, parts: Sequence[int]) -> Step:
    """Return a function that runs the method on HTP; a method has all layers."""
    encodings = edge_encodings(_load_cpu_module(order, kind)) if order.quantized else {}
    return step_of(
        _layout(order, shape, kind), method_of(Path(order.into, PROGRAM), METHODS[kind]), encodings
    )


def cpu_step(order: CompileOrder, shape: Architecture, kind: str, parts: Sequence[int]) -> Step:
    """Return a function that runs the quantized method on the CPU."""
    module = _load_cpu_module(order, kind)
    return step_of(_layout(order, shape, kind), lambda inputs: list(module(*inputs)), {})


def _load_cpu_module(order: CompileOrder, kind: str) -> Any:
    return torch.export.load(cpu_module_file(Path(order.into), METHODS[kind])).module()


def _layout(order: CompileOrder, shape: Architecture, kind: str) -> RunnerLayout:
    with torch.device("meta"):
        return RunnerLayout(Decoder(shape, order.count(kind), order.context))
