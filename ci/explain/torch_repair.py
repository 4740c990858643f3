"""A PyTorch model with every rewrite that it needs, each proved on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn.utils import parametrize

from ci.explain.rewriting import Need, Repaired
from ci.explain.torch_layers import LAYERS
from ci.explain.torch_rewrites import MOVES, REWRITES, aten, is_cast_to_float
from ci.explain.torch_rewriting import Exported, NodeMatch
from ci.explain.torch_values import Tensors
from ci.models.arrays import Array
from ci.models.factory import REMOVED_BY, computed_weights, run_copied
from ci.models.model_lines import source_of

BY_NAME = REWRITES | LAYERS
"""Of places in a graph."""
WEIGHTS = "weights-made-constant"
"""The rewrite of weights that are computed in each run, which an export cannot show."""
INPUTS = {
    "input-in-int32": ((torch.uint8,), torch.int32),
    "input-in-float32": ((torch.int32, torch.int64), torch.float32),
}
"""By rewrite: the types of an input that is only moved, cast and compared, and the one that it gets."""
COMPARISONS = (
    *(aten.eq.Scalar, aten.ne.Scalar, aten.gt.Scalar, aten.ge.Scalar, aten.lt.Scalar, aten.le.Scalar),
)


def retyped(model: Exported, name: str) -> Iterator[Node]:
    """The inputs whose type is to change."""
    kinds, _ = INPUTS[name]
    for node in model.module.graph.find_nodes(op="placeholder"):
        value = model.value(node)
        if not isinstance(value, Tensor) or value.dtype not in kinds:
            continue
        readers = _readers_behind_moves(node)
        casts = [reader for reader in readers if is_cast_to_float(model, reader)]
        # ExecuTorch casts an input of int64 by itself.
        wrong = [cast for cast in casts if value.dtype != torch.int64 or cast.args[0] is not node]
        if wrong and all(reader in casts or reader.target in COMPARISONS for reader in readers):
            yield node


def _readers_behind_moves(node: Node) -> list[Node]:
    found, todo = list[Node](), list(node.users)
    while todo:
        user = todo.pop()
        if user.target in MOVES:
            todo += user.users
        else:
            found.append(user)
    return found


class RepairedModule(Repaired[NodeMatch]):
    def __init__(self, model: torch.nn.Module, samples: Sequence[Tensors]) -> None:
        self.samples, self.kinds = samples, [tensor.dtype for tensor in samples[0]]
        self.weights = computed_weights(model.requires_grad_(False))
        super().__init__([_arrays(model, sample) for sample in samples])
        self.model = Exported(with_constant_weights(model) if self.weights else model, samples)

    def fed(self, sample: Tensors) -> Tensors:
        return tuple(tensor.to(kind) for tensor, kind in zip(sample, self.kinds, strict=True))

    def exported(self) -> Any:
        return torch.export.export(self.model.module, self.fed(self.samples[0]), strict=True)

    def outputs(self) -> list[list[Array]]:
        return [_arrays(self.model.module, self.fed(sample)) for sample in self.samples]

    def found(self, need: Need) -> Iterator[Sequence[NodeMatch]]:
        if need.rewrite == WEIGHTS:
            for name, call in self.weights.items():
                self.note(replace(need, words=call), (name, "", ""))
        elif need.rewrite in INPUTS:
            self._retype(need)
        # The table has rewrites that are another lane's.
        for find in BY_NAME.get(need.rewrite, ()):
            if matches := list(find(self.model)):
                yield matches

    def settle(self) -> None:
        self.model.settle()

    def place_of(self, node: Node) -> tuple[str, str, str]:
        return node.name, *source_of(node)

    def put(self, match: NodeMatch, need: Need) -> None:
        self.model.put(match, self.model.proved(match, need))

    def _retype(self, need: Need) -> None:
        places = self.model.module.graph.find_nodes(op="placeholder")
        for node in retyped(self.model, need.rewrite):
            kind = INPUTS[need.rewrite][1]
            if not need.withheld:
                self.kinds[places.index(node)] = kind
            words = f"pass {node.name} as {str(kind).removeprefix('torch.')}"
            self.note(replace(need, words=words), (f"input {node.name}", "", ""), need.withheld)


def _arrays(model: Any, sample: Tensors) -> list[Array]:
    return [tensor.numpy() for tensor in run_copied(model, sample)]


def with_constant_weights(model: torch.nn.Module) -> torch.nn.Module:
    """A copy whose weights are those that it would compute."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for weight in list(module.parametrizations) if parametrize.is_parametrized(module) else ():
            parametrize.remove_parametrizations(module, weight)
        for hook in list(module._forward_pre_hooks.values()):
            if type(hook).__name__ in REMOVED_BY:
                getattr(torch.nn.utils, REMOVED_BY[type(hook).__name__])(module)
    return model.requires_grad_(False)
