"""The traits of a node of an exported program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter, getitem
from typing import Any

import torch
from torch import Tensor

from ci.models.model_lines import source_of
from ci.operators.conditions import Argument, TensorEnds, Traits
from ci.operators.partition.decisions import is_quantizer, module_of, operator_name

Constants = Callable[[Any], Any]
"""The tensor that a node is, if it is one of the model's own."""

CASTS = ("_to_copy", "to", "type_as", "_to_dim_order_copy")


def delegated_nodes(program: Any, source: Any) -> dict[str, Traits]:
    """The traits of every node in a delegate, by QNN's name of the node, and whether lowering added it (a
    cast where `source`, if it is a graph, has none)."""
    nodes = {}
    graph = getattr(source, "graph", None)
    casts = graph is None or any(_is_cast(node) for node in graph.nodes)
    for name, lowered in program.graph_module.named_children():
        if not name.startswith("lowered_module"):
            continue
        constants = constants_of(lowered.original_module)
        for node in lowered.original_module.graph.nodes:
            if node.op == "call_function":
                added = not casts and _is_cast(node)
                nodes[node.name] = replace(traits_of(node, constants), added=added)
    return nodes


def constants_of(program: Any) -> Constants:
    """Those of an exported program, or of the module that it becomes."""
    if not isinstance(program, torch.export.ExportedProgram):
        return lambda node: attrgetter(node.target)(program) if node.op == "get_attr" else None
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    tensors = {**program.constants, **program.state_dict}
    return lambda node: tensors.get(names.get(node.name, ""))


def traits_of(node: Any, constants: Constants = lambda node: None) -> Traits:
    first = next(iter(node.all_input_nodes), None)
    maker = _maker_of(first)
    shapes = (
        tuple(int(size) for size in value.shape)
        for operand in (node, *node.all_input_nodes)
        if isinstance(value := operand.meta.get("val"), Tensor)
    )
    return Traits(
        operator=_lowered_name(node),
        line=source_of(node)[0],
        module=module_of(node),
        shapes=tuple(sorted(shapes)),
        first=_first_size(node.meta.get("val")),
        kinds=_kinds_of(node.all_input_nodes) if _is_cast(node) else (),
        again=_is_of_another_call(node),
        of_number=_is_number(next(iter(node.args), None), constants),
        arguments=_arguments_of(node, constants),
        input=_shape_of(first),
        output=_shape_of(node),
        range=_range_of(first),
        maker=operator_name(maker) if maker is not None else "",
        readers=tuple(sorted({operator_name(reader) for reader in _readers_of(node)})),
    )


def _shape_of(node: Any) -> tuple[int, ...] | None:
    """That of the values, where indices are given beside them. A quantizer need not tell its own."""
    while node is not None and "val" not in node.meta and is_quantizer(node):
        node = node.args[0]
    value = None if node is None else node.meta.get("val")
    value = value[0] if isinstance(value, list | tuple) and value else value
    return tuple(int(size) for size in value.shape) if isinstance(value, Tensor) else None


def _is_between(node: Any) -> bool:
    """Whether it passes on what another node computes."""
    return is_quantizer(node) or node.target is getitem


def _maker_of(node: Any) -> Any:
    while node is not None and node.op == "call_function" and _is_between(node):
        node = node.args[0]
    return node if node is not None and node.op == "call_function" else None


def _readers_of(node: Any) -> list[Any]:
    readers, todo = list[Any](), [*node.users]
    while todo:
        user = todo.pop()
        if user.op != "call_function":
            continue
        if _is_between(user):
            todo += user.users
        else:
            readers.append(user)
    return readers


def _range_of(operand: Any) -> tuple[float, float] | None:
    """What its dequantizer can give, if all of it has one scale."""
    if operand is None or not is_quantizer(operand) or "dequantize_per_tensor" not in operator_name(operand):
        return None
    scale, zero, least, most = operand.args[1:5]
    if not isinstance(scale, float):
        return None
    return (least - zero) * scale, (most - zero) * scale


def _arguments_of(node: Any, constants: Constants) -> dict[str, Argument | tuple[Argument, ...]]:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    names = [argument.name for argument in schema.arguments]
    every = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    plain = {
        name: tuple(_plain(element, constants) for element in value)
        if isinstance(value, list | tuple)
        else _plain(value, constants)
        for name, value in every.items()
    }
    return {name: value for name, value in plain.items() if value is not None}


def _plain(value: Any, constants: Constants) -> Argument:
    if isinstance(value, torch.fx.Node):
        return _ends_of(value, constants)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value if isinstance(value, bool | int | float | str) else None


def _ends_of(node: Any, constants: Constants) -> TensorEnds:
    tensor = _constant(node, constants)
    if not isinstance(tensor, Tensor) or not tensor.numel() or tensor.is_complex():
        return TensorEnds()
    values = tensor.detach().double()
    return TensorEnds(tuple(tensor.shape), float(values.min()), float(values.max()))


def _constant(node: Any, constants: Constants) -> Any:
    """Also one that a quantizer reads, or that is one number everywhere."""
    if node.op == "call_function" and "full" in operator_name(node) and isinstance(node.args[1], int | float):
        return torch.tensor(float(node.args[1])).expand(_shape_of(node) or [])
    if node.op == "call_function" and is_quantizer(node):
        whole = _constant(node.args[0], constants)
        others = [
            _constant(argument, constants) if isinstance(argument, torch.fx.Node) else argument
            for argument in node.args[1:]
        ]
        return None if whole is None else node.target(whole, *others, **node.kwargs)
    return constants(node)


def _lowered_name(node: Any) -> str:
    """A batch norm by statistics of its input becomes another operator than one by running statistics."""
    name = operator_name(node)
    by_input = name == "batch_norm.default" and node.args[5]
    return "_native_batch_norm_legit.no_stats" if by_input else name


def _first_size(value: Any) -> int | None:
    """That of the values, where indices are given beside them."""
    value = value[0] if isinstance(value, list | tuple) and value else value
    return int(value.shape[0]) if isinstance(value, Tensor) and value.dim() else None


def _is_number(operand: Any, constants: Constants) -> bool:
    value = operand
    if isinstance(operand, torch.fx.Node):
        value = operand.meta.get("val", _constant(operand, constants))
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float)


def _kinds_of(operands: Sequence[Any]) -> tuple[str, ...]:
    tensors = (operand for operand in operands if isinstance(operand.meta.get("val"), Tensor))
    return tuple(map(_kind_of, tensors))


def _kind_of(node: Any) -> str:
    kind = str(node.meta["val"].dtype).removeprefix("torch.")
    # What a delegate computes of int64, it has in int32.
    return "int32" if kind == "int64" and node.op == "call_function" else kind


def _is_of_another_call(node: Any) -> bool:
    """torch numbers the calls of a module from the second on."""
    return "@" in next(reversed([*(node.meta.get("nn_module_stack") or {"": ""})]))


def _is_cast(node: Any) -> bool:
    return node.op == "call_function" and not {*operator_name(node).split(".")}.isdisjoint(CASTS)
