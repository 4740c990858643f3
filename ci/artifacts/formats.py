"""Read flatbuffers and protobuf that may be damaged or hostile: every access is bounded, every error is
Malformed.

Offsets may lead many times to the same place, so whatever is handed out is counted.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import reduce

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


# Flatbuffers


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


# Protobuf


MOST_FIELDS = 1 << 20
"""No message of a compiled model has more; a greater number means damage."""


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Message:
    """One message. Its fields are looked for on demand: kept ones could take a hundred times its bytes."""

    __slots__ = ("_data",)

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def number(self, field: int, default: int = 0) -> int:
        """The last value counts, as protobuf defines."""
        value = default
        for entry in self._values(field):
            value = entry if isinstance(entry, int) else value
        return value - (1 << 64) if value >= 1 << 63 else value

    def has(self, field: int) -> bool:
        return any(True for _ in self._values(field))

    def all_bytes(self, field: int) -> Iterator[memoryview]:
        return (value for value in self._values(field) if isinstance(value, memoryview))

    def bytes(self, field: int) -> memoryview:
        return reduce(lambda _, later: later, self.all_bytes(field), memoryview(b""))

    def text(self, field: int) -> str:
        return bytes(self.bytes(field)).decode("utf-8", "replace")

    def messages(self, field: int) -> Iterator[Message]:
        return map(Message, self.all_bytes(field))

    def message(self, field: int) -> Message:
        """The message in a field; an absent one has no fields."""
        return Message(self.bytes(field))

    def _values(self, field: int) -> Iterator[int | memoryview]:
        data, place = self._data, 0
        for _ in range(MOST_FIELDS):
            if place >= len(data):
                return
            key, place = _varint(data, place)
            number, kind = key >> 3, key & 7
            value = start = place
            if kind == VARINT:
                value, place = _varint(data, place)
            elif kind in (FIXED64, FIXED32):
                place += 8 if kind == FIXED64 else 4
            elif kind == BYTES:
                length, start = _varint(data, place)
                place = start + length
            else:
                raise Malformed(f"a field of kind {kind} at {place}")
            if place > len(data):
                raise Malformed(f"{place - start:,} bytes at {start} of {len(data):,}: it is cut short")
            if not number:
                raise Malformed(f"a field without a number at {place}")
            if number == field:
                yield value if kind == VARINT else data[start:place]
        if place < len(data):
            raise Malformed(f"a message of more than {MOST_FIELDS:,} fields")


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if place + index >= len(data):
            raise Malformed(f"a number at {place} that is cut short")
        byte = data[place + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place + index + 1
    raise Malformed(f"a number at {place} that does not end")
