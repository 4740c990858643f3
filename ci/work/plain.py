"""Data that crosses a process or is stored in a file: frozen dataclasses of plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

T = TypeVar("T")

Facts = Mapping[str, Any]
"""A reply as it is cached; the record that is read from it has types."""


def to_json(record: DataclassInstance) -> dict[str, Any]:
    return asdict(record)


def read(kind: type[T], document: object) -> T:
    """Read what `to_json` wrote and check every field; names that the record does not have are ignored."""
    record: T = _adapter(cast(Any, kind)).validate_python(document)
    return record


def reader(kind: type[T]) -> Callable[[object], T]:
    """Return a `read` for this kind that is prepared now: once a user's package has one of our names,
    annotations are not found."""
    _adapter(cast(Any, kind))
    return partial(read, kind)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
