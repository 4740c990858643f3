"""Read Android's XML: the binary form of an APK, and the text of an AAR.

Only elements and their attributes: what a manifest says. The file may be hostile, so every number is checked
against the file before it is followed. Attributes are known by their resource's number, as Android knows
them, since names may be left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from xml.etree import ElementTree

from ci.artifacts.bounds import Malformed

Value: TypeAlias = "str | int | bool"

_CHUNK = struct.Struct("<HHI")
_XML, _STRINGS, _NUMBERS, _START, _END = 0x0003, 0x0001, 0x0180, 0x0102, 0x0103
_STRING_POOL = struct.Struct("<5I")
_ELEMENT = struct.Struct("<II6H")
_ATTRIBUTE = struct.Struct("<3IHBBI")
_UTF8 = 1 << 8
_NONE = 0xFFFFFFFF
_TEXT, _BOOLEAN = 0x03, 0x12
_LARGEST = 16 << 20
"""Bytes. Manifests of large apps have a few hundred thousand."""

ANDROID = "{http://schemas.android.com/apk/res/android}"
_BY_NUMBER = {
    0x01010003: "name",
    0x0101020C: "minSdkVersion",
    0x01010270: "targetSdkVersion",
    0x0101028E: "required",
    0x010104EA: "extractNativeLibs",
}


@dataclass(frozen=True, slots=True)
class Element:
    path: str
    """`manifest/application/uses-native-library`"""
    attributes: Mapping[str, Value]


def elements(data: bytes) -> Iterator[Element]:
    """In the file's order. Raises Malformed."""
    if len(data) > _LARGEST:
        raise Malformed(f"{len(data):,} bytes of XML")
    if data.lstrip()[:1] == b"<":
        yield from _of_text(data)
    elif data[:2] == _XML.to_bytes(2, "little"):
        try:
            yield from _of_binary(data)
        except (struct.error, UnicodeDecodeError) as error:
            raise Malformed(f"binary XML that contradicts itself ({error})") from error
    else:
        raise Malformed(f"neither text nor binary XML (it begins {data[:8].hex(' ')})")


def _of_text(data: bytes) -> Iterator[Element]:
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise Malformed("XML that declares entities")
    try:
        root = ElementTree.fromstring(data)  # noqa: S314  # it declares no entity
    except ElementTree.ParseError as error:
        raise Malformed(f"XML that cannot be read ({error})") from error
    pending = [("", root)]
    while pending:
        above, node = pending.pop()
        path = f"{above}/{node.tag}" if above else node.tag
        texts = {name.removeprefix(ANDROID): text for name, text in node.attrib.items()}
        yield Element(path, {name: _typed(text) for name, text in texts.items()})
        pending += [(path, child) for child in reversed(node)]


def _typed(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdecimal() and len(text) < 10 else text


def _of_binary(data: bytes) -> Iterator[Element]:
    strings: list[str] = []
    numbers: tuple[int, ...] = ()
    path: list[str] = []
    for kind, at, head, size in _chunks(data):
        if kind == _STRINGS and not strings:
            strings = list(_strings(data[at : at + size]))
        elif kind == _NUMBERS:
            numbers = struct.unpack_from(f"<{(size - head) // 4}I", data, at + head)
        elif kind == _START:
            _, name, start, width, count, *_ = _ELEMENT.unpack_from(data, at + head)
            first = at + head + start
            if width < _ATTRIBUTE.size or first + width * count > at + size:
                raise Malformed("an element with more attributes than it has bytes")
            path.append(_named(strings, name))
            places = range(first, first + width * count, width)
            yield Element("/".join(path), dict(_attribute(data, place, strings, numbers) for place in places))
        elif kind == _END and path:
            path.pop()


def _chunks(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Kind, place, size of the header and whole size of each chunk in the file's one."""
    _, at, end = _CHUNK.unpack_from(data, 0)
    if end > len(data):
        raise Malformed(f"binary XML of {end:,} bytes that is cut short at {len(data):,}")
    while at < end:
        kind, head, size = _CHUNK.unpack_from(data, at)
        if not _CHUNK.size <= head <= size <= end - at:
            raise Malformed(f"a chunk of {size:,} bytes at byte {at:,} of {end:,}")
        yield kind, at, head, size
        at += size


def _strings(pool: bytes) -> Iterator[str]:
    count, _, flags, start, _ = _STRING_POOL.unpack_from(pool, _CHUNK.size)
    budget = len(pool)
    for offset in struct.unpack_from(f"<{count}I", pool, _CHUNK.size + _STRING_POOL.size):
        at = start + offset
        if flags & _UTF8:
            _, at = _short_length(pool, at, "<B", 7)
            size, at = _short_length(pool, at, "<B", 7)
        else:
            letters, at = _short_length(pool, at, "<H", 15)
            size = 2 * letters
        budget -= size
        if at + size > len(pool) or budget < 0:
            raise Malformed("texts that end outside the file or overlap")
        yield pool[at : at + size].decode("utf-8" if flags & _UTF8 else "utf-16-le", "surrogatepass")


def _short_length(pool: bytes, at: int, form: str, bits: int) -> tuple[int, int]:
    """A length of one unit, or of two where the first unit's highest bit is set; and where it ends."""
    width = struct.calcsize(form)
    (first,) = struct.unpack_from(form, pool, at)
    if not first >> bits:
        return first, at + width
    (second,) = struct.unpack_from(form, pool, at + width)
    return (first & ((1 << bits) - 1)) << (8 * width) | second, at + 2 * width


def _named(strings: list[str], index: int) -> str:
    if index >= len(strings):
        raise Malformed(f"text {index} of {len(strings)}")
    return strings[index]


def _attribute(data: bytes, at: int, strings: list[str], numbers: tuple[int, ...]) -> tuple[str, Value]:
    _, name, raw, _, _, kind, value = _ATTRIBUTE.unpack_from(data, at)
    number = numbers[name] if name < len(numbers) else 0
    known = _BY_NUMBER.get(number) or _named(strings, name)
    if raw != _NONE:
        return known, _named(strings, raw)
    if kind == _TEXT:
        return known, _named(strings, value)
    return known, bool(value) if kind == _BOOLEAN else value
