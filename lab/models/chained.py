"""An operator between layers that have weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


class Chained(nn.Module):
    """A layer with weights before each input of floats of an operator, and after each of its outputs."""

    def __init__(
        self, operator: nn.Module, inputs: Sequence[Tensor], *, images: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.operator, self.images, self.bias = operator, images, bias
        self.before = nn.ModuleList(self._mixes(value) for value in inputs)
        with torch.no_grad():
            outputs = self._outputs(inputs)
        self.after = nn.ModuleList(self._layer(value) for value in outputs)

    def forward(self, *inputs: Tensor) -> Any:
        outputs = self._outputs(inputs)
        results = [layer(value) for layer, value in zip(self.after, outputs, strict=True)]
        return results[0] if len(results) == 1 else tuple(results)

    def _outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        given = self.operator(*(layer(value) for layer, value in zip(self.before, inputs, strict=True)))
        return [_to_float(value) for value in tree_leaves(given)]

    def _mixes(self, value: Tensor) -> nn.Module:
        """Each of its outputs is a mean of inputs, so that they stay in the range that the operator takes."""
        if not value.is_floating_point():
            return nn.Identity()
        layer = self._layer(value)
        if isinstance(layer, nn.Identity):
            return layer
        with torch.no_grad():
            weight = layer.weight
            weight.copy_(torch.softmax(4 * torch.randn(weight.shape[:2]), 1).reshape(weight.shape))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        return layer

    def _layer(self, value: Tensor) -> nn.Identity | nn.Conv2d | nn.Linear:
        if value.dim() == 0:
            return nn.Identity()
        if self.images and value.dim() == 4:
            return nn.Conv2d(value.shape[1], value.shape[1], 1, bias=self.bias)
        layer = nn.Linear(value.shape[-1], value.shape[-1], bias=self.bias)
        if value.shape[-1] == 1 and not self.bias:
            # A positive weight is taken for a Hadamard transform (linear-of-one-number).
            with torch.no_grad():
                layer.weight.copy_(-layer.weight.abs())
        return layer


def _to_float(value: Tensor) -> Tensor:
    """Of booleans without a cast, which is wrong before a linear layer at 8 bits (comparison-as-float)."""
    if value.dtype == torch.bool:
        return torch.where(value, 1.0, 0.0)
    return value if value.is_floating_point() else value.to(torch.float32)
