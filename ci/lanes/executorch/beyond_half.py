"""What leaves fp16 in a float model. Imported only by workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._python_dispatch import TorchDispatchMode

from ci.explain.losses import BeyondHalf, beyond_of
from ci.explain.torch_graph import TorchGraph
from ci.explain.torch_values import Passing, Tensors
from ci.models.factory import copied
from ci.suite.accuracy import HALF_MOST, USUAL_OF_FLOAT_DB, Pair, Unusable, least_sqnr_db

MASKS = ("aten.masked_fill", "aten.where")
"""Their numbers of any size are meant to be infinite."""


class _Largest(TorchDispatchMode):
    beyond = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.beyond = self.beyond or any(map(_beyond, torch.utils._pytree.tree_leaves(result)))
        return result


class _InHalf(Passing):
    """A float model of which what leaves fp16 is infinite."""

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        return value.half().to(value.dtype) if _beyond(value) else value


def _beyond(value: object) -> bool:
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
        return False
    return bool(((value.abs() > HALF_MOST) & value.isfinite()).any())


def beyond_half(model: Any, samples: Sequence[Tensors]) -> tuple[BeyondHalf, ...]:
    """The operators of a float model whose outputs leave fp16 first; none where the model's outputs are the
    same without what leaves it."""
    with torch.no_grad(), _Largest() as largest:
        for sample in samples:
            model(*copied(sample))
    if not largest.beyond:
        return ()
    module: Any = torch.export.export(model, copied(samples[0]), strict=True).module()
    if all(_same_in_half(module, sample) for sample in samples):
        return ()
    return beyond_of(TorchGraph(module, samples), MASKS)


def _same_in_half(module: Any, sample: Tensors) -> bool:
    """As where the least value masks a softmax."""
    both = (torch.utils._pytree.tree_leaves(run(*copied(sample))) for run in (module, _InHalf(module).run))
    pairs = [Pair("", wanted.numpy(), found.numpy()) for wanted, found in zip(*both, strict=True)]
    try:
        return least_sqnr_db(pairs) >= USUAL_OF_FLOAT_DB
    except Unusable:
        return False
