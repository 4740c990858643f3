"""Build small graphs around one operator each, between layers that have weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ci.models.shipped.language import RmsNorm
from ci.models.shipped.vision import Inputs

WIDTH = 64
LENGTH = 16


class Between(nn.Module):
    """It puts a module between two linear layers."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.before, self.middle, self.after = nn.Linear(WIDTH, WIDTH), middle, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.middle(self.before(x)))


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def spread(*shape: int) -> Inputs:
    """Draw inputs evenly within bounds that calibration can learn, with a variance of 1."""
    return lambda generator: ((torch.rand(shape, generator=generator) - 0.5) * 12**0.5,)


def around(middle: nn.Module) -> tuple[nn.Module, Inputs]:
    return Between(middle).eval(), spread(1, LENGTH, WIDTH)


def gelu(approximate: str = "none") -> tuple[nn.Module, Inputs]:
    return around(nn.GELU(approximate))


def erf_gelu() -> tuple[nn.Module, Inputs]:
    """Write GELU out with `erf`, which is no operator of HTP."""
    return around(Calls(lambda x: x * 0.5 * (1.0 + torch.erf(x * 0.70710678))))


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


def depthwise() -> tuple[nn.Module, Inputs]:
    """Put a depthwise 1x1 convolution before a ReLU, which QNN computes wrongly at 16 bits."""
    model = nn.Sequential(nn.Conv2d(32, 32, 1, groups=32), nn.ReLU()).eval()
    return model, lambda generator: (torch.rand(1, 32, 8, 8, generator=generator) * 2 - 1,)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.sigmoid(self.up(x)))


def residual() -> tuple[nn.Module, Inputs]:
    return around(Residual())
