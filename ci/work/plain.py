"""Data that crosses a process or is stored in a file: frozen dataclasses of plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

__all__ = ["Facts", "read", "reader", "to_json"]

T = TypeVar("T")

Facts = Mapping[str, Any]
"""A reply as it is cached; the record that is read from it has types."""


ATOMS = frozenset((str, int, float, bool, type(None)))


def to_json(record: DataclassInstance) -> dict[str, Any]:
    """Return what dataclasses.asdict does. Python 3.11's copies each number of a list by itself, which takes
    seconds for the figures of a language model."""
    return {field.name: _plain(getattr(record, field.name)) for field in fields(record)}


def _plain(value: object) -> object:
    if type(value) in ATOMS:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return to_json(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        atoms_alone = {*map(type, value)} <= ATOMS
        return type(value)(value if atoms_alone else map(_plain, value))
    return deepcopy(value)


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
