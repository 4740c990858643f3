"""Lowers a case's model for a chip: finds what leaves fp16, what the compiler takes, and what must stay on
the CPU."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_lpai_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    to_edge_transform_and_lower_to_qnn,
)
from executorch.exir import ExecutorchBackendConfig
from torch import Tensor
from torch.fx import Node

from ci.artifacts.compiler_log import total, traffic
from ci.artifacts.program import digest_without_time
from ci.explain.audit import KeptNodes
from ci.explain.losses import BeyondHalf, beyond_of
from ci.explain.torch_graph import TorchGraph, operator_at, outputs_of
from ci.explain.torch_values import Passing, Tensors
from ci.lanes.executorch import CHOSEN, PROGRAM
from ci.lanes.executorch.export import ChipModel, Failed
from ci.lanes.executorch.orders import (
    ChipProgram,
    CompileRequest,
)
from ci.lanes.executorch.quantization import ComputedModel, Patterns, kind_of, save_raw, step_of
from ci.models.compiler_errors import known_of
from ci.models.factory import computed_weights, copy_sample, refuse_computed, where_input_changes
from ci.models.model_lines import OperatorAt, place_in_words, source_of
from ci.models.user_model import BadFactory
from ci.operators import CpuOperator, GraphPart
from ci.operators.failing_operators import (
    SEARCHED_SECONDS,
    Search,
    Workaround,
    workaround_of,
)
from ci.operators.partition import (
    DELEGATE,
    PartitionerSpy,
    cpu_kernels,
    delegated_nodes,
    is_quantizer,
    left_on_cpu,
    operator_name,
    partition_of,
)
from ci.suite.accuracy import (
    HALF_MOST,
    USUAL_OF_FLOAT_DB,
    ChosenAmong,
    Inferences,
    Pair,
    Unusable,
    least_sqnr_db,
    tie_noise,
)
from ci.work import printed_so_far, text_since, trouble_of_error
from provisioning.base.commands import join_fixes
from provisioning.known_faults import words_of

MASKS = ("aten.masked_fill", "aten.where")
"""These operators may use numbers of any size, which are meant to be infinite."""


class _InHalf(Passing):
    """Runs a float model in which every value outside fp16's range becomes infinite."""

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        return value.half().to(value.dtype) if _beyond(value) else value


def _beyond(value: object) -> bool:
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
        return False
    return bool(((value.abs() > HALF_MOST) & value.isfinite()).any())


def _beyond_half_of(chip_model: ChipModel) -> tuple[BeyondHalf, ...]:
    if not chip_model.run.precision.startswith("fp16"):
        return ()
    module = chip_model.exported.program(chip_model.sample).module()
    return beyond_half(module, chip_model.compared)


def beyond_half(module: Any, samples: Sequence[Tensors]) -> tuple[BeyondHalf, ...]:
    """Return the operators of an exported float model whose outputs leave the range of fp16 first; nothing if
    the model's outputs stay the same when such values become infinite."""
    if all(_same_in_half(module, sample) for sample in samples):
        return ()
    return beyond_of(TorchGraph(module, samples), MASKS)


def _same_in_half(module: Any, sample: Tensors) -> bool:
    """Whether the outputs stay the same when values outside fp16's range become infinite, as with a softmax's
    mask."""
    both = (
        torch.utils._pytree.tree_leaves(run(*copy_sample(sample))) for run in (module, _InHalf(module).run)
    )
    pairs = [Pair("", exact.numpy(), half.numpy()) for exact, half in zip(*both, strict=True)]
    try:
        return least_sqnr_db(pairs) >= USUAL_OF_FLOAT_DB
    except Unusable:
        return False


LAST = ("aten.sort.default", "aten.sort.stable", "aten.topk.default")
"""These operators use the last dimension by default; the others in CHOOSERS choose among all values."""
OTHERS = ("aten.argmax.default", "aten.argmin.default", "aten.max.dim", "aten.min.dim")
CHOOSERS = {**dict.fromkeys((*OTHERS, *LAST), 1), "aten.topk.default": 2}
"""Each operator is mapped to the position of its argument `dim`."""
SAME_VALUES = ("view", "reshape", "squeeze", "unsqueeze", "to", "_to_copy", "clone", "alias", "contiguous")
"""These operators change neither the values of indices nor their order."""


@dataclass(frozen=True)
class Chooser:
    output: int
    node: Node
    values: Node
    dim: int | None


def choosers_of(graph: Any) -> Iterator[Chooser]:
    (output,) = graph.find_nodes(op="output")
    for number, leaf in enumerate(torch.utils._pytree.tree_leaves(output.args[0])):
        node = leaf
        while isinstance(node, Node) and _keeps_values(node):
            node = node.all_input_nodes[0]
        if not isinstance(node, Node) or (place := CHOOSERS.get(str(node.target))) is None:
            continue
        usual = -1 if str(node.target) in LAST else None
        dim = node.args[place] if len(node.args) > place else node.kwargs.get("dim", usual)
        yield Chooser(number, node, node.all_input_nodes[0], dim if isinstance(dim, int) else None)


def _keeps_values(node: Node) -> bool:
    if node.target is getitem:
        return bool(node.args[1] == 1)
    return not is_quantizer(node) and str(node.target).removeprefix("aten.").partition(".")[0] in SAME_VALUES


@dataclass(frozen=True)
class OutputChoices:
    """Holds the expected outputs, the values that their indices chose among, and the operators that
    choose."""

    outputs: Inferences
    reference: Inferences
    places: tuple[OperatorAt, ...] = ()


def choices_of(
    chip_model: ChipModel, module: Any, outputs: Inferences, reference: Inferences, into: Path
) -> OutputChoices:
    """Write the values that indices chose among. `module` is the quantized model if there is a reference."""
    if all(row.dtype not in ("int64", "int32") for row in outputs[0]):
        return OutputChoices(outputs, reference)
    graph, samples = chip_model.exported.program(chip_model.sample).module(), chip_model.compared
    places = []
    of_quantized = {chooser.output: chooser for chooser in choosers_of(module.graph)} if reference else {}
    for chooser in choosers_of(graph.graph):
        floats = _chosen_among(graph, chooser, samples)
        quantized = _chosen_among(module, of_quantized.get(chooser.output), samples)
        if not floats or bool(quantized) != bool(reference):
            continue
        places.append(operator_at(chooser.node))
        exact = [tensor.numpy() for tensor in floats]
        rounded = [tensor.numpy() for tensor in quantized]
        noise = tie_noise(exact, rounded, 0 if chooser.dim is None else chooser.dim)
        outputs = _add_choice(outputs, chooser, floats, noise, into, "float")
        if reference:
            reference = _add_choice(reference, chooser, quantized, noise, into, "quantized")
    return OutputChoices(outputs, reference, tuple(places))


def _add_choice(
    inferences: Inferences, chooser: Chooser, values: Sequence[Tensor], noise: float, into: Path, kind: str
) -> Inferences:
    """Add what its indices chose among to an output; `values` has a tensor for each inference."""
    rows = []
    for number, (row, tensor) in enumerate(zip(inferences, values, strict=True)):
        path = into / f"{kind}_{number}_{chooser.output}{CHOSEN}"
        tensor.numpy().tofile(path)
        dim = 0 if chooser.dim is None else chooser.dim % tensor.dim()
        choice = ChosenAmong(path.name, "float32", tuple(tensor.shape), dim, noise)
        output = replace(row[chooser.output], choice=choice)
        rows.append((*row[: chooser.output], output, *row[chooser.output + 1 :]))
    return tuple(rows)


def _chosen_among(graph: Any, chooser: Chooser | None, samples: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """Return the values that indices chose among, one tensor for each inference; empty if they are not
    floats."""
    if chooser is None:
        return []
    outputs = [outputs_of(graph, copy_sample(sample)).get(chooser.values.name) for sample in samples]
    tensors = [values.float().contiguous() for values in outputs if values is not None]
    if len(tensors) < len(samples):
        return []
    return [values.flatten() for values in tensors] if chooser.dim is None else tensors


SEGMENT_ALIGNMENT = 4096
"""Delegate data is aligned to a page in the file, so that it can be mapped alone."""

NAMED = 3
"""A program's record names this many of the operators at which quantizing loses accuracy."""


def lower(chip_model: ChipModel, request: CompileRequest) -> ChipProgram:
    """Write the program, inputs and expected outputs into the folder of the request."""
    run, samples, outputs = chip_model.run, chip_model.compared, chip_model.float_outputs
    into, computed = request.into, ComputedModel.of(chip_model)
    module, reference, worst = computed.module, computed.reference, computed.losses[:NAMED]
    on_cpu = Patterns("cpu_nodes", run.cpu_nodes)
    watch = PartitionerSpy()
    search = Search(watch)
    begin = 0

    def lowered_with(more: Collection[str] = ()) -> Any:
        nonlocal begin
        nodes = Patterns("cpu_nodes", {*run.cpu_nodes, *more}) if more else on_cpu
        begin, watch.on_cpu = printed_so_far(), nodes
        return lowered_module(chip_model, module, nodes)

    with step_of("compile"), watch.installed():
        edge, workaround = _lower_with_workaround(search, lowered_with, chip_model)
        exported = edge.exported_program()
        parts, nodes = partition_of(exported, chip_model.backend), delegated_nodes(exported, module)
        cpu_operators = left_on_cpu(exported.graph_module.graph, watch, cpu_kernels())
        if workaround and not request.crashes_on_cpu:
            raise _dies_of(workaround, parts, cpu_operators)
        _require_indices(exported.graph_module)
        try:
            program = edge.to_executorch(ExecutorchBackendConfig(segment_alignment=SEGMENT_ALIGNMENT))
        except RuntimeError as error:
            if failure := _missing_operator(error, cpu_operators):
                raise failure from error
            raise
        _require_types(exported, outputs[0])
    on_cpu.require_used()
    into.mkdir(parents=True, exist_ok=True)
    (into / PROGRAM).write_bytes(program.buffer)
    graphs = traffic(text_since(begin))
    floats = save_raw(into, "float", outputs)
    quantized = save_raw(into, "quantized", reference) if run.quantizes else ()
    choices = choices_of(chip_model, module, floats, quantized, into)
    return ChipProgram(
        notes=tuple(chip_model.exported.subject.notes),
        used=chip_model.used,
        losses=worst,
        inputs=save_raw(into, "input", samples),
        expected=choices.outputs,
        reference=choices.reference,
        choices=choices.places,
        beyond=_beyond_half_of(chip_model),
        kept_on_cpu=KeptNodes(workaround.message, tuple(workaround.cpu_nodes)) if workaround else None,
        left=tuple(cpu_operators),
        partition=tuple(parts),
        nodes=nodes,
        least=_least_of(samples),
        in_torch=computed.compare_in_torch(chip_model) if chip_model.backend == "lpai" else None,
        ddr=total(graphs),
        graphs=len(graphs),
        without_time=digest_without_time(into / PROGRAM),
    )


def _least_of(samples: Sequence[tuple[Tensor, ...]]) -> float:
    """Return the least value of the float inputs; -inf counts as the lowest finite number."""
    floats = [tensor for sample in samples for tensor in sample if tensor.is_floating_point()]
    return min((float(tensor.nan_to_num().min()) for tensor in floats if tensor.numel()), default=0.0)


def lowered_module(chip_model: ChipModel, module: Any, nodes: Patterns) -> Any:
    """Lower the module for the chip; operators whose nodes match `nodes` stay on the CPU."""
    options = generate_lpai_compiler_spec()
    if chip_model.backend != "lpai":
        options = generate_htp_compiler_spec(use_fp16=chip_model.run.precision.startswith("fp16"))
    spec = generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset[chip_model.soc], backend_options=options
    )
    sample = copy_sample(chip_model.sample)
    return to_edge_transform_and_lower_to_qnn(module, sample, spec, skip_node_id_set=nodes)


def _require_types(exported: Any, outputs: Sequence[Tensor]) -> None:
    """Refuse a program if an output has another type than the model's."""
    module = exported.graph_module
    (output,) = module.graph.find_nodes(op="output")
    # What the model changes in place stands before its outputs.
    nodes = output.args[0][-len(outputs) :]
    for index, (node, tensor) in enumerate(zip(nodes, outputs, strict=True)):
        dtype = node.meta["val"].dtype
        # The delegate writes indices, which QNN has in int32, into a tensor of int64.
        if dtype == torch.int64 and _is_part_of_an_operators_result(module, node):
            dtype = torch.int32
        if dtype != tensor.dtype:
            where = f" ({line})" if (line := place_in_words(node)) else ""
            raise Failed(
                "compile",
                f"output {index} is {kind_of(dtype)} in the program and {kind_of(tensor.dtype)} in the model,"
                f" so that its values are misread{where}",
                f"let the model return it .to({dtype}), or compute it outside the program",
            )


def _require_indices(module: Any) -> None:
    """Refuse a program in which an operator on the CPU reads indices that a delegate computes."""
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is getitem or operator_name(node) == DELEGATE:
            continue
        for operand in node.all_input_nodes:
            value = operand.meta.get("val")
            is_long = isinstance(value, Tensor) and value.dtype == torch.int64
            if is_long and _is_part_of_an_operators_result(module, operand):
                where = f" at {line}" if (line := place_in_words(node)) else ""
                raise Failed(
                    "compile",
                    f"{operator_name(node)}{where} stays on the CPU and reads indices as int64, which the"
                    " delegate writes as int32, so that they are misread",
                    words_of("indices-as-int64"),
                )


def _is_part_of_an_operators_result(module: Any, node: Any) -> bool:
    """Whether a delegate returns this output exactly as an operator of several results, such as topk,
    computed it."""
    if node.target is not getitem or operator_name(node.args[0]) != DELEGATE:
        return False
    call, index = node.args
    (output,) = getattr(module, call.args[0].target).original_module.graph.find_nodes(op="output")
    return output.args[0][index].target is getitem


def _refuse_model(model: Any, sample: tuple[Tensor, ...]) -> None:
    """Refuse a model that changes its inputs in place, or that computes a convolution's weights in each run:
    the compiler wants them constant."""
    if place := where_input_changes(model, sample):
        message = f"the model changes its input in place{place}, which the delegate does not support"
        fix = (
            "make a new tensor there: x = x + 1 for x.add_(1), ReLU() for ReLU(inplace=True), torch.where for"
            " an assignment to a part"
        )
        raise Failed("compile", message, fix)
    if computed := computed_weights(model):
        raise Failed("compile", *refuse_computed(computed))


def _missing_operator(error: RuntimeError, cpu_operators: Sequence[CpuOperator]) -> Failed | None:
    """Return the model's line of an operator that ExecuTorch does not have at all."""
    explanation = known_of(error)
    names = re.findall(r"'(\w+)::(\w+)", str(error))
    missing = tuple(".".join(name) for name in names)
    rows = [row for row in cpu_operators if row.operator.startswith(missing)]
    if not explanation or not rows:
        return None
    lines = "; ".join(f"{operator.source} `{operator.code}`" for operator in rows)
    return Failed("compile", f"{explanation.cause_and_text} ({lines})", explanation.fix, rows[0].source)


def _lower_with_workaround(
    search: Search, lower: Callable[..., Any], chip_model: ChipModel
) -> tuple[Any, Workaround | None]:
    """Return the lowered program, and the nodes that had to stay on the CPU for it."""
    begun = time.process_time()
    try:
        with search.installed():
            return lower(), None
    except (Failed, BadFactory):
        raise
    except Exception as error:
        if trouble_of_error(error):
            # Neither the model nor a search for what the compiler crashes on says anything then.
            raise
        _refuse_model(chip_model.model, chip_model.sample)
        node = search.node
        if node is not None and (explanation := known_of(error)):
            message = f"{explanation.cause_and_text} ({place_in_words(node)})"
            raise Failed("compile", message, explanation.fix, source_of(node)[0]) from error
        # A search of several lowerings must not turn a compile error into a time-out.
        brief = time.process_time() - begun < SEARCHED_SECONDS
        if not (workaround := workaround_of(search, error, lower, brief=brief)):
            raise
        if workaround.lowering is None:
            raise _failure_with(workaround, workaround.attempt) from error
        return workaround.lowering, workaround


def _dies_of(
    workaround: Workaround, parts: Sequence[GraphPart], cpu_operators: Sequence[CpuOperator]
) -> Failed:
    delegates = sum(not part.is_on_cpu for part in parts)
    count = sum(part.count for part in parts if part.is_on_cpu)
    cost = ", but nothing is left for the NPU"
    if delegates:
        cost = f"; delegates = {delegates} and cpu_budget = {count} allow what it costs"
    lacking = sorted({operator.operator for operator in cpu_operators if not operator.kernel})
    return _failure_with(workaround, f"tried: the rest lowers{cost}", lacking)


def _failure_with(workaround: Workaround, evidence: str, lacking: Sequence[str] = ()) -> Failed:
    flags = " ".join(shlex.join(("--keep-on-cpu", name)) for name in workaround.cpu_nodes)
    nodes = ", ".join(f'"{name}"' for name in workaround.cpu_nodes)
    fixes = list(dict.fromkeys(culprit.fix for culprit in workaround.culprits if culprit.fix))
    if lacking:
        names = ", ".join(lacking)
        fixes += [f"on the CPU ExecuTorch has no kernel for it ({names}): write it in another way"]
    else:
        fixes += [f"{flags}, or in a suite's run cpu_nodes = [{nodes}], leaves it on the CPU: {evidence}"]
    source = next((culprit.source for culprit in workaround.culprits if culprit.source), "")
    return Failed("compile", workaround.message, join_fixes(fixes, "; or "), source)
