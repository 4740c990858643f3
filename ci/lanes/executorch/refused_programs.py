"""Refuse models that cannot be lowered, and programs that would compute something else than their model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import getitem

import torch
from executorch.exir import ExportedProgram
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ci.lanes.executorch.export import Failed
from ci.lanes.executorch.quantization import kind_of
from ci.models.compiler_errors import known_of
from ci.models.inference import where_input_changes
from ci.models.model_checks import computed_weights, refuse_computed
from ci.models.model_lines import place_in_words
from ci.operators import CpuOperator
from ci.operators.partition import DELEGATE, called_delegate, operator_name
from provisioning.known_faults import words_of

CHANGED_INPUT_FIX = (
    "make a new tensor there: x = x + 1 for x.add_(1), ReLU() for ReLU(inplace=True), torch.where for an"
    " assignment to a part"
)


def refuse_model(model: nn.Module, sample: tuple[Tensor, ...]) -> None:
    """Refuse a model that changes its inputs in place, or that computes a convolution's weights in each run:
    the compiler wants them constant."""
    if place := where_input_changes(model, sample):
        message = f"the model changes its input in place{place}, which the delegate does not support"
        raise Failed("compile", message, CHANGED_INPUT_FIX)
    if computed := computed_weights(model):
        raise Failed("compile", *refuse_computed(computed))


def require_types(exported: ExportedProgram, outputs: Sequence[Tensor]) -> None:
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
        if dtype == tensor.dtype:
            continue
        line = place_in_words(node)
        where = f" ({line})" if line else ""
        raise Failed(
            "compile",
            f"output {index} is {kind_of(dtype)} in the program and {kind_of(tensor.dtype)} in the model,"
            f" so that its values are misread{where}",
            f"let the model return it .to({dtype}), or compute it outside the program",
        )


def require_indices(module: GraphModule) -> None:
    """Refuse a program in which an operator on the CPU reads indices that a delegate computes."""
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is getitem or operator_name(node) == DELEGATE:
            continue
        if not any(_is_index_of_a_delegate(module, operand) for operand in node.all_input_nodes):
            continue
        line = place_in_words(node)
        where = f" at {line}" if line else ""
        raise Failed(
            "compile",
            f"{operator_name(node)}{where} stays on the CPU and reads indices as int64, which the delegate"
            " writes as int32, so that they are misread",
            words_of("indices-as-int64"),
        )


def _is_index_of_a_delegate(module: GraphModule, node: Node) -> bool:
    value = node.meta.get("val")
    is_long = isinstance(value, Tensor) and value.dtype == torch.int64
    return is_long and _is_part_of_an_operators_result(module, node)


def _is_part_of_an_operators_result(module: GraphModule, node: Node) -> bool:
    """Whether a delegate returns this output exactly as an operator of several results, such as topk,
    computed it."""
    if node.target is not getitem:
        return False
    call, index = node.args
    if not isinstance(call, Node) or operator_name(call) != DELEGATE:
        return False
    (output,) = called_delegate(module, call).original_module.graph.find_nodes(op="output")
    return output.args[0][index].target is getitem


def missing_operator(error: RuntimeError, cpu_operators: Sequence[CpuOperator]) -> Failed | None:
    """Return the failure with the model's line if the error names an operator that ExecuTorch does not have
    at all."""
    explanation = known_of(error)
    names = re.findall(r"'(\w+)::(\w+)", str(error))
    missing = tuple(".".join(name) for name in names)
    operators = [operator for operator in cpu_operators if operator.operator.startswith(missing)]
    if not explanation or not operators:
        return None
    lines = "; ".join(f"{operator.source} `{operator.code}`" for operator in operators)
    message = f"{explanation.cause_and_text} ({lines})"
    return Failed("compile", message, explanation.fix, operators[0].source)
