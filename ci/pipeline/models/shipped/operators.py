"""Small graphs around one operator each, between layers that have weights."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from ci.pipeline.models.shipped.language import GroupedAttention, RmsNorm, rotate, rotation
from ci.pipeline.models.shipped.vision import Inputs

WIDTH = 64
LENGTH = 16


class Between(nn.Module):
    """A linear layer, what is looked at, and another linear layer."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.before, self.middle, self.after = nn.Linear(WIDTH, WIDTH), middle, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.middle(self.before(x)))


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class CallsTwo(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x, y)


class CallsWithIndices(nn.Module):
    indices: Tensor

    def __init__(self, function: Callable[..., Any], indices: Sequence[int]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("indices", torch.tensor(indices))

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs, self.indices)


class ResultOf(nn.Module):
    """One of several outputs of a module: `ResultOf(torch.nn.LSTM(16, 8), 1, 0)` is the last hidden state."""

    def __init__(self, module: nn.Module, *place: int) -> None:
        super().__init__()
        self.module, self.place = module, place

    def forward(self, x: Tensor) -> Any:
        return functools.reduce(operator.getitem, self.place, self.module(x))


def alone(expression: str, is_module: bool = False, indices: Sequence[int] = ()) -> tuple[nn.Module, int]:
    """An operator alone, of manifests/upstream/values.toml, and how many inputs it has.

    Fresh norms multiply by 1 and add 0, which hides faults; their weights and biases are drawn around these.
    """
    if is_module:
        model = eval(expression, {"torch": torch, "ResultOf": ResultOf}).eval()  # noqa: S307
        for weights in model.parameters():
            if (fresh := weights.unique().tolist()) in ([0.0], [1.0]):
                nn.init.uniform_(weights, fresh[0] - 0.5, fresh[0] + 0.5)
        return model, 1
    two = re.search(r"\by\b", expression) is not None
    names = ["x", *(["y"] if two else []), *(["i"] if indices else [])]
    function = eval(f"lambda {', '.join(names)}: {expression}", {"torch": torch})  # noqa: S307
    if indices:
        return CallsWithIndices(function, indices).eval(), 1 + two
    return (CallsTwo if two else Calls)(function).eval(), 1 + two


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
        return [_as_float(value) for value in tree_leaves(given)]

    def _mixes(self, value: Tensor) -> nn.Module:
        """Each of its outputs is a mean of inputs, so that they stay in the range that the operator takes."""
        if not value.is_floating_point():
            return nn.Identity()
        layer = self._layer(value)
        with torch.no_grad():
            weight: Tensor = layer.weight
            weight.copy_(torch.softmax(4 * torch.randn(weight.shape[:2]), 1).reshape(weight.shape))
            if self.bias:
                nn.init.zeros_(layer.bias)
        return layer

    def _layer(self, value: Tensor) -> nn.Module:
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


def _as_float(value: Tensor) -> Tensor:
    """Of booleans without a cast, which is wrong before a linear layer at 8 bits (comparison-as-float)."""
    if value.dtype == torch.bool:
        return torch.where(value, 1.0, 0.0)
    return value if value.is_floating_point() else value.to(torch.float32)


def drawn(
    expression: str, shape: str, low: float, high: float, is_module: bool = False
) -> tuple[nn.Module, Inputs]:
    """With inputs of a shape such as `2x3x7`, uniform between low and high."""
    model, count = alone(expression, is_module)
    sizes = [int(size) for size in shape.split("x")]

    def inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(torch.rand(sizes, generator=generator) * (high - low) + low for _ in range(count))

    return model, inputs


def spread(*shape: int) -> Inputs:
    """Evenly within bounds that calibration can learn, with a variance of 1."""
    return lambda generator: ((torch.rand(shape, generator=generator) - 0.5) * 12**0.5,)


def _around(middle: nn.Module) -> tuple[nn.Module, Inputs]:
    return Between(middle).eval(), spread(1, LENGTH, WIDTH)


def gelu(approximate: str = "none") -> tuple[nn.Module, Inputs]:
    return _around(nn.GELU(approximate))


def erf_gelu() -> tuple[nn.Module, Inputs]:
    """GELU written out: `erf` is no operator of the HTP."""
    return _around(Calls(lambda x: x * 0.5 * (1.0 + torch.erf(x * 0.70710678))))


def cumprod() -> tuple[nn.Module, Inputs]:
    return _around(Calls(lambda x: torch.cumprod(torch.sigmoid(x) + 0.5, 1)))


def cumprod_as_sum() -> tuple[nn.Module, Inputs]:
    """The product of positive numbers as the exponential of a sum of logarithms."""
    return _around(Calls(lambda x: torch.exp(torch.cumsum(torch.log(torch.sigmoid(x) + 0.5), 1))))


def softmax_of_columns() -> tuple[nn.Module, Inputs]:
    """A softmax along another dimension than the last, as one along the last."""
    return _around(Calls(lambda x: torch.softmax(x.transpose(1, -1), -1).transpose(1, -1)))


def roots() -> tuple[nn.Module, Inputs]:
    """A standard deviation and a distance, as roots."""
    return _around(Calls(lambda x: torch.sqrt(x * x + 1.0) / torch.sqrt(torch.var(x, -1, keepdim=True))))


def cosine() -> tuple[nn.Module, Inputs]:
    """A cosine similarity, in parts."""

    def unit(x: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt((x * x).sum(-1, keepdim=True))

    return _around(Calls(lambda x: x * (unit(x) * unit(x * x + 1.0)).sum(-1, keepdim=True)))


def layer_norm() -> tuple[nn.Module, Inputs]:
    return _around(nn.LayerNorm(WIDTH))


def rms_norm() -> tuple[nn.Module, Inputs]:
    return _around(RmsNorm(WIDTH))


class GroupNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.norm, self.after = nn.Conv2d(3, 32, 3), nn.GroupNorm(8, 32), nn.Conv2d(32, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(functional.silu(self.norm(self.before(x))))


def group_norm() -> tuple[nn.Module, Inputs]:
    return GroupNormed().eval(), spread(1, 3, 24, 24)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project(x).view(1, LENGTH, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return mixed.transpose(1, 2).reshape(1, LENGTH, WIDTH)


def attention() -> tuple[nn.Module, Inputs]:
    return _around(Attention())


class Grouped(nn.Module):
    """Grouped-query attention with rotary embedding, under a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = GroupedAttention(WIDTH, 4, 2)
        cos, sin = rotation(LENGTH, WIDTH // 4)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -100.0).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        mixed, _, _ = self.attention(x, self.cos, self.sin, self.mask, None)
        return mixed


def grouped_attention() -> tuple[nn.Module, Inputs]:
    return _around(Grouped())


class Repeated(nn.Module):
    """Grouped keys repeated for each head, as many models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // 2)

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x).view(1, LENGTH, 4, WIDTH // 4).transpose(1, 2)
        k = self.key(x).view(1, LENGTH, 2, WIDTH // 4).transpose(1, 2)
        k = k.repeat_interleave(2, 1)
        mixed = torch.softmax(q @ k.transpose(2, 3), -1) @ k
        return mixed.transpose(1, 2).reshape(1, LENGTH, WIDTH)


def repeated_attention() -> tuple[nn.Module, Inputs]:
    return _around(Repeated())


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        cos, sin = rotation(LENGTH, WIDTH)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return rotate(x, self.cos, self.sin)


def rotary() -> tuple[nn.Module, Inputs]:
    return _around(Rotary())


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.after = nn.Embedding(256, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.after(self.words(tokens))


def embedding() -> tuple[nn.Module, Inputs]:
    return Embedded().eval(), lambda generator: (
        torch.randint(0, 256, (1, LENGTH), generator=generator, dtype=torch.int32),
    )


class TopK(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(WIDTH, 32)

    def forward(self, x: Tensor) -> Tensor:
        values, _ = torch.topk(self.scores(x), 4)
        return values


def topk() -> tuple[nn.Module, Inputs]:
    return TopK().eval(), spread(1, LENGTH, WIDTH)


def where() -> tuple[nn.Module, Inputs]:
    return _around(Calls(lambda x: torch.where(x > 0, x, 0.1 * x)))


class Branches(nn.Module):
    """A choice of shapes by the input's, made at export as shapes there are known."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH // 2)
        self.fold, self.widen = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH // 2, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 8:
            return self.fold(torch.relu(self.wide(x)))
        return self.widen(torch.relu(self.narrow(x)))


def shapes(length: int = LENGTH) -> tuple[nn.Module, Inputs]:
    return Branches().eval(), spread(1, length, WIDTH)


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(64, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def convolution() -> tuple[nn.Module, Inputs]:
    return Convolution().eval(), spread(1, 32, 16, 16)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.sigmoid(self.up(x)))


def residual() -> tuple[nn.Module, Inputs]:
    return _around(Residual())
