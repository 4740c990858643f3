"""Models whose trained weights lie in wheels as ONNX: their samples, and what each is for as a number.

The compared samples are the first ones, and what is right for them is drawn again from the same seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lab.models import drawn
from lab.models.drawn import Box, Floats

if TYPE_CHECKING:
    from numpy.typing import NDArray

Outputs = Sequence[Sequence[Floats]]
"""Of each inference its outputs."""

LINES, PAGES, TALKS = 48, 16, 16
"""How many samples there are; the suite says how many of them are compared."""
LONGEST = 14
SIDE = 320
INK, LEAST_SIDE, UNCLIP = 0.3, 3, 1.6
"""Of PP-OCR: from which probability on a pixel is text, and how a shrunken box grows back."""
OVERLAP = 0.5
FRAME, CONTEXT, FRAMES = 512, 64, 64
"""Of silero-vad: samples of a frame and of what it sees of the frame before; frames of one inference."""
STATE = (1, 1, 128)
RECOGNIZES = "wheel:rapidocr/rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"


def texts() -> Iterator[str]:
    random = np.random.default_rng(11)
    while True:
        yield f"{drawn.word(random, 4, 7)} {drawn.word(random, 4, 7)}"[:LONGEST]


def lines() -> Iterator[Floats]:
    return (drawn.line(text, 320, 48, size=28) for text in islice(texts(), LINES))


def characters(outputs: Outputs, floats: Outputs) -> float:
    """The share of characters that are read right: one less the edits that they need. Spaces do not count."""
    import onnx

    from ci.models.wheels import locate_file

    model = onnx.load(str(locate_file(RECOGNIZES, Path())))
    names = {row.key: row.value for row in model.metadata_props}["character"].splitlines()
    alphabet = ["", *names, " "]
    wrong = total = 0
    for (scores,), text in zip(outputs, texts(), strict=False):
        wanted = text.replace(" ", "")
        wrong += min(len(wanted), edits(read(scores[0], alphabet).replace(" ", ""), wanted))
        total += len(wanted)
    return 1 - wrong / total


def read(scores: Floats, alphabet: Sequence[str]) -> str:
    """The best symbol of each column, equal neighbours taken as one."""
    best = scores.argmax(-1)
    kept = best[np.diff(best, prepend=-1) != 0]
    return "".join(alphabet[index] for index in kept)


def edits(found: str, wanted: str) -> int:
    row = list(range(len(wanted) + 1))
    for number, symbol in enumerate(found, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(wanted, 1):
            before, row[place] = (
                row[place],
                min(row[place] + 1, row[place - 1] + 1, before + (symbol != other)),
            )
    return row[-1]


def signs() -> Iterator[Floats]:
    """Words, each upright and then upside down."""
    random = np.random.default_rng(12)
    for _ in range(LINES // 2):
        text = drawn.word(random, 6, 9).capitalize()
        yield from (drawn.line(text, 192, 48, size=26, upside_down=turned) for turned in (False, True))


def directions(outputs: Outputs, floats: Outputs) -> float:
    """The share of words of which it is right whether they are upside down."""
    right = [int(scores.argmax()) == number % 2 for number, (scores,) in enumerate(outputs)]
    return sum(right) / len(right)


def pages() -> Iterator[Floats]:
    return (page for page, _ in _pages())


def _pages() -> Iterator[tuple[Floats, list[Box]]]:
    random = np.random.default_rng(13)
    return (drawn.page(random, SIDE) for _ in range(PAGES))


def boxes(outputs: Outputs, floats: Outputs) -> float:
    """F1 of boxes that overlap a word's box by half of both together."""
    hits = found = wanted = 0
    for (scores,), (_, words) in zip(outputs, _pages(), strict=False):
        mine = list(ink_boxes(scores[0, 0] > INK))
        hits += sum(any(common_part(box, other) >= OVERLAP for other in mine) for box in words)
        found, wanted = found + len(mine), wanted + len(words)
    return 2 * hits / (found + wanted)


def ink_boxes(ink: NDArray[np.bool_]) -> Iterator[Box]:
    """The boxes of what hangs together, grown as PP-OCR's own reader grows them."""
    left = {(int(y), int(x)) for y, x in zip(*np.nonzero(ink), strict=True)}
    while left:
        waiting, part = deque([left.pop()]), list[tuple[int, int]]()
        while waiting:
            y, x = waiting.popleft()
            part.append((y, x))
            near = {(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)} & left
            left -= near
            waiting += near
        rows, columns = zip(*part, strict=True)
        width, height = max(columns) - min(columns) + 1, max(rows) - min(rows) + 1
        if min(width, height) >= LEAST_SIDE:
            grown = UNCLIP * width * height / (2 * (width + height))
            yield (min(columns) - grown, min(rows) - grown, max(columns) + 1 + grown, max(rows) + 1 + grown)


def common_part(one: Box, other: Box) -> float:
    """What both have in common, as a part of what they cover together."""
    sides = (min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1]))
    common = max(0.0, sides[0]) * max(0.0, sides[1])
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return common / (sum(areas) - common)


def talks() -> Iterator[dict[str, Floats]]:
    """Two seconds each, which begin in a quiet room: in them somebody speaks, and stops."""
    for sound, _ in spoken_sounds():
        padded = np.concatenate([np.zeros(CONTEXT), sound]).astype(np.float32)
        frames = np.stack([padded[FRAME * n : FRAME * (n + 1) + CONTEXT] for n in range(FRAMES)])
        yield {"input": frames, "h": np.zeros(STATE, np.float32), "c": np.zeros(STATE, np.float32)}


def spoken_sounds() -> Iterator[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Each with the frames in which somebody speaks for at least the half."""
    random = np.random.default_rng(14)
    for _ in range(TALKS):
        before, speaks = random.uniform(0.4, 0.7), random.uniform(0.6, 0.9)
        voice = drawn.speech(random, speaks, random.uniform(95, 220), random.uniform(0.95, 1.2))
        after = drawn.silence(random, FRAME * FRAMES / drawn.RATE - before - speaks + 0.01)
        sound = np.concatenate([drawn.silence(random, before), voice, after])[: FRAME * FRAMES]
        spoken = np.zeros(FRAME * FRAMES, bool)
        spoken[int(before * drawn.RATE) : int((before + speaks) * drawn.RATE)] = True
        yield sound + 0.002 * random.standard_normal(len(sound)), spoken.reshape(FRAMES, -1).mean(1) >= 0.5


def frames(outputs: Outputs, floats: Outputs) -> float:
    """The share of frames of which it is right whether somebody speaks in them."""
    right = [
        ((scores > 0.5).ravel() == spoken).mean()
        for (scores, *_), (_, spoken) in zip(outputs, spoken_sounds(), strict=False)
    ]
    return float(np.mean(right))
