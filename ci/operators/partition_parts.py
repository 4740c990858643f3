"""Compile parts of a partition, each as a program of its own, to find which operators QNN does not compile.

QNN takes a tenth of a second for one part. `failing_operators` decides which parts to try."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

import torch
from executorch.backends.qualcomm import qnn_preprocess
from executorch.backends.qualcomm.utils.qnn_manager_lifecycle import QnnManagerContext
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, Node

from ci.operators.partition import PASS_THROUGH, is_quantizer, operator_name


class Partition:
    """It keeps a partition as the partitioner produced it, before the backend's passes change it."""

    def __init__(self, program: ExportedProgram, specs: Sequence[object]) -> None:
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

    def _program_of(self, members: Collection[Node]) -> ExportedProgram:
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


def _ends(node: Node, user: Node) -> bool:
    """Whether the user of the node's output quantizes it."""
    return is_quantizer(user) and not ("dequantize" in operator_name(user) and is_quantizer(node))


def _copy_of(program: ExportedProgram) -> ExportedProgram:
    graph, copies = torch.fx.Graph(), dict[Node, Node]()
    output = graph.graph_copy(program.graph, copies)
    for original, ours in copies.items():
        ours.meta = _meta_copy(original.meta)
    graph.output(output).meta = {}
    return _program(program, graph, copy.deepcopy(program.graph_signature))


def _program(original: ExportedProgram, graph: Graph, signature: ExportGraphSignature) -> ExportedProgram:
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
