"""Text that would steer; and small files that would cost a careless reader their size squared: lists and
places that are shared."""

from __future__ import annotations

import re
import struct
from typing import Any

import flatbuffers

from tests.support.elves import X86_64, elf_header, program_header
from tests.support.programs import numbers_of, table_of, tables_of

EVIL = "\x1b]0;title\x07\n::error::forged\n  ::stop-commands::x ##[error]old\r\nverified here: signature OK"


def steers(text: str) -> list[str]:
    """The lines that a terminal or the runner would obey."""
    lines = text.split("\n")
    commands = [line for line in lines if line.strip().startswith("::") or "##[" in line]
    return commands + [
        line for line in lines if re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]", line)
    ]


def shared_plans(count: int) -> bytes:
    """A program of as many plans as each has values, inputs, operators and instructions: one of each."""
    builder = flatbuffers.Builder(1 << 16)
    sizes = numbers_of(builder, [8] * count, builder.PrependInt32, 4)
    tensor = table_of(builder, {0: ("Int8", 6), 2: ("offset", sizes)})
    value = table_of(builder, {0: ("Uint8", 5), 1: ("offset", tensor)})
    operator = table_of(builder, {0: ("offset", builder.CreateString("a" * count))})
    kernel = table_of(builder, {0: ("Uint8", 1), 1: ("offset", table_of(builder, {}))})
    chain = table_of(builder, {2: ("offset", _same(builder, kernel, count))})
    plan = {
        0: ("offset", builder.CreateString("m" * count)),
        2: ("offset", _same(builder, value, count)),
        3: ("offset", numbers_of(builder, [0] * count, builder.PrependInt32, 4)),
        4: ("offset", numbers_of(builder, [0] * count, builder.PrependInt32, 4)),
        5: ("offset", _same(builder, chain, count)),
        6: ("offset", _same(builder, operator, count)),
    }
    builder.Finish(
        table_of(builder, {1: ("offset", _same(builder, table_of(builder, plan), count))}),
        file_identifier=b"ET12",
    )
    return bytes(builder.Output())


def shared_context(count: int, segments: int = 1) -> bytes:
    """A program whose delegates all have one context of many graphs, or overlapping ones."""
    data = b"".join(b"PICKLE/1/graph%07d\0" % number for number in range(count))
    builder = flatbuffers.Builder(1 << 16)
    name = builder.CreateString("QnnBackend")
    delegates = []
    for number in range(count):
        reference = table_of(builder, {0: ("Int8", 1), 1: ("Uint32", number % segments)})
        delegates.append(table_of(builder, {0: ("offset", name), 1: ("offset", reference)}))
    plan = table_of(
        builder, {0: ("offset", builder.CreateString("m")), 7: ("offset", tables_of(builder, delegates))}
    )
    places = [
        table_of(builder, {0: ("Uint64", number), 1: ("Uint64", len(data) - number)})
        for number in range(segments)
    ]
    fields = {1: ("offset", tables_of(builder, [plan])), 4: ("offset", tables_of(builder, places))}
    whole = table_of(builder, fields)
    builder.Pad(24)
    builder.Finish(whole, file_identifier=b"ET12")
    content = bytearray(builder.Output())
    content[8:32] = b"eh00" + struct.pack("<IQQ", 24, len(content), len(content))
    return bytes(content) + data


def overlapping_contexts(count: int) -> bytes:
    return shared_context(count, segments=count)


def empty_fields(count: int) -> bytes:
    """A compiled model in which everything is as short as it can be."""
    node = b"\x22\x09EPContext" + b"\x2a\x00" * count
    inputs = b"\x5a\x00" * count
    graph = b"\x0a" + _varint(len(node)) + node + b"\x0a\x00" * count + inputs
    return b"\x72\x00" * count + b"\x3a" + _varint(len(graph)) + graph


def empty_nodes(count: int) -> bytes:
    """A model that takes thirty times its size once it is read."""
    graph = b"\x0a\x00" * count
    return b"\x3a" + _varint(len(graph)) + graph


def nested_names(count: int) -> bytes:
    """A library that needs as many others as a name has letters: each name is the end of the one before."""
    names = b"\0" + b"n" * count + b"\0"
    at = 64 + 2 * 56
    entries = [(1, 1 + number) for number in range(count)]
    dynamic = b"".join(struct.pack("<QQ", *pair) for pair in (*entries, (5, at), (10, len(names)), (0, 0)))
    size = at + len(names) + len(dynamic)
    headers = (
        elf_header(X86_64, 0, 2, wide=True)
        + program_header(1, 0, size, 5, 0x1000, wide=True)
        + program_header(2, at + len(names), len(dynamic), 6, 8, wide=True)
    )
    return headers + names + dynamic


def _same(builder: Any, offset: int, count: int) -> int:
    return tables_of(builder, [offset] * count)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def notes(count: int) -> bytes:
    """A library of so many empty notes."""
    content = struct.pack("<III", 0, 0, 7) * count
    return (
        elf_header(X86_64, 0, 1, wide=True) + program_header(4, 120, len(content), 4, 4, wide=True) + content
    )


def circles(count: int) -> bytes:
    """Every record is a library that needs versions and also such a version: their number is its square."""
    at = 64 + 2 * 56
    records = struct.pack("<HHIII", 0, 0xFFFF, 0, 0, 16) * (2 * count) + bytes(16)
    names, needs, number = (5, at + 32 * count), (0x6FFFFFFE, at), (0x6FFFFFFF, count)
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in (names, (10, 16), needs, number, (0, 0)))
    size = at + len(records) + len(dynamic)
    headers = (
        elf_header(X86_64, 0, 2, wide=True)
        + program_header(1, 0, size, 5, 0x1000, wide=True)
        + program_header(2, at + len(records), len(dynamic), 6, 8, wide=True)
    )
    return headers + records + dynamic
