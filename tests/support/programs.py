"""ExecuTorch programs made by the flatbuffers library: real layout, made-up content."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import flatbuffers

BUILD_ID = "v2.49.40.260810104044"

Field = tuple[str, Any]
"""A prepend function's name without `Prepend…Slot` and the value, or ("offset", offset)."""


def context(soc: str = "SM8650", arch: int = 75, vtcm: int = 8 << 20, build_id: str = BUILD_ID) -> bytes:
    strings = f"{build_id}\0min_arch={arch};soc_type={soc};arch={arch};num=1;vtcm_size={vtcm};02reserved=0;"
    return b"\xcd\xab\x78\x56" + bytes(12) + strings.encode() + bytes(64)


def options(
    soc_id: int = 57,
    arch: int = 75,
    vtcm_mb: int = 8,
    online: bool = False,
    backend_type: int = 2,
    precision: int = 0,
) -> bytes:
    """What the QNN backend keeps in its compile spec."""
    builder = flatbuffers.Builder(256)
    htp = table_of(builder, {2: ("Int32", precision)})
    backend = table_of(builder, {0: ("Int32", backend_type), 1: ("offset", htp)})
    info = table_of(builder, {0: ("Int32", arch), 1: ("Uint32", vtcm_mb)})
    soc = table_of(builder, {0: ("Int32", soc_id), 1: ("offset", info)})
    builder.Finish(table_of(builder, {0: ("offset", soc), 1: ("offset", backend), 4: ("Bool", online)}))
    return bytes(builder.Output())


def program(
    *,
    data: bytes | None = None,
    spec: bytes | None = None,
    alignment: int = 4096,
    inline: bool = False,
    backend: str = "QnnBackend",
    operator: int = 0,
    kind: int = 5,
) -> bytes:
    """One method from an image to ten numbers, with one delegate and one CPU operator, in a file with a
    header and a segment."""
    data = context() if data is None else data
    root = _root(data, options() if spec is None else spec, inline, backend, operator, kind)
    base = -(-len(root) // alignment) * alignment
    header = b"eh00" + struct.pack("<IQQ", 24, len(root), base)
    content = bytearray(root)
    # The header lies between the root offset with the identifier and the tables: room was left for it.
    content[8 : 8 + len(header)] = header
    return bytes(content) + bytes(base - len(root)) + (b"" if inline else data)


def _root(data: bytes, spec: bytes, inline: bool, backend: str, operator_called: int, kind: int) -> bytes:
    builder = flatbuffers.Builder(4096)
    key, value = builder.CreateString("qnn_compile_spec"), builder.CreateByteVector(spec)
    compile_spec = table_of(builder, {0: ("offset", key), 1: ("offset", value)})
    reference = table_of(builder, {0: ("Int8", 0 if inline else 1), 1: ("Uint32", 0)})
    name, specs = builder.CreateString(backend), tables_of(builder, [compile_spec])
    delegate = table_of(builder, {0: ("offset", name), 1: ("offset", reference), 2: ("offset", specs)})
    tensors = []
    for shape in ([1, 3, 8, 8], [1, 10]):
        sizes = numbers_of(builder, shape, builder.PrependInt32, 4)
        tensor = table_of(builder, {0: ("Int8", 6), 2: ("offset", sizes)})
        tensors.append(table_of(builder, {0: ("Uint8", kind), 1: ("offset", tensor)}))
    values = tables_of(builder, tensors)
    call = table_of(builder, {0: ("Int32", operator_called)})
    kernel = table_of(builder, {0: ("Uint8", 1), 1: ("offset", call)})
    delegated = table_of(builder, {0: ("Uint8", 2), 1: ("offset", table_of(builder, {0: ("Int32", 0)}))})
    chain = table_of(builder, {2: ("offset", tables_of(builder, [kernel, delegated]))})
    operator_name, overload = builder.CreateString("aten::erf"), builder.CreateString("out")
    operator = table_of(builder, {0: ("offset", operator_name), 1: ("offset", overload)})
    plan = {
        0: ("offset", builder.CreateString("forward")),
        2: ("offset", values),
        3: ("offset", numbers_of(builder, [0], builder.PrependInt32, 4)),
        4: ("offset", numbers_of(builder, [1], builder.PrependInt32, 4)),
        5: ("offset", tables_of(builder, [chain])),
        6: ("offset", tables_of(builder, [operator])),
        7: ("offset", tables_of(builder, [delegate])),
        8: ("offset", numbers_of(builder, [0, 1024], builder.PrependInt64, 8)),
    }
    plans = tables_of(builder, [table_of(builder, plan)])
    fields: dict[int, Field] = {1: ("offset", plans)}
    if inline:
        held = table_of(builder, {0: ("offset", builder.CreateByteVector(data))})
        fields[2] = ("offset", tables_of(builder, [held]))
    else:
        segment = table_of(builder, {0: ("Uint64", 0), 1: ("Uint64", len(data))})
        fields[4] = ("offset", tables_of(builder, [segment]))
    whole = table_of(builder, fields)
    builder.Pad(24)
    builder.Finish(whole, file_identifier=b"ET12")
    return bytes(builder.Output())


def table_of(builder: Any, fields: dict[int, Field]) -> int:
    builder.StartObject(max(fields, default=-1) + 1)
    for slot, (kind, value) in fields.items():
        if kind == "offset":
            builder.PrependUOffsetTRelativeSlot(slot, value, 0)
        else:
            getattr(builder, f"Prepend{kind}Slot")(slot, value, None)
    return int(builder.EndObject())


def tables_of(builder: Any, offsets: Sequence[int]) -> int:
    return numbers_of(builder, offsets, builder.PrependUOffsetTRelative, 4)


def numbers_of(builder: Any, numbers: Sequence[int], prepend: Callable[[int], None], size: int) -> int:
    builder.StartVector(size, len(numbers), size)
    for number in reversed(numbers):
        prepend(number)
    return int(builder.EndVector())
