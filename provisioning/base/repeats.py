"""What of a long log repeats what came before: most of it, so that to search the rest takes a fraction."""

from __future__ import annotations

from collections import Counter
from itertools import repeat

ONES = bytes.maketrans(b"23456789", b"1" * 8)
ENOUGH = 8
"""How many lines of one shape are given, at least."""
REMEMBERED = 1 << 16
CONTEXT = 5
"""So many lines before and after a line that is given are given too, as a message may have several."""
LEFT_OUT = b"~" * 1200
"""What stands for lines that are not given, as long as they are up to this: what they part is as far apart
for a pattern as it was. Each remains a line, so that the others keep their numbers."""


class Repeats:
    """Lines have the same shape if they differ in the digits of numbers alone; but a 0 at the beginning of a
    number remains one, and numbers keep their lengths."""

    def __init__(self) -> None:
        self._often = Counter[int]()
        """Of each shape, by its hash."""

    def __len__(self) -> int:
        return len(self._often)

    def learn(self, text: bytes) -> list[int]:
        """Remembers the lines of a text; gives the numbers of those of whose shape there were not enough."""
        shapes = text.translate(ONES).replace(b"10", b"11").replace(b"10", b"11").split(b"\n")
        hashes = list(map(hash, shapes))
        often = list(map(self._often.get, hashes, repeat(0)))
        new = [number for number, times in enumerate(often) if times < ENOUGH]
        if len(self._often) > REMEMBERED:
            self._often.clear()
        self._often.update(hashes)
        return new

    def without(self, text: bytes) -> bytes:
        """A text without the lines of whose shape enough were in those before."""
        new, lines = self.learn(text), text.split(b"\n")
        if len(new) == len(lines):
            return text
        before = -1
        for number in [*new, len(lines) + CONTEXT]:
            # Between the lines that are given with this one and with the one before it.
            left = len(LEFT_OUT)
            for out in range(before + 1, number - CONTEXT):
                length = len(lines[out])
                lines[out] = LEFT_OUT[: max(1, min(left, length))]
                left -= length
            before = number + CONTEXT
        return b"\n".join(lines)
