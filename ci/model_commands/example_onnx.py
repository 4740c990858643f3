"""Write the net.onnx of `example`, a network that makes a picture eight times as wide and high. It moves
enough bytes to have a forecast, and takes the emulator seconds.

The file is written as bytes of protobuf, by the field numbers of onnx.proto: the Python of `example` has no
onnx."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

Value = int | str | bytes
INTS, TEXT = 7, 3
"""The numbers of two types of attributes."""
FLOAT32 = 1


def enlarging_network() -> bytes:
    nodes = [
        _node("Conv", "first", ["x", "w0"], "c0", _ints("pads", [1, 1, 1, 1])),
        _node("Relu", "first_relu", ["c0"], "r0"),
        _node("Conv", "second", ["r0", "w1"], "c1", _ints("pads", [1, 1, 1, 1])),
        _node("Relu", "second_relu", ["c1"], "r1"),
        _node(
            "Resize",
            "enlarge",
            ["r1", "", "scales"],
            "large",
            _text("mode", "nearest"),
            _text("coordinate_transformation_mode", "asymmetric"),
            _text("nearest_mode", "floor"),
        ),
        _node("Conv", "colours", ["large", "w2"], "y"),
    ]
    tensors = [
        _weights("w0", (32, 3, 3, 3)),
        _weights("w1", (32, 32, 3, 3)),
        _weights("w2", (3, 32, 1, 1)),
        _tensor("scales", (4,), [1, 1, 8, 8]),
    ]
    ends = [(11, _value("x", (1, 3, 64, 64))), (12, _value("y", (1, 3, 512, 512)))]
    graph = _message(
        *((1, node) for node in nodes), (2, "graph"), *((5, tensor) for tensor in tensors), *ends
    )
    operators = _message((1, ""), (2, 17))
    return _message((1, 8), (7, graph), (8, operators))


def _node(kind: str, name: str, inputs: Sequence[str], output: str, *attributes: bytes) -> bytes:
    fields: list[tuple[int, Value]] = [(1, text) for text in inputs]
    return _message(*fields, (2, output), (3, name), (4, kind), *((5, attribute) for attribute in attributes))


def _ints(name: str, values: Sequence[int]) -> bytes:
    return _message((1, name), *((8, value) for value in values), (20, INTS))


def _text(name: str, value: str) -> bytes:
    return _message((1, name), (4, value), (20, TEXT))


def _weights(name: str, shape: tuple[int, ...]) -> bytes:
    """Make random weights that keep the size of what they multiply."""
    generator = random.Random(name)  # noqa: S311
    read = shape[1] * shape[2] * shape[3]
    return _tensor(name, shape, [generator.gauss(0, (2 / read) ** 0.5) for _ in range(shape[0] * read)])


def _tensor(name: str, shape: tuple[int, ...], values: Sequence[float]) -> bytes:
    sizes: list[tuple[int, Value]] = [(1, size) for size in shape]
    return _message(*sizes, (2, FLOAT32), (8, name), (9, array("f", values).tobytes()))


def _value(name: str, shape: tuple[int, ...]) -> bytes:
    sizes = _message(*((1, _message((1, size))) for size in shape))
    return _message((1, name), (2, _message((1, _message((1, FLOAT32), (2, sizes))))))


def _message(*fields: tuple[int, Value]) -> bytes:
    """Encode fields by number: a number as varint, a text or bytes with its length before it."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts += [_varint(number << 3), _varint(value)]
        else:
            content = value.encode() if isinstance(value, str) else value
            parts += [_varint(number << 3 | 2), _varint(len(content)), content]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])
