"""Read protobuf that may be damaged or hostile: every access is bounded, every error is Malformed."""

from __future__ import annotations

from collections.abc import Iterator

MOST_FIELDS = 1 << 20
"""No message of a compiled model has more; a greater number means damage."""


class Malformed(ValueError):
    """The bytes do not follow their format."""


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Message:
    """One message's fields by number. Messages inside it are read on demand."""

    def __init__(self, data: memoryview) -> None:
        self._fields: dict[int, list[int | memoryview]] = {}
        place = count = 0
        while place < len(data):
            count += 1
            if count > MOST_FIELDS:
                raise Malformed(f"a message of more than {MOST_FIELDS:,} fields")
            key, place = _varint(data, place)
            number, kind = key >> 3, key & 7
            value: int | memoryview
            if kind == VARINT:
                value, place = _varint(data, place)
            elif kind in (FIXED64, FIXED32):
                value, place = _take(data, place, 8 if kind == FIXED64 else 4)
            elif kind == BYTES:
                length, place = _varint(data, place)
                value, place = _take(data, place, length)
            else:
                raise Malformed(f"a field of kind {kind} at {place}")
            if not number:
                raise Malformed(f"a field without a number at {place}")
            self._fields.setdefault(number, []).append(value)

    def number(self, field: int, default: int = 0) -> int:
        """The last value counts, as protobuf defines."""
        values = [value for value in self._fields.get(field, ()) if isinstance(value, int)]
        value = values[-1] if values else default
        return value - (1 << 64) if value >= 1 << 63 else value

    def has(self, field: int) -> bool:
        return field in self._fields

    def all_bytes(self, field: int) -> list[memoryview]:
        return [value for value in self._fields.get(field, ()) if isinstance(value, memoryview)]

    def bytes(self, field: int) -> memoryview:
        values = self.all_bytes(field)
        return values[-1] if values else memoryview(b"")

    def text(self, field: int) -> str:
        return bytes(self.bytes(field)).decode("utf-8", "replace")

    def messages(self, field: int) -> Iterator[Message]:
        for value in self.all_bytes(field):
            yield Message(value)

    def message(self, field: int) -> Message:
        """The message in a field; an absent one has no fields."""
        return Message(self.bytes(field))


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


def _take(data: memoryview, place: int, length: int) -> tuple[memoryview, int]:
    if length > len(data) - place:
        raise Malformed(f"{length:,} bytes at {place} of {len(data):,}: it is cut short")
    return data[place : place + length], place + length
