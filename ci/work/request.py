"""The request of a piece of work, and the part of it that decides the result.

A request is a frozen dataclass. Its fields are plain values, and the files and folders that the work reads.
The key of a result contains all of them, except the fields that are marked as irrelevant: nobody writes a key
by hand. A worker receives the same request as JSON, and reads it with the same dataclass."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.findings import Metric
from provisioning.base.option_fields import IRRELEVANT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

__all__ = ["NOTHING", "File", "Folder", "Nothing", "irrelevant", "key_of", "names_below", "sent_request"]

LONG = 4000
"""If the text of a value is longer than this many characters, the key has its digest."""

Digest = Callable[[Path], str]
"""Returns the digest of a file's bytes."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that the work reads. Its bytes decide the result."""

    path: str
    known_by: str | None = None
    """This decides the result in place of the bytes, if they differ for equal content."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _read_from_path(cls, handler)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that the work reads. The names and bytes of its files decide the result."""

    path: str
    suffixes: tuple[str, ...] = ("",)
    """The work reads only the files whose names end with one of these."""
    known_by: str | None = None
    """This decides the result in place of the files."""
    is_flat: bool = False
    """Whether the work reads no file of a folder in it, except `also`."""
    also: tuple[str, ...] = ()
    """The work reads these files, too."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _read_from_path(cls, handler)


def irrelevant(reason: str) -> Mapping[str, str]:
    """Mark a field that decides nothing: `seconds: float = field(metadata=irrelevant("why"))`."""
    return {IRRELEVANT: reason}


@dataclass(frozen=True, slots=True)
class Nothing:
    """An empty request or reply: the program, or the files, say everything."""


NOTHING = Nothing()


def _read_from_path(kind: Callable[[str], object], handler: GetCoreSchemaHandler) -> CoreSchema:
    """Let a worker's dataclass, which receives a path, have the type that it was sent from."""
    from pydantic_core import core_schema

    return core_schema.no_info_after_validator_function(kind, handler(str))


def sent_request(request: DataclassInstance) -> dict[str, object]:
    """Turn the request into the JSON that a worker receives; a file and a folder become their paths."""
    return {field.name: _plain(getattr(request, field.name)) for field in fields(request)}


def _plain(value: object) -> object:
    match value:
        case File() | Folder():
            return value.path
        case Mapping():
            return {str(name): _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
    return sent_request(value) if is_dataclass(value) and not isinstance(value, type) else value


def key_of(request: DataclassInstance, digest: Digest) -> dict[str, Metric]:
    """The part of a key that comes from a request, by the names of its fields."""
    return {
        field.name: _shorten(_deciding(getattr(request, field.name), digest))
        for field in fields(request)
        if IRRELEVANT not in field.metadata
    }


def _deciding(value: object, digest: Digest) -> Metric:
    match value:
        case File():
            return digest(Path(value.path)) if value.known_by is None else value.known_by
        case Folder():
            if value.known_by is not None:
                return value.known_by
            return digests_below(value, digest)
        case Mapping():
            return {str(name): _deciding(inner, digest) for name, inner in value.items()}
        case list() | tuple():
            return [_deciding(inner, digest) for inner in value]
        case None | bool() | int() | float() | str():
            return value
    if is_dataclass(value) and not isinstance(value, type):
        return key_of(value, digest)
    raise TypeError(f"a request has {value!r}: expected a plain value, a File or a Folder")


def _shorten(value: Metric) -> Metric:
    text = json.dumps(value)
    return value if len(text) <= LONG else hashlib.sha256(text.encode()).hexdigest()


def digests_below(folder: Folder, digest: Digest) -> dict[str, Metric]:
    return {name: digest(Path(folder.path, name)) for name in names_below(folder)}


def names_below(folder: Folder) -> list[str]:
    """The names of the files that the work reads."""
    top = Path(folder.path)
    also = [name for name in folder.also if (top / name).is_file()]
    return sorted({*files_below(top, folder.suffixes, is_flat=folder.is_flat), *also})


def files_below(folder: Path, suffixes: tuple[str, ...], *, is_flat: bool = False) -> Iterator[str]:
    """The names of all files below a folder that end so, without hidden files and folders. It follows links,
    as an overlay has them to a tree. Of a flat one no folder in it is read."""
    inodes: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        stat = Path(place).stat()
        if (stat.st_dev, stat.st_ino) in inodes:
            folders.clear()
            continue
        inodes.add((stat.st_dev, stat.st_ino))
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        if is_flat:
            folders.clear()
        for name in sorted(files):
            path = Path(place, name)
            if name.endswith(suffixes) and not name.startswith(".") and path.is_file():
                yield path.relative_to(folder).as_posix()
