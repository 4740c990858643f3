"""Record the partitioner's decision on every operator, the reason, and the operator's place in the model.
Compile parts of a partition as programs of their own, and read the traits of nodes."""

from __future__ import annotations

import copy
import itertools
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter, getitem
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm import qnn_preprocess
from executorch.backends.qualcomm.partition import qnn_partitioner
from executorch.backends.qualcomm.utils.constants import QCOM_FALLBACK_NODE
from executorch.backends.qualcomm.utils.qnn_manager_lifecycle import QnnManagerContext
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Node

from ci.artifacts.compiler_log import NATIVE_ERROR, OF_INTEGERS, REFUSES, reword_error
from ci.diagnose.logs import name_data_types
from ci.models.model_lines import source_of
from ci.one_model.product import smallest
from ci.operators import Argument, CpuOperator, GraphPart, TensorEnds, Traits
from ci.work import printed_so_far, text_since

DELEGATE = "executorch_call_delegate"

PASS_THROUGH = ("getitem",)
"""These take one of a delegate's outputs, which is no work for the CPU."""

LIBRARIES = tuple(
    str(Path(module.__file__ or "").parent) + "/"
    for module in (torch, sys.modules["executorch.backends.qualcomm.partition"])
)


@dataclass(frozen=True, slots=True)
class Decision:
    operator: str
    supported: bool
    reason: str


@dataclass
class PartitionerSpy:
    """It collects decisions while it is installed."""

    on_cpu: Container[object] = ()
    """These nodes stay on the CPU, among them constants' dequantizers, which the partitioner's own list does
    not cover."""
    decisions: dict[str, Decision] = field(default_factory=dict)
    users: dict[str, tuple[str, ...]] = field(default_factory=dict)
    current: Any = None
    """It is the node that the partitioner is looking at, or at which it failed."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        support = qnn_partitioner.QnnOperatorSupport
        original = support.is_node_supported
        messages: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]

        def watch(checker: Any, submodules: Any, node: Any) -> bool:
            messages.clear()
            begin = printed_so_far()
            self.users[node.name] = tuple(user.name for user in node.users)
            if node.name in self.on_cpu:
                node.meta[QCOM_FALLBACK_NODE] = True
            self.current = node
            supported = bool(original(checker, submodules, node))
            self.current = None
            reason = "" if supported else _reason(messages, text_since(begin), node)
            self.decisions[node.name] = Decision(operator_name(node), supported, reason)
            return supported

        support.is_node_supported = watch
        qnn_partitioner.logger.addHandler(handler)
        try:
            yield
        finally:
            support.is_node_supported = original
            qnn_partitioner.logger.removeHandler(handler)


def _reason(messages: list[str], native: str, node: Any) -> str:
    """Return the partitioner's reason, and after a failed validation also the backend's."""
    message = next((line.partition(" | ")[2] for line in reversed(messages) if " | " in line), "")
    if message == "False":
        errors = [error.strip() for error in NATIVE_ERROR.findall(native)]
        detail = next((text for text in errors if not text.startswith("Requested")), "")
        # Without the node's name, the same of several nodes is said once.
        detail = reword_error(detail)
        detail = name_data_types(detail.replace(f" in the node '{node.name}'", "")[:300])
        integers = f" ({OF_INTEGERS})" if "datatypes" in detail and _gives_integers(node) else ""
        return REFUSES + (f": {detail.rstrip('.')}" if detail else "") + integers
    if message in ("Skipped", "Forced Fallback"):
        return "it is kept on the CPU: cpu_nodes or --keep-on-cpu, or as the compiler crashes on it"
    if not message and node.op == "call_function":
        return "the partitioner lists it as not supported"
    return message


def left_on_cpu(graph: Any, watch: PartitionerSpy, kernels: Collection[str]) -> list[CpuOperator]:
    """Return the operators outside the delegates. Operators without a decision were added after the
    partitioner ran."""
    operators = []
    for node in graph.nodes:
        if node.op != "call_function" or is_glue(node):
            continue
        decision = watch.decisions.get(node.name)
        if decision is None:
            reason = "it came into the graph after the partitioner had looked"
        elif decision.supported:
            reason = "the partitioner takes it, and it is in no delegate"
        else:
            reason = decision.reason
        source, code = source_of(node)
        if not source and decision is not None and reason.startswith(REFUSES):
            # A decomposition may lose it; its neighbours have it.
            around = (source_of(neighbour) for neighbour in (*node.all_input_nodes, *node.users))
            source, code = next((place for place in around if place[0]), ("", ""))
        name = operator_name(node)
        kernel = has_kernel(name, kernels) and not is_volume_convolution(node)
        operators.append(CpuOperator(name, module_of(node), source, code, node.name, reason, kernel))
    return operators


def _gives_integers(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.dtype.is_floating_point


def cpu_kernels() -> frozenset[str]:
    """Return the operators for which ExecuTorch's runtime has CPU kernels, as `aten::add`."""
    from executorch.runtime import Runtime

    return frozenset(name.partition(".")[0] for name in Runtime.get().operator_registry.operator_names)


def has_kernel(operator: str, kernels: Collection[str]) -> bool:
    """Whether the runtime has a kernel for an operator. Python's runtime has only aten's kernels, and the
    runner is linked with more, so other libraries' operators count as having one."""
    library, _, rest = operator.partition(".")
    return library != "aten" or f"aten::{rest.partition('.')[0]}" in kernels


def is_volume_convolution(node: Any) -> bool:
    """Whether a convolution has more than four dimensions, which ExecuTorch's CPU kernel does not accept."""
    value = node.args[0].meta.get("val") if operator_name(node) == "aten.convolution.default" else None
    return value is not None and value.dim() > 4


def is_glue(node: Any) -> bool:
    return operator_name(node) in (DELEGATE, *PASS_THROUGH)


def is_quantizer(node: Any) -> bool:
    return node.op == "call_function" and "quantize_per" in operator_name(node)


def operator_name(node: Any) -> str:
    name = getattr(node.target, "__name__", str(node.target))
    return str(name)


def module_path(path: str) -> str:
    """Return the module's name in named_modules(), without export's wrappers."""
    path = re.sub(r"^L\['self'\]|^L__self__", "", path)
    path = re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", path)
    return ".".join(part for part in path.split(".") if part not in ("", "_modules", "_export_root"))


def module_of(node: Any) -> str:
    """Return the name in named_modules() of the node's module; empty for the model itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return module_path(stack[-1][0]) if stack else ""


def partition_of(program: Any, backend: str = "htp") -> list[GraphPart]:
    """Return the lowered graph as runs of operators, in order: each in a delegate or on the CPU, with its
    operators."""
    parts: list[tuple[str, Counter[str]]] = []
    delegates = itertools.count()
    for node in _operators_of(program.graph_module.graph):
        if operator_name(node) == DELEGATE:
            graph = getattr(program.graph_module, node.args[0].target).original_module.graph
            names = [operator_name(node) for node in _operators_of(graph) if not is_quantizer(node)]
            parts.append((f"{backend} {next(delegates)}", Counter(dict(Counter(names).most_common()))))
            continue
        if not parts or parts[-1][0] != "cpu":
            parts.append(("cpu", Counter()))
        parts[-1][1][operator_name(node)] += 1
    return [GraphPart(where, row.total(), dict(row)) for where, row in parts]


def _operators_of(graph: Any) -> Iterator[Any]:
    for node in graph.nodes:
        if node.op == "call_function" and operator_name(node) not in PASS_THROUGH:
            yield node


# Parts of a partition, each as a program of its own that QNN compiles alone in a tenth of a second


class Partition:
    """It keeps a partition as the partitioner produced it, before the backend's passes change it."""

    def __init__(self, program: Any, specs: Sequence[Any]) -> None:
        self.program = _copy_of(program)
        self.specs = list(specs)
        self.inputs = frozenset(program.graph_signature.user_inputs)

    @cached_property
    def calls(self) -> list[Node]:
        return [node for node in self.program.graph.nodes if node.op == "call_function"]

    @cached_property
    def live(self) -> frozenset[Node]:
        live: set[Node] = set()
        for node in self.program.graph.nodes:
            if node.name in self.inputs or not live.isdisjoint(node.all_input_nodes):
                live.add(node)
        return frozenset(live)

    @cached_property
    def operators(self) -> list[Node]:
        """Return the operators at which the compiler may fail, without those that always belong to another
        node."""
        return [
            node
            for node in self.calls
            if operator_name(node) not in PASS_THROUGH
            and (self.is_output(node) or (node in self.live and not is_quantizer(node)))
        ]

    def is_output(self, node: Node) -> bool:
        return any(user.op == "output" for user in node.users)

    def constants_of(self, node: Node) -> list[Node]:
        """Return the node's operands that are computed from constants alone, and their operands."""
        constants: dict[Node, None] = {}
        todo = [node]
        while todo:
            for operand in todo.pop().all_input_nodes:
                if operand.op == "call_function" and operand not in self.live and operand not in constants:
                    constants[operand] = None
                    todo.append(operand)
        return list(constants)

    def error_of(self, nodes: Iterable[Node], *, buffers: bool = False) -> str:
        """Return why these nodes do not compile together with their quantizers and constants; empty if they
        do.

        With `buffers`, values that are computed from constants are passed to them, as a buffer is."""
        program = self._program_of(self._closure(nodes, buffers))
        with QnnManagerContext({"forward": self.specs}):
            try:
                qnn_preprocess.QnnBackend.preprocess(program, self.specs)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            finally:
                restore_builtins()
        return ""

    def _closure(self, nodes: Iterable[Node], buffers: bool) -> set[Node]:
        members: set[Node] = set()
        todo = list(nodes)
        while todo:
            node = todo.pop()
            if node in members or node.op != "call_function":
                continue
            members.add(node)
            todo += [
                operand
                for operand in node.all_input_nodes
                if is_quantizer(operand)
                or (operand not in self.live and not buffers)
                or operator_name(node) in PASS_THROUGH
            ]
            if node in self.live:
                todo += [
                    user for user in node.users if operator_name(user) in PASS_THROUGH or _ends(node, user)
                ]
        return members

    def _program_of(self, members: Collection[Node]) -> Any:
        """Make a program of these nodes: outside values become inputs, and values that are used outside
        become outputs."""
        ours = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        graph, copies = torch.fx.Graph(), dict[Node, Node]()
        outside = [node for node in self.program.graph.nodes if node not in members]
        sources = [node for node in outside if not node.users.keys().isdisjoint(members)]
        sources.sort(key=lambda node: node.op != "placeholder" or node.name in self.inputs)
        inputs = []
        for node in sources:
            copies[node] = place = graph.placeholder(node.name)
            place.meta = _meta_copy(node.meta)
            spec = ours.get(node.name) if node.op == "placeholder" else None
            if spec is None or spec.kind == InputKind.USER_INPUT:
                inputs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(place.name), None))
            else:
                inputs.append(InputSpec(spec.kind, TensorArgument(place.name), spec.target, spec.persistent))
        outputs = []
        for node in self.calls:
            if node not in members:
                continue
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = _meta_copy(node.meta)
            several = isinstance(node.meta.get("val"), tuple | list)
            if not several and (not node.users or any(user not in members for user in node.users)):
                outputs.append(copies[node])
        graph.output(tuple(outputs)).meta = {}
        results = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in outputs]
        return _program(self.program, graph, ExportGraphSignature(inputs, results))


def restore_builtins() -> None:
    """Restore `range`: the backend's error path imports all of torch into its module, and torch.range
    replaces Python's."""
    vars(qnn_preprocess).pop("range", None)


def smallest_failing(
    nodes: Sequence[Node],
    fails: Callable[[Sequence[Node]], bool],
    suspects: Sequence[Node],
    late: Callable[[], bool],
) -> list[Node]:
    """Return the smallest set of nodes that fails, with the node at fault last: one of `suspects`, if it
    fails alone. It is empty if all nodes together do not fail."""
    for node in suspects:
        if fails([node]):
            return [node]
    if not fails(nodes):
        return []
    return [*smallest(nodes, lambda parts: next(filter(fails, parts), None), late)]


def _ends(node: Node, user: Node) -> bool:
    """Whether the user of the node's output quantizes it."""
    return is_quantizer(user) and not ("dequantize" in operator_name(user) and is_quantizer(node))


def _copy_of(program: Any) -> Any:
    graph, copies = torch.fx.Graph(), dict[Node, Node]()
    output = graph.graph_copy(program.graph, copies)
    for original, ours in copies.items():
        ours.meta = _meta_copy(original.meta)
    graph.output(output).meta = {}
    return _program(program, graph, copy.deepcopy(program.graph_signature))


def _program(original: Any, graph: Any, signature: Any) -> Any:
    root = torch.nn.Module()
    for name, module in original.graph_module._modules.items():
        root.add_module(name, module)
    return ExportedProgram(
        root=root,
        graph=graph,
        graph_signature=signature,
        state_dict=dict(original.state_dict),
        range_constraints=original.range_constraints,
        module_call_graph=[],
        constants=dict(original.constants),
        verifiers=original.verifiers,
    )


def _meta_copy(meta: dict[str, object]) -> dict[str, object]:
    """Copy a node's meta, because the backend's passes write into the dictionaries in it."""
    return {key: dict(value) if type(value) is dict else value for key, value in meta.items()}


# The traits of a node of an exported program


Constants = Callable[[Any], Any]
"""It returns the tensor that a node stands for, if it is one of the model's own."""

CASTS = ("_to_copy", "to", "type_as", "_to_dim_order_copy")


def delegated_nodes(program: Any, source: Any) -> dict[str, Traits]:
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


def constants_of(program: Any) -> Constants:
    """Return a function that finds the constants of an exported program, or of the module that it becomes."""
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


def _shape_of(node: Any) -> tuple[int, ...] | None:
    """Return a node's shape; if it gives values and indices, that of the values. A quantizer may lack its own
    shape, and then has its operand's."""
    while node is not None and "val" not in node.meta and is_quantizer(node):
        node = node.args[0]
    value = None if node is None else node.meta.get("val")
    value = value[0] if isinstance(value, list | tuple) and value else value
    return tuple(int(size) for size in value.shape) if isinstance(value, Tensor) else None


def _is_between(node: Any) -> bool:
    """Whether a node only passes on what another node computes."""
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
    """Return the range that an operand's dequantizer can give, if it has one scale for the whole tensor."""
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
    arguments = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    plain: dict[str, Argument | tuple[Argument, ...]] = {}
    for name, value in arguments.items():
        if isinstance(value, list | tuple):
            plain[name] = tuple(_plain(element, constants) for element in value)
        elif (text := _plain(value, constants)) is not None:
            plain[name] = text
    return plain


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
    """Return a node's constant tensor, also if a quantizer reads it or if it is one number everywhere."""
    if node.op == "call_function" and "full" in operator_name(node) and isinstance(node.args[1], int | float):
        return torch.tensor(float(node.args[1])).expand(_shape_of(node) or [])
    if node.op == "call_function" and is_quantizer(node):
        tensor = _constant(node.args[0], constants)
        arguments = [
            _constant(argument, constants) if isinstance(argument, torch.fx.Node) else argument
            for argument in node.args[1:]
        ]
        return None if tensor is None else node.target(tensor, *arguments, **node.kwargs)
    return constants(node)


def _lowered_name(node: Any) -> str:
    """Return the operator's name after lowering: a batch norm that uses its input's statistics becomes
    another operator than one that uses running statistics."""
    name = operator_name(node)
    by_input = name == "batch_norm.default" and node.args[5]
    return "_native_batch_norm_legit.no_stats" if by_input else name


def _is_number(operand: Any, constants: Constants) -> bool:
    value = operand
    if isinstance(operand, torch.fx.Node):
        value = operand.meta.get("val", _constant(operand, constants))
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float)


def _kind_of(node: Any) -> str:
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


def _is_of_another_call(node: Any) -> bool:
    """Whether the node's module was called before: torch numbers its calls from the second on."""
    return "@" in next(reversed([*(node.meta.get("nn_module_stack") or {"": ""})]))


def _is_cast(node: Any) -> bool:
    return node.op == "call_function" and not {*operator_name(node).split(".")}.isdisjoint(CASTS)
