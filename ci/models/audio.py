"""A keyword spotter: strided one-dimensional convolutions over a waveform."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from ci.models.vision import Inputs, settled


class KeywordNet(nn.Module):
    """A wide first kernel, then narrow ones with strides in place of the M5 net's pooling."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        widths = (channels, channels, 2 * channels, 4 * channels)
        layers: list[nn.Module] = [nn.Conv1d(1, channels, 80, 16), nn.BatchNorm1d(channels), nn.ReLU()]
        for ins, outs in itertools.pairwise(widths):
            layers += [nn.Conv1d(ins, outs, 5, 4), nn.BatchNorm1d(outs), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(widths[-1], classes)

    def forward(self, wave: Tensor) -> Tensor:
        return torch.log_softmax(self.classifier(self.features(wave).mean(-1)), -1)


def keywords(channels: int = 32, samples: int = 8000, classes: int = 35) -> tuple[nn.Module, Inputs]:
    def inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
        time = torch.arange(samples, dtype=torch.float32) / 8000
        pitch = 100 + 700 * torch.rand((), generator=generator)
        noise = 0.3 * torch.randn(1, 1, samples, generator=generator)
        return ((torch.sin(6.2831853 * pitch * time) + noise) / 2,)

    return settled(KeywordNet(channels, classes), inputs), inputs
