"""Read flatbuffers that may be damaged or hostile: every access is bounded, every error is Malformed."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ci.artifacts.protobuf import Malformed

LARGEST_VECTOR = 1 << 20
"""No list of a program is longer; a greater length means damage."""


class Reader:
    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)

    def unpack(self, code: str, position: int) -> int | float | bool:
        size = struct.calcsize(f"<{code}")
        if position < 0 or position + size > len(self.data):
            raise Malformed(f"offset {position} is outside its {len(self.data)} bytes")
        value: int | float | bool = struct.unpack_from(f"<{code}", self.data, position)[0]
        return value

    def number(self, code: str, position: int) -> int:
        return int(self.unpack(code, position))

    def root(self) -> Table:
        return Table(self, self.number("I", 0))


class Table:
    """A table. Fields are named by their number in the schema; an absent field has its default."""

    def __init__(self, reader: Reader, position: int) -> None:
        self.reader, self.position = reader, position
        self._vtable = position - reader.number("i", position)
        self._size = reader.number("H", self._vtable)
        if self._size < 4 or self._size % 2 or self._vtable + self._size > len(reader.data):
            raise Malformed(f"the table at {position} has a bad list of fields")

    def place(self, field: int) -> int | None:
        slot = 4 + 2 * field
        if slot + 2 > self._size:
            return None
        offset = self.reader.number("H", self._vtable + slot)
        return self.position + offset if offset else None

    def number(self, field: int, code: str, default: int = 0) -> int:
        place = self.place(field)
        return default if place is None else self.reader.number(code, place)

    def table(self, field: int) -> Table | None:
        place = self.place(field)
        return None if place is None else Table(self.reader, self._target(place))

    def text(self, field: int) -> str:
        return bytes(self.bytes(field)).decode("utf-8", "replace")

    def bytes(self, field: int) -> memoryview:
        start, count = self._vector(field, 1, len(self.reader.data))
        return self.reader.data[start : start + count]

    def numbers(self, field: int, code: str) -> list[int]:
        size = struct.calcsize(f"<{code}")
        start, count = self._vector(field, size)
        return [self.reader.number(code, start + index * size) for index in range(count)]

    def tables(self, field: int) -> Iterator[Table]:
        start, count = self._vector(field, 4)
        for index in range(count):
            yield Table(self.reader, self._target(start + 4 * index))

    def _vector(self, field: int, size: int, largest: int = LARGEST_VECTOR) -> tuple[int, int]:
        """Where the elements begin and how many there are; (0, 0) for an absent field."""
        place = self.place(field)
        if place is None:
            return 0, 0
        start = self._target(place)
        count = self.reader.number("I", start)
        if count > largest or start + 4 + count * size > len(self.reader.data):
            raise Malformed(f"the list at {start} says it has {count} elements")
        return start + 4, count

    def _target(self, place: int) -> int:
        target = place + self.reader.number("I", place)
        if target >= len(self.reader.data):
            raise Malformed(f"the offset at {place} points outside")
        return target
