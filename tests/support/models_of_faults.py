"""Models that each meet one known fault (manifests/known_faults.toml), among layers that are right: what
`divergence` must cut out of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

Work = Callable[[Tensor], Tensor]
ROWS, SQUARE, IMAGES = (1, 12, 16), (1, 16, 16), (1, 8, 10, 10)


class Among(nn.Module):
    """A layer, then what is at fault, then a layer; without the one that would hide it."""

    def __init__(self, fault: Work, shape: tuple[int, ...], without: str = "") -> None:
        super().__init__()
        size, self.images = shape[1 if len(shape) > 3 else -1], len(shape) > 3
        self.first = nn.Conv2d(size, size, 3, padding=1) if self.images else nn.Linear(size, size)
        self.fault, self.without = fault, without
        outs = fault(torch.zeros(shape)).shape[1 if self.images else -1]
        self.last = nn.Conv2d(outs, 4, 1) if self.images else nn.Linear(outs, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fault(x if self.without == "first" else torch.tanh(2 * self.first(x)))
        return x if self.without == "last" else self.last(x)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))


def by_channel() -> nn.Module:
    prelu = nn.PReLU(16)
    nn.init.uniform_(prelu.weight, 0.05, 0.95)
    return prelu


def normed(bias: float) -> nn.Module:
    norm = nn.BatchNorm2d(8)
    nn.init.uniform_(norm.weight, 0.8, 1.2)
    nn.init.constant_(norm.bias, 0.1)
    norm.bias.data[0] = bias
    return norm


def of_two_groups() -> nn.Module:
    layer = nn.ConvTranspose2d(8, 8, 3, groups=2)
    layer.weight.data[:, 1::2] *= 50
    return layer


class ModelOfFault(NamedTuple):
    precision: str
    make: Callable[[], Work]
    shape: tuple[int, ...] = ROWS
    without: str = ""


INDEX = torch.tensor([[[0, 3]] * 12])
FAULTS: Mapping[str, ModelOfFault] = {
    "avg-pool-by-four": ModelOfFault("8a8w", lambda: nn.AvgPool2d(4), IMAGES),
    "avg-pool-over-the-edge": ModelOfFault("fp16", lambda: nn.AvgPool2d(3, 2, ceil_mode=True), IMAGES),
    "batch-norm-16a8w": ModelOfFault("16a8w", lambda: normed(-0.5), IMAGES),
    "batch-norm-largest-bias": ModelOfFault("8a8w", lambda: normed(0.9), IMAGES),
    "bias-used-twice": ModelOfFault("8a8w", Twice),
    "ceil-16-bit": ModelOfFault("16a8w", lambda: lambda x: torch.ceil(0.1 * x)),
    "comparison-as-float": ModelOfFault("8a8w", lambda: lambda x: (x > 0).float()),
    "cumsum-8-bit": ModelOfFault("8a8w", lambda: lambda x: torch.cumsum(x, 1)),
    "exp-below-minus-88": ModelOfFault("fp16", lambda: lambda x: torch.exp(60 * x - 58)),
    "grouped-transposed-convolution": ModelOfFault("8a8w", of_two_groups, IMAGES),
    "instance-norm-epsilon": ModelOfFault("fp16", lambda: nn.InstanceNorm2d(8, affine=True, eps=0.5), IMAGES),
    "max-pool-padded-fp16": ModelOfFault("fp16", lambda: nn.MaxPool2d(2, 2, padding=1), IMAGES),
    "nearest-to-no-multiple": ModelOfFault(
        "fp16", lambda: lambda x: functional.interpolate(x, size=(13, 13)), IMAGES
    ),
    "negative-pad": ModelOfFault("16a8w", lambda: lambda x: functional.pad(x, (0, 0, -1, 1))),
    "pad-at-the-ends": ModelOfFault(
        "fp16", lambda: lambda x: functional.pad(x, [0, 1, 0, 1]), IMAGES, without="last"
    ),
    "power-of-a-number": ModelOfFault("8a8w", lambda: lambda x: 2.0**x),
    "prelu-by-channel": ModelOfFault("fp16", by_channel, SQUARE),
    "scatter-of-a-number": ModelOfFault(
        "8a8w", lambda: lambda x: torch.scatter(x, 2, INDEX, 0.5), without="first"
    ),
    "small-values-16-bit": ModelOfFault("16a8w", lambda: lambda x: functional.elu(0.005 * x), without="last"),
    "softplus-above-eleven": ModelOfFault("fp16", lambda: lambda x: functional.softplus(15 * x)),
    "square-of-minus-zero": ModelOfFault("fp16", lambda: lambda x: (-torch.relu(x)) ** 2),
}
"""By the fault's id: at which precision, and what it does."""


def made(name: str) -> tuple[nn.Module, tuple[Tensor]]:
    fault = FAULTS[name]
    torch.manual_seed(0)
    net = Among(fault.make(), fault.shape, fault.without)
    return net.eval(), (torch.randn(fault.shape),)
