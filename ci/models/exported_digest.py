"""The digest of an exported model: what the cache knows it by.

It is taken over values, never over paths or times: the graph with its nodes' names, the signature, the ranges
of sizes, and each tensor. Source lines are none of it: a comment or a move of the file changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree

SEEN = frozenset({"aten", "prim", "prims", "quantized_decomposed", "higher_order"})
"""Namespaces of torch's own operators. What another's operator computes, its name does not say."""

PLAIN_MODULES = ("_operator", "builtins", "math", "torch", "torch.sym")
"""Of functions in a graph that are no operators: arithmetic of sizes, and reading an element."""


class NoDigest(Exception):
    """Two models that differ could have one digest: what was compiled of this one is not looked up."""


def digest_of(program: torch.export.ExportedProgram) -> str:
    """Raises NoDigest."""
    digest = hashlib.sha256()
    for line in _lines(program):
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _lines(program: Any) -> Iterator[str]:
    yield from _graph_lines(program.graph_module, "")
    signature = program.graph_signature
    yield f"signature {signature.input_specs} {signature.output_specs}"
    ranges = {str(symbol): str(span) for symbol, span in program.range_constraints.items()}
    yield f"ranges {json.dumps(ranges, sort_keys=True)}"
    yield f"call {program.call_spec.in_spec} {program.call_spec.out_spec}"
    for kind, values in (("state", program.state_dict), ("constant", program.constants)):
        for name, value in sorted(values.items()):
            yield f"{kind} {name} {_value_line(value)}"


def _graph_lines(module: fx.GraphModule, path: str) -> Iterator[str]:
    for node in module.graph.nodes:
        words = [node.op, node.name, _target(node), *map(_argument, (node.args, dict(node.kwargs)))]
        yield f"node {path}{json.dumps(words)} {_shown_value(node.meta.get('val'))} {_origin(node)}"
    for name, child in module.named_children():
        if not isinstance(child, fx.GraphModule):
            raise NoDigest(f"{path}{name} is a {type(child).__name__}, and no graph")
        yield from _graph_lines(child, f"{path}{name}.")


def _target(node: fx.Node) -> str:
    target: Any = node.target
    if node.op != "call_function":
        return str(target)
    namespace = getattr(target, "namespace", None)
    if namespace is None:
        module = getattr(target, "__module__", "")
        if module not in PLAIN_MODULES:
            raise NoDigest(f"{node.name} calls {module}.{getattr(target, '__name__', target)}")
        return f"{module}.{target.__name__}"
    if namespace not in SEEN:
        raise NoDigest(f"{node.name} calls {target}, whose code no graph shows")
    return str(target)


def _argument(value: Any) -> str:
    """`repr` keeps each float to its last bit; nodes appear by their names."""
    leaves, structure = _pytree.tree_flatten(value)
    for leaf in leaves:
        if isinstance(leaf, Tensor) or (callable(leaf) and not isinstance(leaf, fx.Node)):
            raise NoDigest(f"an argument is a {type(leaf).__name__}")
    return f"{structure} {leaves}"


def _shown_value(value: Any) -> str:
    """What is known of a node's result without any input."""
    return ",".join(
        f"{leaf.dtype}{list(leaf.shape)}{list(leaf.stride())}" if isinstance(leaf, Tensor) else str(leaf)
        for leaf in _pytree.tree_leaves(value)
    )


def _origin(node: fx.Node) -> str:
    """The modules and calls that a node comes from. Suites choose nodes by modules, and the compiler's passes
    ask for calls: `torch.stack` and what it consists of are lowered differently. The keys of the stacks are
    left out: they differ from one process to the next."""
    modules: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    calls: Sequence[tuple[str, Any]] = node.meta.get("source_fn_stack") or ()
    call = node.meta.get("torch_fn") or ()
    stacks = [
        [(path, _name(kind)) for path, kind in modules.values()],
        [(name, _name(kind)) for name, kind in calls],
    ]
    return json.dumps([*stacks, call])


def _name(kind: Any) -> str:
    """Without its module: the user's is named after the folder where it lies."""
    if isinstance(kind, str):
        return kind.rpartition(".")[2]
    named = getattr(kind, "__qualname__", None) or getattr(kind, "__name__", None)
    return str(named or type(kind).__name__)


def _value_line(value: Any) -> str:
    if not isinstance(value, Tensor):
        raise NoDigest(f"a constant is a {type(value).__name__}, and no tensor")
    if (
        type(value) not in (Tensor, torch.nn.Parameter)
        or value.layout is not torch.strided
        or value.is_quantized
    ):
        raise NoDigest(f"a tensor is a {type(value).__name__} of layout {value.layout}")
    shape = f"{value.dtype} {list(value.shape)} {list(value.stride())}"
    if value.device.type != "cpu":
        raise NoDigest(f"a tensor is on {value.device}")
    values = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{shape} {hashlib.sha256(values).hexdigest()}"
