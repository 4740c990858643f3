"""Read flatbuffers that may be damaged or hostile: every access is bounded, every error is Malformed.

Offsets may lead many times to the same place, so whatever is handed out is counted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ci.artifacts.bounds import Budget, Malformed

LARGEST_VECTOR = 1 << 20
"""No list of a program is longer; a greater length means damage."""

_TABLE, _NUMBER, _TEXT, _LETTER = 32, 32, 64, 4
"""What each costs, in bytes of memory."""


class Reader:
    def __init__(self, data: bytes | memoryview, budget: Budget) -> None:
        self.data = memoryview(data)
        self.budget = budget

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

    __slots__ = ("_size", "_vtable", "position", "reader")

    def __init__(self, reader: Reader, position: int) -> None:
        reader.budget.take(_TABLE)
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
        return None if place is None else Table(self.reader, self.target(place))

    def text(self, field: int) -> str:
        start, count = self._vector(field, 1, len(self.reader.data))
        self.reader.budget.take(_TEXT + _LETTER * count)
        return bytes(self.reader.data[start : start + count]).decode("utf-8", "replace")

    def bytes(self, field: int) -> memoryview:
        start, count = self._vector(field, 1, len(self.reader.data))
        self.reader.budget.take(_TEXT + count)
        return self.reader.data[start : start + count]

    def numbers(self, field: int, code: str) -> list[int]:
        size = struct.calcsize(f"<{code}")
        start, count = self._vector(field, size)
        self.reader.budget.take(_NUMBER * count)
        return [self.reader.number(code, start + index * size) for index in range(count)]

    def tables(self, field: int) -> Tables:
        return Tables(self, *self._vector(field, 4))

    def _vector(self, field: int, size: int, largest: int = LARGEST_VECTOR) -> tuple[int, int]:
        """Where the elements begin and how many there are; (0, 0) for an absent field."""
        place = self.place(field)
        if place is None:
            return 0, 0
        start = self.target(place)
        count = self.reader.number("I", start)
        if count > largest or start + 4 + count * size > len(self.reader.data):
            raise Malformed(f"the list at {start} says it has {count} elements")
        return start + 4, count

    def target(self, place: int) -> int:
        target = place + self.reader.number("I", place)
        if target >= len(self.reader.data):
            raise Malformed(f"the offset at {place} points outside")
        return target


class Tables:
    """A list of tables, each read when it is asked for."""

    def __init__(self, owner: Table, start: int, count: int) -> None:
        self._owner, self._start, self._count = owner, start, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Table]:
        return (self[index] for index in range(self._count))

    def __getitem__(self, index: int) -> Table:
        return Table(self._owner.reader, self._owner.target(self._start + 4 * index))
