"""What reading one file may hand out. Lists that share content could otherwise multiply work and memory."""

from __future__ import annotations

import re

TIMES = 10
LEAST = 1 << 18
"""In bytes, for small files."""
OBJECT = 256
"""What an object that is kept costs, in bytes."""


class Malformed(ValueError):
    """The bytes do not follow their format."""


class Budget:
    """In bytes of memory, for one file. A reader draws on it for whatever it hands out."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = TIMES * size + LEAST

    def take(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise Malformed(f"more content than fits {self._size:,} bytes: its parts share or repeat theirs")

    def distinct(self, pattern: re.Pattern[bytes], data: bytes | memoryview) -> set[bytes]:
        """What the pattern's group, or all of it, matches."""
        found: set[bytes] = set()
        for match in pattern.finditer(data):
            text = match[pattern.groups]
            if text not in found:
                self.take(OBJECT + len(text))
                found.add(text)
        return found
