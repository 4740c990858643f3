"""Small graphs around one operator each, between layers that have weights."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ci.models.shipped.language import RmsNorm
from ci.models.shipped.vision import Inputs

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


def around(middle: nn.Module) -> tuple[nn.Module, Inputs]:
    return Between(middle).eval(), spread(1, LENGTH, WIDTH)


def gelu(approximate: str = "none") -> tuple[nn.Module, Inputs]:
    return around(nn.GELU(approximate))


def erf_gelu() -> tuple[nn.Module, Inputs]:
    """GELU written out: `erf` is no operator of the HTP."""
    return around(Calls(lambda x: x * 0.5 * (1.0 + torch.erf(x * 0.70710678))))


def cumprod() -> tuple[nn.Module, Inputs]:
    return around(Calls(lambda x: torch.cumprod(torch.sigmoid(x) + 0.5, 1)))


def layer_norm() -> tuple[nn.Module, Inputs]:
    return around(nn.LayerNorm(WIDTH))


def rms_norm() -> tuple[nn.Module, Inputs]:
    return around(RmsNorm(WIDTH))


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
    return around(Residual())
