"""Read the traits of nodes of an exported program: operator, types, shapes, constants, neighbours.

Known faults are recognized by them (`faults`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter, getitem
from typing import Any, cast

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ci.models.model_lines import source_of
from ci.operators import Argument, TensorEnds, Traits
from ci.operators.partition import is_quantizer, module_of, operator_name

Constants = Callable[[Node], Tensor | None]
"""It returns the tensor that a node stands for, if it is one of the model's own."""

CASTS = ("_to_copy", "to", "type_as", "_to_dim_order_copy")


def delegated_nodes(program: ExportedProgram, source: object) -> dict[str, Traits]:
    """Return the traits of every node in a delegate, by QNN's name of the node. A cast counts as added by
    lowering if `source` is a graph without casts."""
    nodes = {}
    graph = getattr(source, "graph", None)
    casts = graph is None or any(_is_cast(node) for node in graph.nodes)
    for name, module in program.graph_module.named_children():
        if not name.startswith("lowered_module"):
            continue
        constants = constants_of(module.original_module)
        for node in module.original_module.graph.nodes:
            if node.op == "call_function":
                by_lowering = not casts and _is_cast(node)
                nodes[node.name] = replace(traits_of(node, constants), added=by_lowering)
    return nodes


def constants_of(program: ExportedProgram | GraphModule) -> Constants:
    """Return a function that finds the constants of an exported program, or of the module that it becomes."""
    if not isinstance(program, torch.export.ExportedProgram):
        return lambda node: attrgetter(str(node.target))(program) if node.op == "get_attr" else None
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    tensors = {**program.constants, **program.state_dict}
    return lambda node: tensors.get(names.get(node.name, ""))


def traits_of(node: Node, constants: Constants = lambda node: None) -> Traits:
    first = next(iter(node.all_input_nodes), None)
    maker = _maker_of(first)
    shapes: list[tuple[int, ...]] = []
    for operand in (node, *node.all_input_nodes):
        value = operand.meta.get("val")
        if isinstance(value, Tensor):
            shapes.append(tuple(map(int, value.shape)))
    return Traits(
        operator=_lowered_name(node),
        line=source_of(node)[0],
        module=module_of(node),
        shapes=tuple(sorted(shapes)),
        kinds=tuple(filter(None, map(_kind_of, node.all_input_nodes))) if _is_cast(node) else (),
        again=_is_of_another_call(node),
        of_number=_is_number(next(iter(node.args), None), constants),
        arguments=_arguments_of(node, constants),
        input=_shape_of(first),
        output=_shape_of(node),
        range=_range_of(first),
        maker=operator_name(maker) if maker is not None else "",
        readers=tuple(sorted({operator_name(reader) for reader in _readers_of(node)})),
    )


def _shape_of(node: object) -> tuple[int, ...] | None:
    """Return a node's shape; if it gives values and indices, that of the values. A quantizer may lack its own
    shape, and then has its operand's."""
    while isinstance(node, Node) and "val" not in node.meta and is_quantizer(node):
        node = node.args[0]
    value = node.meta.get("val") if isinstance(node, Node) else None
    value = value[0] if isinstance(value, list | tuple) and value else value
    return tuple(int(size) for size in value.shape) if isinstance(value, Tensor) else None


def _is_between(node: Node) -> bool:
    """Whether a node only passes on what another node computes."""
    return is_quantizer(node) or node.target is getitem


def _maker_of(node: object) -> Node | None:
    while isinstance(node, Node) and node.op == "call_function" and _is_between(node):
        node = node.args[0]
    return node if isinstance(node, Node) and node.op == "call_function" else None


def _readers_of(node: Node) -> list[Node]:
    readers, todo = list[Node](), [*node.users]
    while todo:
        user = todo.pop()
        if user.op != "call_function":
            continue
        if _is_between(user):
            todo += user.users
        else:
            readers.append(user)
    return readers


def _range_of(operand: Node | None) -> tuple[float, float] | None:
    """Return the range that an operand's dequantizer can give, if it has one scale for the whole tensor."""
    if operand is None or not is_quantizer(operand) or "dequantize_per_tensor" not in operator_name(operand):
        return None
    scale, zero, least, most = cast(tuple[Any, ...], operand.args[1:5])
    if not isinstance(scale, float):
        return None
    return (least - zero) * scale, (most - zero) * scale


def _arguments_of(node: Node, constants: Constants) -> dict[str, Argument | tuple[Argument, ...]]:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    names = [argument.name for argument in schema.arguments]
    arguments = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    plain: dict[str, Argument | tuple[Argument, ...]] = {}
    for name, value in arguments.items():
        if isinstance(value, list | tuple):
            plain[name] = tuple(_plain(element, constants) for element in value)
        elif (text := _plain(value, constants)) is not None:
            plain[name] = text
    return plain


def _plain(value: object, constants: Constants) -> Argument:
    if isinstance(value, torch.fx.Node):
        return _ends_of(value, constants)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value if isinstance(value, bool | int | float | str) else None


def _ends_of(node: Node, constants: Constants) -> TensorEnds:
    tensor = _constant(node, constants)
    if not isinstance(tensor, Tensor) or not tensor.numel() or tensor.is_complex():
        return TensorEnds()
    values = tensor.detach().double()
    return TensorEnds(tuple(tensor.shape), float(values.min()), float(values.max()))


def _constant(node: Node, constants: Constants) -> Any:
    """Return a node's constant tensor, also if a quantizer reads it or if it is one number everywhere."""
    if node.op == "call_function" and "full" in operator_name(node) and isinstance(node.args[1], int | float):
        return torch.tensor(float(node.args[1])).expand(_shape_of(node) or [])
    if node.op == "call_function" and is_quantizer(node):
        quantized = node.args[0]
        tensor = _constant(quantized, constants) if isinstance(quantized, Node) else None
        arguments = [
            _constant(argument, constants) if isinstance(argument, torch.fx.Node) else argument
            for argument in node.args[1:]
        ]
        return (
            None
            if tensor is None or not callable(node.target)
            else node.target(tensor, *arguments, **node.kwargs)
        )
    return constants(node)


def _lowered_name(node: Node) -> str:
    """Return the operator's name after lowering: a batch norm that uses its input's statistics becomes
    another operator than one that uses running statistics."""
    name = operator_name(node)
    by_input = name == "batch_norm.default" and node.args[5]
    return "_native_batch_norm_legit.no_stats" if by_input else name


def _is_number(operand: object, constants: Constants) -> bool:
    value = operand
    if isinstance(operand, torch.fx.Node):
        value = operand.meta.get("val", _constant(operand, constants))
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float)


def _kind_of(node: Node) -> str:
    """Return the name of a node's type; empty if it is no tensor."""
    if is_quantizer(node) and "dequantize" in operator_name(node):
        # It need not tell its own.
        return "float32"
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return ""
    kind = str(value.dtype).removeprefix("torch.")
    # What a delegate computes of int64, it has in int32.
    return "int32" if kind == "int64" and node.op == "call_function" else kind


def _is_of_another_call(node: Node) -> bool:
    """Whether the node's module was called before: torch numbers its calls from the second on."""
    return "@" in next(reversed([*(node.meta.get("nn_module_stack") or {"": ""})]))


def _is_cast(node: Node) -> bool:
    return node.op == "call_function" and not {*operator_name(node).split(".")}.isdisjoint(CASTS)
