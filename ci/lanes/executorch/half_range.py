"""Find the operators of a float model whose values fp16 cannot hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ci.explain.losses import BeyondHalf, beyond_of
from ci.explain.torch_graph import TorchGraph
from ci.explain.torch_values import Passing, Tensors
from ci.lanes.executorch.export import ChipModel
from ci.models.inference import copy_sample
from ci.suite.accuracy import HALF_MOST, Pair, Unusable, least_sqnr_db
from ci.suite.limits import USUAL_OF_FLOAT_DB

MASKS = ("aten.masked_fill", "aten.where")
"""These operators may use numbers of any size, which are meant to be infinite."""


class _InHalf(Passing):
    """Runs a float model in which every value outside fp16's range becomes infinite."""

    def run_node(self, n: Node) -> object:
        value: object = super().run_node(n)
        if isinstance(value, Tensor) and _leaves_range(value):
            return value.half().to(value.dtype)
        return value


def _leaves_range(value: Tensor) -> bool:
    if not value.is_floating_point() or not value.numel():
        return False
    too_large = (value.abs() > HALF_MOST) & value.isfinite()
    return bool(too_large.any())


def beyond_half_of(chip_model: ChipModel) -> tuple[BeyondHalf, ...]:
    """Return the operators that leave the range if the run computes in fp16; nothing for other runs."""
    if not chip_model.run.precision.startswith("fp16"):
        return ()
    module = chip_model.exported.program(chip_model.sample).module()
    return beyond_half(module, chip_model.compared)


def beyond_half(module: GraphModule, samples: Sequence[Tensors]) -> tuple[BeyondHalf, ...]:
    """Return the operators of an exported float model whose outputs leave the range of fp16 first; nothing if
    the model's outputs stay the same when such values become infinite."""
    if all(_same_in_half(module, sample) for sample in samples):
        return ()
    return beyond_of(TorchGraph(module, samples), MASKS)


def _same_in_half(module: GraphModule, sample: Tensors) -> bool:
    """Whether the outputs stay the same when values outside fp16's range become infinite, as with a softmax's
    mask."""
    exact = torch.utils._pytree.tree_leaves(module(*copy_sample(sample)))
    in_half = torch.utils._pytree.tree_leaves(_InHalf(module).run(*copy_sample(sample)))
    pairs = [Pair("", one.numpy(), other.numpy()) for one, other in zip(exact, in_half, strict=True)]
    try:
        return least_sqnr_db(pairs) >= USUAL_OF_FLOAT_DB
    except Unusable:
        return False
