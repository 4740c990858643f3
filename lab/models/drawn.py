"""Data that is made here for models with trained weights: text is drawn with a font, sound by a formula."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

LETTERS = list("abcdefghijklmnopqrstuvwxyz")
RATE = 16_000
VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))
"""Formants in hertz of a grown man's a, i, u, e and o."""
WIDTHS = (80, 90, 120)


def word(random: np.random.Generator, fewest: int, most: int) -> str:
    return "".join(random.choice(LETTERS, random.integers(fewest, most + 1)))


def line(text: str, width: int, height: int, *, size: int, upside_down: bool = False) -> Floats:
    """A line of text as PP-OCR takes it: 1 x 3 x height x width, in BGR, from -1 to 1."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, height), "white")
    font = ImageFont.load_default(size)
    ImageDraw.Draw(image).text((8, height // 2), text, fill="black", font=font, anchor="lm")
    return pixels(image.rotate(180) if upside_down else image)


def page(random: np.random.Generator, side: int) -> tuple[Floats, list[Box]]:
    """Words in several sizes below each other, and the boxes of their ink."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (side, side), "white")
    draw, boxes, top = ImageDraw.Draw(image), list[Box](), 20
    while top < side - 60:
        font, text = ImageFont.load_default(int(random.integers(20, 32))), word(random, 5, 11)
        left = int(random.integers(8, 60))
        box = draw.textbbox((left, top), text, font=font)
        if box[2] < side - 8:
            draw.text((left, top), text, fill="black", font=font)
            boxes.append(box)
            top = int(box[3]) + int(random.integers(14, 40))
    return pixels(image), boxes


def pixels(image: Any) -> Floats:
    blue_first = np.asarray(image, np.float32)[:, :, ::-1]
    return np.ascontiguousarray((blue_first / 127.5 - 1).transpose(2, 0, 1)[None], np.float32)


def speech(random: np.random.Generator, seconds: float, pitch: float, tract: float) -> NDArray[np.float64]:
    """Syllables of one voice: pulses through three resonances, with a hiss before each. `pitch` is in hertz;
    a `tract` above 1 is shorter, and its formants are higher."""
    parts, wanted = list[NDArray[np.float64]](), int(seconds * RATE)
    while sum(map(len, parts)) < wanted:
        parts.append(_syllable(random, int(RATE * random.uniform(0.12, 0.28)), pitch, tract))
    return np.concatenate(parts)[:wanted]


def _syllable(random: np.random.Generator, count: int, pitch: float, tract: float) -> NDArray[np.float64]:
    sway = np.sin(2 * np.pi * random.uniform(1, 3) * np.arange(count) / RATE + random.uniform(0, 6))
    phase = np.cumsum(pitch * (1 + 0.15 * sway)) / RATE
    sound = np.diff(np.floor(phase), prepend=0.0) + 0.003 * random.standard_normal(count)
    formants = VOWELS[int(random.integers(len(VOWELS)))]
    for frequency, width in ((100, 200), *((tract * f, w) for f, w in zip(formants, WIDTHS, strict=True))):
        sound = _resonated(sound, frequency, width)
    sound = np.diff(sound, prepend=0.0)
    place = np.arange(count)
    envelope = np.minimum(1, np.minimum(place, place[::-1]) / (0.03 * RATE))
    hiss = 0.02 * random.standard_normal(count) * (place < 0.05 * RATE)
    return np.asarray(0.3 * envelope * sound / abs(sound).max() + hiss)


def _resonated(sound: NDArray[np.float64], frequency: float, width: float) -> NDArray[np.float64]:
    """Two poles, with a gain of 1 at 0 Hz."""
    radius = np.exp(-np.pi * width / RATE)
    one, two = float(2 * radius * np.cos(2 * np.pi * frequency / RATE)), float(-(radius**2))
    gain, last, before = 1 - one - two, 0.0, 0.0
    found = []
    for value in sound.tolist():
        last, before = gain * value + one * last + two * before, last
        found.append(last)
    return np.array(found)


def silence(random: np.random.Generator, seconds: float) -> NDArray[np.float64]:
    """A quiet room: hiss at -46 dB."""
    return np.asarray(0.005 * random.standard_normal(int(seconds * RATE)))


def tones(random: np.random.Generator, count: int, samples: int) -> Iterator[tuple[Floats, float]]:
    """Tones with overtones and a little hiss, each with its pitch in hertz."""
    for _ in range(count):
        pitch = float(80 * 2 ** random.uniform(0, 3))
        time = np.arange(samples) / RATE
        overtones = (
            np.sin(2 * np.pi * pitch * n * time + random.uniform(0, 6)) / n**1.2 for n in range(1, 7)
        )
        sound = sum(overtones, 0.01 * random.standard_normal(samples))
        yield ((sound - sound.mean()) / sound.std()).astype(np.float32)[None], pitch
