"""Factories for suites in tests, copied beside them: good ones, and one for every way to be bad."""

from __future__ import annotations

import importlib
import os
import signal
from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, width), nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class Decides(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(x) if x.sum() > 0 else self.first(x)


class WithErf(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.erf(self.first(x)))


def _inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.rand(1, 8, 16, generator=generator) * 2 - 1,)


def net(width: int = 32) -> Any:
    return Net(width).eval(), _inputs


def turn_largest(weight: Tensor) -> None:
    """Give the largest weight the other sign."""
    with torch.no_grad():
        weight.view(-1)[weight.abs().argmax()].neg_()


def with_erf() -> Any:
    return WithErf(32).eval(), _inputs


def decides() -> Any:
    return Decides(16).eval(), _inputs


def fixed() -> Any:
    """One sample, a model in training mode, and an import when it is called."""
    width: int = importlib.import_module("lowering_extra").WIDTH
    return Net(width), (torch.linspace(-1, 1, 128).reshape(1, 8, 16),)


def change_a_weight(graph: torch.fx.GraphModule) -> None:
    """As an annotation: one weight of what is lowered is another than the eager model's."""
    name, weight = next(
        (n, parameter) for n, parameter in graph.named_parameters() if n.endswith("second.weight")
    )
    changed = nn.Parameter(weight.detach().clone(), requires_grad=False)
    turn_largest(changed)
    owner, _, last = name.rpartition(".")
    setattr(graph.get_submodule(owner), last, changed)


def raises() -> Any:
    raise RuntimeError("no such checkpoint")


def too_large() -> Any:
    return torch.zeros(1 << 42), _inputs


def killed() -> Any:
    """What the kernel does to whoever takes the last memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def noise() -> Any:
    """Weights and inputs drawn alike, so that like seeds would show."""
    drawn = torch.randn(256)
    model = nn.Linear(16, 16)
    model.weight = nn.Parameter(drawn.view(16, 16))
    return model.eval(), lambda generator: (torch.randn(256, generator=generator),)


def alone(width: int = 32) -> Any:
    """The suite names its inputs."""
    return Net(width).eval()


class Recurrent(nn.Module):
    """At 8a8w, the zero start state becomes a partition of its own, which QNN cannot compile."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[0]


class Calls(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(x)
        return result


def spectrum() -> Any:
    return Calls(lambda x: torch.fft.rfft(x).abs()).eval(), (torch.randn(2, 16),)


def largest() -> Any:
    return Calls(lambda x: torch.max(x * 2, 1)).eval(), (torch.randn(2, 16),)


def indices() -> Any:
    return Calls(lambda x: tuple(torch.topk(x * 2, 3))).eval(), (torch.randn(2, 16),)


def integers() -> Any:
    return Calls(lambda x: x % 3).eval(), (torch.randint(0, 100, (2, 16)),)


def no_number() -> Any:
    return Calls(lambda x: torch.log(x - 2)).eval(), (torch.rand(2, 16),)


def places() -> Any:
    return Calls(lambda x: torch.nonzero(x > 0).float() * 2).eval(), (torch.randn(2, 16),)


def changes_input() -> Any:
    return Calls(lambda x: nn.functional.relu(x, inplace=True) + 1).eval(), (torch.randn(2, 16),)


class Steep(nn.Module):
    """Choices among more values than 8 bits tell apart."""

    rising: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rising", torch.linspace(0.9, 1, 1024))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.rising).argmax(-1).to(torch.int32)


def steep() -> Any:
    return Steep().eval(), _ones


def _ones(generator: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.rand(1, 8, 1, generator=generator) + 1,)


def lost() -> Any:
    """Little is left of what 8 bits hold beside a thousand."""
    return Calls(lambda x: (x + 1000) * 2 - 2000).eval(), _inputs


def still() -> Any:
    """What depends on the input is less than a step of 8 bits."""
    return Calls(lambda x: x * 0.001 + 1).eval(), _inputs


def recurrent() -> Any:
    return Recurrent().eval(), (torch.randn(1, 3, 8),)


class Volume(nn.Module):
    """At 16a4w QNN has no three-dimensional convolution, and its log names the relu."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(4, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)) * 2


def volume() -> Any:
    return Volume().eval(), (torch.randn(1, 4, 6, 6, 6),)


class Logarithm(nn.Module):
    """At 16a8w, the emulator's logarithm of [0.5, 2.5] is not the quantized model's; nothing says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(self.first(x)) * 2 + 0.5
        return self.last(torch.tanh(torch.log(y)))


def normed() -> Any:
    """No norm is behind a convolution, which would absorb it, and HTP has none with weights of 4 bits."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)) for _ in range(6))
    return nn.Sequential(*blocks).eval(), (torch.randn(1, 8, 8, 8),)


def in_place() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Hardswish(inplace=True), nn.Linear(16, 4)).eval(), _inputs


def logarithm() -> Any:
    torch.manual_seed(0)
    return Logarithm().eval(), _inputs
