"""Record the partitioner's decision on every operator, the reason, and the operator's place in the model.

`PartitionerSpy` listens while ExecuTorch's partitioner works. `left_on_cpu` and
`partition_of` read what it has decided."""

from __future__ import annotations

import itertools
import logging
import re
import sys
from collections import Counter
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm.partition import qnn_partitioner
from executorch.backends.qualcomm.utils.constants import QCOM_FALLBACK_NODE
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from ci.artifacts.compiler_log import NATIVE_ERROR, OF_INTEGERS, REFUSES, reword_error
from ci.diagnose.logs import name_data_types
from ci.models.model_lines import source_of
from ci.operators import CpuOperator, GraphPart
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
    """The partitioner takes an operator into a delegate, or says why not."""

    operator: str
    supported: bool
    reason: str


@dataclass
class PartitionerSpy:
    """Collects the decisions of the partitioner while it is installed."""

    on_cpu: Container[object] = ()
    """These nodes stay on the CPU, among them constants' dequantizers, which the partitioner's own list does
    not cover."""
    decisions: dict[str, Decision] = field(default_factory=dict)
    users: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps each node that was looked at to those that read it."""
    nodes: dict[str, Node] | None = None
    """If it is not None, it maps the names of the nodes that were looked at to the nodes."""
    current: Node | None = None
    """The node that the partitioner is looking at, or at which it failed."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        support = qnn_partitioner.QnnOperatorSupport
        original = support.is_node_supported
        messages: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]

        def watch(checker: object, submodules: object, node: Node) -> bool:
            messages.clear()
            begin = printed_so_far()
            self.users[node.name] = tuple(user.name for user in node.users)
            if self.nodes is not None:
                self.nodes[node.name] = node
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


def _reason(messages: Sequence[str], native_log: str, node: Node) -> str:
    """Return the partitioner's reason, and after a failed validation also the backend's."""
    message = next((line.partition(" | ")[2] for line in reversed(messages) if " | " in line), "")
    if message == "False":
        return _reason_of_backend(native_log, node)
    if message in ("Skipped", "Forced Fallback"):
        return "it is kept on the CPU: cpu_nodes or --keep-on-cpu, or as the compiler crashes on it"
    if not message and node.op == "call_function":
        return "the partitioner lists it as not supported"
    return message


def _reason_of_backend(native_log: str, node: Node) -> str:
    """Return why the backend's validation refuses a node, by the first error of its log that says more than
    which operator it is."""
    errors = [error.strip() for error in NATIVE_ERROR.findall(native_log)]
    detail = reword_error(next((error for error in errors if not error.startswith("Requested")), ""))
    # Without the node's name, the same of several nodes is said once.
    detail = name_data_types(detail.replace(f" in the node '{node.name}'", "")[:300])
    reason = REFUSES
    if detail:
        reason += f": {detail.rstrip('.')}"
    if "datatypes" in detail and _gives_integers(node):
        reason += f" ({OF_INTEGERS})"
    return reason


def left_on_cpu(graph: Graph, watch: PartitionerSpy, kernels: Collection[str]) -> list[CpuOperator]:
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


def _gives_integers(node: Node) -> bool:
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


def is_volume_convolution(node: Node) -> bool:
    """Whether a convolution has more than four dimensions, which ExecuTorch's CPU kernel does not accept."""
    image = node.args[0] if operator_name(node) == "aten.convolution.default" else None
    value = image.meta.get("val") if isinstance(image, Node) else None
    return isinstance(value, Tensor) and value.dim() > 4


def is_glue(node: Node) -> bool:
    return operator_name(node) in (DELEGATE, *PASS_THROUGH)


def is_quantizer(node: Node) -> bool:
    return node.op == "call_function" and "quantize_per" in operator_name(node)


def operator_name(node: Node) -> str:
    name = getattr(node.target, "__name__", str(node.target))
    return str(name)


def called_delegate(module: GraphModule, call: Node) -> Any:
    """Return what a call of a delegate runs: the part of the model that was lowered."""
    return getattr(module, str(call.all_input_nodes[0].target))


def module_path(path: str) -> str:
    """Return the module's name in named_modules(), without export's wrappers."""
    path = re.sub(r"^L\['self'\]|^L__self__", "", path)
    path = re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", path)
    return ".".join(part for part in path.split(".") if part not in ("", "_modules", "_export_root"))


def module_of(node: Node) -> str:
    """Return the name in named_modules() of the node's module; empty for the model itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return module_path(stack[-1][0]) if stack else ""


def partition_of(program: ExportedProgram, backend: str = "htp") -> list[GraphPart]:
    """Return the lowered graph as runs of operators, in order: each in a delegate or on the CPU, with its
    operators."""
    parts: list[tuple[str, Counter[str]]] = []
    delegates = itertools.count()
    for node in _operators_of(program.graph_module.graph):
        if operator_name(node) == DELEGATE:
            graph = called_delegate(program.graph_module, node).original_module.graph
            names = [operator_name(node) for node in _operators_of(graph) if not is_quantizer(node)]
            parts.append((f"{backend} {next(delegates)}", Counter(dict(Counter(names).most_common()))))
            continue
        if not parts or parts[-1][0] != "cpu":
            parts.append(("cpu", Counter()))
        parts[-1][1][operator_name(node)] += 1
    return [GraphPart(where, row.total(), dict(row)) for where, row in parts]


def _operators_of(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        if node.op == "call_function" and operator_name(node) not in PASS_THROUGH:
            yield node
