"""What is read of flatbuffers and of ONNX' protobuf, by the libraries of both."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


class Malformed(ValueError):
    """The bytes do not follow their format."""


@contextmanager
def readable() -> Iterator[None]:
    """Raise Malformed in place of what the libraries raise on numbers that contradict the file or each
    other."""
    try:
        yield
    except Malformed:
        raise
    except (struct.error, TypeError, ValueError) as error:
        raise Malformed(f"numbers that lead outside of it ({error})") from error


class Table:
    """A table of a flatbuffer. Fields are named by their number in the schema; an absent field has its
    default."""

    def __init__(self, data: memoryview, position: int) -> None:
        # Late, as --help has no package.
        import flatbuffers.table

        self._data, self._table = data, flatbuffers.table.Table(data, position)

    @classmethod
    def root(cls, data: memoryview) -> Table:
        return cls(data, *struct.unpack_from("<I", data))

    def number(self, field: int, code: str) -> int:
        place = self._place(field)
        return int(struct.unpack_from(f"<{code}", self._data, self._table.Pos + place)[0]) if place else 0

    def numbers(self, field: int, code: str) -> tuple[int, ...]:
        start, count = self._vector(field)
        return struct.unpack_from(f"<{count}{code}", self._data, start)

    def table(self, field: int) -> Table | None:
        place = self._place(field)
        return Table(self._data, self._table.Indirect(self._table.Pos + place)) if place else None

    def tables(self, field: int) -> list[Table]:
        start, _ = self._vector(field)
        offsets = enumerate(self.numbers(field, "I"))
        return [Table(self._data, start + 4 * index + offset) for index, offset in offsets]

    def bytes(self, field: int) -> memoryview:
        start, count = self._vector(field)
        if start + count > len(self._data):
            raise Malformed(f"{count:,} bytes at {start} of {len(self._data):,}: it is cut short")
        return self._data[start : start + count]

    def text(self, field: int) -> str:
        return bytes(self.bytes(field)).decode("utf-8", "replace")

    def _place(self, field: int) -> int:
        """The field's place, counted from the table's own position; 0 for an absent field."""
        return int(self._table.Offset(4 + 2 * field))

    def _vector(self, field: int) -> tuple[int, int]:
        """Return where the elements begin and how many there are; (0, 0) for an absent field."""
        place = self._place(field)
        return (self._table.Vector(place), self._table.VectorLen(place)) if place else (0, 0)


# The fields of onnx.proto that are read of a compiled model


ONNX = {
    "Model": {"graph": (7, "Graph"), "metadata_props": (14, "Entry")},
    "Entry": {"key": (1, "string"), "value": (2, "string")},
    "Graph": {
        "node": (1, "Node"),
        "initializer": (5, "Constant"),
        "input": (11, "Value"),
        "output": (12, "Value"),
    },
    "Node": {"name": (3, "string"), "op_type": (4, "string"), "attribute": (5, "Attribute")},
    "Attribute": {"name": (1, "string"), "i": (3, "int64"), "s": (4, "bytes")},
    "Constant": {"name": (8, "string")},
    "Value": {"name": (1, "string"), "type": (2, "Type")},
    "Type": {"tensor_type": (1, "Tensor")},
    "Tensor": {"elem_type": (1, "int32"), "shape": (2, "Shape")},
    "Shape": {"dim": (1, "Size")},
    "Size": {"dim_value": (1, "int64")},
}
"""The number and the type of each field that is read, by message and field."""
LISTS = {"metadata_props", "node", "initializer", "input", "output", "attribute", "dim"}


def onnx_model(data: bytes) -> Any:
    """Parse a model. Raises Malformed for bytes that are no protobuf."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return _model_class().FromString(data)
    except DecodeError as error:
        raise Malformed(str(error)) from error


@cache
def _model_class() -> Any:
    from google.protobuf import (  # type: ignore[import-untyped]
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    file = descriptor_pb2.FileDescriptorProto(name="onnx.proto")
    for message, fields in ONNX.items():
        form = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            row = form.field.add(name=field, number=number)
            row.label = row.LABEL_REPEATED if field in LISTS else row.LABEL_OPTIONAL
            if kind in ONNX:
                row.type_name = kind
            else:
                row.type = getattr(row, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Model"))
