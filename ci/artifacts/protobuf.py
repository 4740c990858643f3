"""Read protobuf that may be damaged or hostile: every access is bounded, every error is Malformed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from ci.artifacts.bounds import Malformed

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
