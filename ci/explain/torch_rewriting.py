"""Rewrite an exported PyTorch model: traced code replaces a node, once it is proved to be the same.

`RepairedModule` holds the model and its nodes' values on the samples. It finds the places of each rewrite
(`Registry`), computes both forms on the CPU, and keeps a replacement only where they agree. The rewrites are
in `torch_rewrites` and the modules beside it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter, getitem
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from ci.explain.proof import Batch, prove
from ci.explain.rewriting import Match, Need, Repaired
from ci.explain.torch_values import Tensors, values_of
from ci.models.inference import copy_sample, run_copied
from ci.models.inputs import Array
from ci.models.model_checks import REMOVED_BY, computed_weights
from ci.models.model_lines import source_of

aten: Any = torch.ops.aten
ASSERTION = aten._assert_tensor_metadata.default
BY_SHAPE = (
    *(aten.full_like.default, aten.ones_like.default, aten.zeros_like.default),
    *(aten.new_full.default, aten.new_ones.default, aten.new_zeros.default),
)
"""They use only a tensor's shape, which is fixed, and give one number everywhere."""
KEPT_META = ("stack_trace", "nn_module_stack")
WRITTEN = "written_"
"""The names of rewrites' constants begin so."""
WEIGHTS = "weights-made-constant"
"""This rewrite makes weights constant that are computed in each run, which an export cannot show."""


NodeMatch = Match[Node, Node]
"""For a node of several values, a tuple is written, with None for values that nothing reads."""


class RepairedModule(Repaired[Node, Node]):
    """It holds a PyTorch model with every rewrite that it needs, each proved on the CPU, and the values of
    its nodes for each sample."""

    def __init__(
        self, model: torch.nn.Module, samples: Sequence[Tensors], rewrites: Mapping[str, Sequence[Find]]
    ) -> None:
        self.rewrites, self.weights = rewrites, computed_weights(model.requires_grad_(False))
        super().__init__([_arrays(model, sample) for sample in samples])
        self.samples = [copy_sample(sample) for sample in samples]
        source = copy_with_constant_weights(model) if self.weights else model
        self.module: GraphModule = _plain(
            torch.export.export(source, copy_sample(samples[0]), strict=True).module()
        )
        self.values: list[dict[Node, Any]] = []
        self.stands_for: dict[Node, Node] = {}
        """Maps a node to the one that replaced it."""
        self.in_place_nodes: set[Node] = set()
        """These nodes are changed in place, perhaps by what depends on an input."""
        self.settle()

    def exported(self) -> ExportedProgram:
        return torch.export.export(self.module, copy_sample(self.samples[0]), strict=True)

    def outputs(self) -> list[list[Array]]:
        return [_arrays(self.module, sample) for sample in self.samples]

    def matches_of(self, need: Need) -> Iterator[Sequence[NodeMatch]]:
        if need.rewrite == WEIGHTS:
            for name, call in self.weights.items():
                self.note(replace(need, words=call), (name, "", ""))
        # The table has rewrites that are another lane's.
        for find in self.rewrites.get(need.rewrite, ()):
            if matches := list(find(self)):
                yield matches

    def settle(self) -> None:
        _settle(self.module)
        self.stands_for = {}
        self.in_place_nodes = _nodes_changed_in_place(self.module.graph)
        self.values = [values_of(self.module, sample) for sample in self.samples]

    def place_of(self, node: Node) -> tuple[str, str, str]:
        return node.name, *source_of(node)

    def value(self, node: Any) -> Any:
        return self.values[0][node]

    def varies(self, node: Node) -> bool:
        """Whether a node depends on an input."""
        return not self._constant(node, ())

    def only_of(self, node: Node, operand: Node) -> bool:
        """Whether a node depends on no input except through the operand."""
        return self._constant(node, (operand,))

    def _constant(self, node: Node, exempt: Sequence[Node]) -> bool:
        todo, nodes = [node], {*exempt}
        while todo:
            maker = todo.pop()
            if maker in nodes:
                continue
            if maker.op == "placeholder" or maker in self.in_place_nodes:
                return False
            nodes.add(maker)
            todo += maker.all_input_nodes if maker.target not in BY_SHAPE else ()
        return True

    def all_of(self, *targets: object) -> Iterator[Node]:
        yield from [node for node in self.module.graph.nodes if node.target in targets]

    def call(self, node: Node, write: Callable[..., object], low: float = float("-inf")) -> NodeMatch:
        """Return a match of one node; `write` takes its arguments, constants by their values."""
        operands = tuple(operand for operand in node.all_input_nodes if self.varies(operand))
        constants = {
            operand: attrgetter(str(operand.target))(self.module)
            if operand.op == "get_attr"
            else self.value(operand)
            for operand in node.all_input_nodes
            if operand not in operands
        }
        args, kwargs = node.args, dict(node.kwargs)

        def compute(*tensors: Tensor) -> object:
            values = {**constants, **dict(zip(operands, tensors, strict=True))}
            return write(*_with(args, values), **_with(kwargs, values))

        return NodeMatch(node, operands, compute, low)

    def replacement(self, match: NodeMatch, need: Need) -> GraphModule:
        """Return the graph that replaces the match's node. Raises NotTheSame."""
        first = [self.values[0][operand].clone() for operand in match.operands]
        traced = make_fx(match.write, pre_dispatch=True)(*first)
        _fold(traced)
        samples = []
        for values in self.values:
            samples.append([values[operand].numpy() for operand in match.operands])
        prove(
            _array_batch(self._part(match)),
            _array_batch(traced),
            samples,
            need.values,
            need.bound,
            match.low,
        )
        return traced

    def _now(self, node: Node) -> Node:
        while node in self.stands_for:
            node = self.stands_for[node]
        return node

    def _part(self, match: NodeMatch) -> GraphModule:
        graph, copies = Graph(), dict[Node, Node]()
        for operand in match.operands:
            copies[self._now(operand)] = graph.placeholder(operand.name)

        def put(node: Node) -> Node:
            if node not in copies and node.target in BY_SHAPE:
                value = self.value(node)
                number = value.flatten()[0].item() if value.numel() else 0
                sizes, kind = tuple(value.shape), {"dtype": value.dtype}
                copies[node] = graph.call_function(torch.full, (sizes, number), kind)
            if node not in copies:
                for operand in node.all_input_nodes:
                    put(operand)
                copies[node] = graph.node_copy(node, copies.__getitem__)
            return copies[node]

        base, places = written_tensor(match.node), _reads_of(match.node)
        for write in writes_to(base, match.node) if base else ():
            put(write)
        end = put(base or match.node)
        graph.output(
            end if places is None else tuple(graph.call_function(getitem, (end, place)) for place in places)
        )
        return GraphModule(self.module, graph)

    def put(self, match: NodeMatch, need: Need) -> None:
        traced, graph, node = self.replacement(match, need), self.module.graph, match.node
        placeholders = traced.graph.find_nodes(op="placeholder")
        copies = dict(zip(placeholders, map(self._now, match.operands), strict=True))
        result: Any = None
        with graph.inserting_before(node):
            for inner in traced.graph.nodes:
                if inner.op == "output":
                    (result,) = inner.args
                elif inner.op != "placeholder":
                    copies[inner] = (
                        graph.get_attr(self._constant_name(attrgetter(str(inner.target))(traced)))
                        if inner.op == "get_attr"
                        else graph.node_copy(inner, copies.__getitem__)
                    )
                    copies[inner].meta = {name: node.meta[name] for name in KEPT_META if name in node.meta}
        if base := written_tensor(node):
            self._replace_written(node, base, copies[result])
            return
        if _reads_of(node) is None:
            self.stands_for[node] = copies[result]
            node.replace_all_uses_with(copies[result])
        else:
            for user in list(node.users):
                self.stands_for[user] = copies[result[user.args[1]]]
                user.replace_all_uses_with(self.stands_for[user])
                graph.erase_node(user)
        graph.erase_node(node)

    def _replace_written(self, write: Node, base: Node, result: Node) -> None:
        """Let what reads the tensor behind its last write read the result, and remove the writes."""
        writes, nodes = writes_to(base, write), list(self.module.graph.nodes)
        later = set(nodes[nodes.index(write) + 1 :])
        base.replace_all_uses_with(result, delete_user_cb=lambda user: user in later)
        for node in writes:
            node.replace_all_uses_with(result)
            self.module.graph.erase_node(node)

    def _constant_name(self, tensor: Tensor) -> str:
        """Return the name of a constant, which is the model's own if the model has it; else it is added."""
        for name, constant in (*self.module.named_parameters(), *self.module.named_buffers()):
            if constant is tensor:
                return str(name)
        number = sum(name.startswith(WRITTEN) for name, _ in self.module.named_buffers())
        self.module.register_buffer(f"{WRITTEN}{number}", tensor.detach().clone())
        return f"{WRITTEN}{number}"


Find = Callable[[RepairedModule], Iterator[NodeMatch]]
FindAt = Callable[[RepairedModule, Node], NodeMatch | None]
When = Callable[[RepairedModule, Node], bool]


class Registry(dict[str, list[Find]]):
    """It maps the name of a rewrite to what finds its places."""

    def search(self, name: str) -> Callable[[Find], Find]:
        def register(find: Find) -> Find:
            self.setdefault(name, []).append(find)
            return find

        return register

    def find_at(self, name: str, *targets: object) -> Callable[[FindAt], FindAt]:
        """Register a rewrite of single nodes."""

        def register(match: FindAt) -> FindAt:
            self.search(name)(
                lambda model: filter(None, (match(model, node) for node in model.all_of(*targets)))
            )
            return match

        return register

    def one(
        self, name: str, *targets: object, when: When = lambda *_: True, low: float = float("-inf")
    ) -> Callable[[Callable[..., object]], Callable[..., object]]:
        """Register a rewrite of single nodes whose function takes the node's arguments."""

        def register(write: Callable[..., object]) -> Callable[..., object]:
            self.find_at(name, *targets)(
                lambda model, node: model.call(node, write, low) if when(model, node) else None
            )
            return write

        return register


def _with(arguments: object, values: Mapping[Node, object]) -> Any:
    if isinstance(arguments, Node):
        return values[arguments]
    if isinstance(arguments, Mapping):
        return {name: _with(value, values) for name, value in arguments.items()}
    if isinstance(arguments, list | tuple):
        return [_with(value, values) for value in arguments]
    return arguments


def _fold(traced: GraphModule) -> None:
    """Compute once what depends on no operand."""
    values: dict[Node, Any] = {}
    for node in list(traced.graph.nodes):
        if node.op == "get_attr":
            values[node] = attrgetter(str(node.target))(traced)
        elif node.op == "call_function" and values.keys() >= {*node.all_input_nodes}:
            values[node] = node.target(*_with(node.args, values), **_with(node.kwargs, values))
            if isinstance(values[node], Tensor):
                name = f"folded_{len(values)}"
                traced.register_buffer(name, values[node])
                with traced.graph.inserting_before(node):
                    constant = traced.graph.get_attr(name)
                node.replace_all_uses_with(constant)
                values[constant] = values[node]
    _settle(traced)


def _reads_of(node: Node) -> list[int] | None:
    """Return which of several values are read; None for a node of one value."""
    if not node.users or any(user.target is not getitem for user in node.users):
        return None
    return sorted({int(str(user.args[1])) for user in node.users})


def _array_batch(function: Callable[..., object]) -> Batch:
    def compute(arrays: Sequence[Array]) -> list[Array]:
        leaves = torch.utils._pytree.tree_leaves(
            function(*(torch.from_numpy(array.copy()) for array in arrays))
        )
        return [tensor.numpy() for tensor in leaves if tensor is not None]

    return lambda inputs: [compute(arrays) for arrays in inputs]


def _plain(module: GraphModule) -> GraphModule:
    """Remove what only checks the inputs' sizes and types, which a rewrite may change."""
    for node in reversed(module.graph.nodes):
        if not node.users and (node.op == "call_module" or node.target is ASSERTION):
            module.graph.erase_node(node)
    module.requires_grad_(False)
    _return_a_tuple(module.graph)
    _settle(module)
    return module


def _return_a_tuple(graph: Graph) -> None:
    """Return a named tuple of torch, such as that of max(dim), as a tuple: no file can hold its type."""
    codegen: Any = graph._codegen
    spec = codegen.pytree_info.out_spec
    if spec.type is not None and spec.type.__module__ == "torch.return_types":
        places = pytree.tree_structure(tuple(range(spec.num_leaves)))
        codegen.pytree_info = codegen.pytree_info._replace(out_spec=places)


def _nodes_changed_in_place(graph: Graph) -> set[Node]:
    """Return the nodes that are changed in place, and the nodes that they are views of."""
    nodes, todo = (
        set[Node](),
        [operand for node in graph.nodes for operand in _operands_sharing_memory(node, writes=True)],
    )
    while todo:
        node = todo.pop()
        if node not in nodes:
            nodes.add(node)
            todo += _operands_sharing_memory(node, writes=False)
    return nodes


def written_tensor(node: Node) -> Node | None:
    """Return the tensor that a node writes to through a view of it; None if it writes through none."""
    written = next(_operands_sharing_memory(node, writes=True), None)
    base = written
    while base is not None and (source := next(_operands_sharing_memory(base, writes=False), None)):
        base = source
    return base if base is not written else None


def writes_to(base: Node, last: Node) -> list[Node]:
    """Return the nodes that write to a tensor through views, up to the last of them."""
    nodes = list(base.graph.nodes)
    return [node for node in nodes[: nodes.index(last) + 1] if written_tensor(node) is base]


def _operands_sharing_memory(node: Node, *, writes: bool) -> Iterator[Node]:
    """Yield the operands whose memory a node writes to, or hands on."""
    if node.target is getitem:
        yield from () if writes else node.all_input_nodes
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    values = dict(zip((argument.name for argument in node.target._schema.arguments), node.args, strict=False))
    for argument in node.target._schema.arguments:
        operand, alias = {**values, **node.kwargs}.get(argument.name), argument.alias_info
        if isinstance(operand, Node) and alias and alias.is_write is writes:
            yield operand


def _settle(module: GraphModule) -> None:
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()


def _arrays(model: Callable[..., object], sample: Tensors) -> list[Array]:
    return [tensor.numpy() for tensor in run_copied(model, sample)]


def copy_with_constant_weights(model: torch.nn.Module) -> torch.nn.Module:
    """Copy the model; the weights that it would compute become constants."""
    model = copy.deepcopy(model)
    for module in model.modules():
        made = module.parametrizations if parametrize.is_parametrized(module) else None
        for weight in list(made) if isinstance(made, torch.nn.ModuleDict) else ():
            parametrize.remove_parametrizations(module, weight)
        for hook in list(module._forward_pre_hooks.values()):
            if type(hook).__name__ in REMOVED_BY:
                getattr(torch.nn.utils, REMOVED_BY[type(hook).__name__])(module)
    return model.requires_grad_(False)
