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

from ci.models.shipped.language import GroupedAttention, rotate, rotation
from ci.models.shipped.operators import LENGTH, WIDTH, Calls, around, spread
from ci.models.shipped.vision import Inputs


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


def cumprod_as_sum() -> tuple[nn.Module, Inputs]:
    """The product of positive numbers as the exponential of a sum of logarithms."""
    return around(Calls(lambda x: torch.exp(torch.cumsum(torch.log(torch.sigmoid(x) + 0.5), 1))))


def softmax_of_columns() -> tuple[nn.Module, Inputs]:
    """A softmax along another dimension than the last, as one along the last."""
    return around(Calls(lambda x: torch.softmax(x.transpose(1, -1), -1).transpose(1, -1)))


def sort_of_columns() -> tuple[nn.Module, Inputs]:
    """A sort along another dimension than the last, as one along the last."""
    return around(Calls(lambda x: torch.sort(x.transpose(1, -1), -1).values.transpose(1, -1)))


def roots() -> tuple[nn.Module, Inputs]:
    """A standard deviation and a distance, as roots."""
    return around(Calls(lambda x: torch.sqrt(x * x + 1.0) / torch.sqrt(torch.var(x, -1, keepdim=True))))


def cosine() -> tuple[nn.Module, Inputs]:
    """A cosine similarity, in parts."""

    def unit(x: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt((x * x).sum(-1, keepdim=True))

    return around(Calls(lambda x: x * (unit(x) * unit(x * x + 1.0)).sum(-1, keepdim=True)))


def total() -> tuple[nn.Module, Inputs]:
    """The mean of everything, with its dimensions."""
    return around(Calls(lambda x: x + x.mean(dim=(0, 1, 2), keepdim=True)))


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
    return around(Attention())


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
    return around(Grouped())


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
    return around(Repeated())


class Rotary(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        cos, sin = rotation(LENGTH, WIDTH)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return rotate(x, self.cos, self.sin)


def rotary() -> tuple[nn.Module, Inputs]:
    return around(Rotary())


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
    return around(Calls(lambda x: torch.where(x > 0, x, 0.1 * x)))


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
