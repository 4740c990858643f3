"""Build a keyword spotter: strided one-dimensional convolutions over a waveform."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from ci.models.shipped.vision import ON, Classifies, Inputs, settle

TONES = 8


class KeywordNet(Classifies):
    """The first kernel is wide; then come narrow ones with strides in place of the M5 net's pooling."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        widths = (channels, channels, 2 * channels, 4 * channels)
        layers: list[nn.Module] = [nn.Conv1d(1, channels, 80, 16), nn.BatchNorm1d(channels), nn.ReLU()]
        for ins, outs in itertools.pairwise(widths):
            layers += [nn.Conv1d(ins, outs, 5, 4), nn.BatchNorm1d(outs), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        for feature in self.features:
            if isinstance(feature, nn.BatchNorm1d):
                nn.init.constant_(feature.bias, ON)
        self.classifier = nn.Linear(widths[-1], classes)
        with torch.no_grad():
            # Keep the scores as far apart as training does: the softmax turns equal ones into a constant.
            self.classifier.weight.mul_(8)

    def forward(self, wave: Tensor) -> Tensor:
        return torch.log_softmax(self.classifier(self.features(wave).mean(-1)), -1)


def keywords(channels: int = 32, samples: int = 8000, classes: int = 35) -> tuple[nn.Module, Inputs]:
    def inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
        # The tones come and go: with a single one, calibration would have to meet every pitch.
        time = torch.arange(samples, dtype=torch.float32) / 8000
        pitch, swell, phase = torch.rand(3, TONES, 1, generator=generator)
        tones = torch.sin(6.2831853 * (100 + 700 * pitch) * time) * torch.sin(
            6.2831853 * (4 * swell * time + phase)
        )
        noise = torch.rand(1, 1, samples, generator=generator) - 0.5
        return (tones.mean(0).view(1, 1, samples) + 0.3 * noise,)

    return settle(KeywordNet(channels, classes), inputs), inputs
