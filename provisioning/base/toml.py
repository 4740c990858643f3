"""TOML is read by the standard library's reader, by one name on every Python and within limits."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOMLDecodeError = tomllib.TOMLDecodeError

DEEPEST = 100
"""Tables and arrays in each other; a suite has five."""

TOO_LARGE = "an integer of more than 64 bits"


def loads(text: str) -> dict[str, Any]:
    """Read a document. Raises TOMLDecodeError also for what is too deep or too large for a reader."""
    too_deep = f"more than {DEEPEST} tables or arrays in each other"
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except TOMLDecodeError:
        raise
    except RecursionError:
        raise TOMLDecodeError(too_deep) from None
    except ValueError:
        raise TOMLDecodeError(TOO_LARGE) from None
    level: list[object] = [document]
    for _ in range(DEEPEST):
        level = _items_in(level)
        if not level:
            return document
    raise TOMLDecodeError(too_deep)


def _items_in(values: list[object]) -> list[object]:
    """Return what is in these tables and arrays."""
    items: list[object] = []
    for value in values:
        if isinstance(value, dict):
            items += value.values()
        elif isinstance(value, list):
            items += value
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise TOMLDecodeError(TOO_LARGE)
    return items
