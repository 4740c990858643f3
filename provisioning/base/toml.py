"""The standard library's TOML reader, by one name on every Python, and where in a file a key stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOMLDecodeError = tomllib.TOMLDecodeError

DEEPEST = 100
"""Tables and arrays in each other; a suite has five."""

TOO_LARGE = "an integer of more than 64 bits"

Place = tuple[int | str, ...]
"""The keys and indices that lead to a value."""

_TABLE = re.compile(r"\s*(\[\[?)\s*([^\]#]+?)\s*\]")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_WORDS = re.compile(r"""\"(?:[^"\\]|\\.)*"|'[^']*'|#.*""")
"""Strings and comments."""
_NAME = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def line_of(place: Place, path: Path) -> int:
    """Find the line of a TOML file in which a key or a table stands, or begins what it is in; 0 if none does.

    What is in a table stands for it: `[case.net.run]` is of `case.net` too."""
    table: Place = ()
    items: dict[Place, int] = {}
    line, nearest = 0, 0
    open_brackets = 0
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return 0
    for number, text in enumerate(lines, 1):
        position: Place
        if open_brackets:
            # A row of an array may look like the head of a table.
            open_brackets += _brackets_opened(text)
            continue
        if head := _TABLE.match(text):
            table = _names(head[2])
            if head[1] == "[[":
                items[table] = items.get(table, -1) + 1
                table = (*table, items[table])
            position = table
        elif key := _KEY.match(text):
            position = (*table, *_names(key[1]))
            open_brackets = _brackets_opened(text)
        else:
            continue
        depth = min(len(position), len(place))
        if nearest < depth and position[:depth] == place[:depth]:
            line, nearest = number, depth
    return line


def _brackets_opened(text: str) -> int:
    """Count the brackets of arrays that a line opens, without those that it closes."""
    without_words = _WORDS.sub("", text)
    return without_words.count("[") - without_words.count("]")


_WHERE = re.compile(r"\(at line (\d+), column \d+\)")


def line_of_error(error: ValueError, text: str) -> int:
    """Find the line in which the reader found no TOML: older Pythons say it in words alone."""
    if match := _WHERE.search(str(error)):
        return int(match[1])
    return max(1, len(text.splitlines()))


def _names(dotted: str) -> Place:
    return tuple(name.strip("\"'") for name in _NAME.findall(dotted))


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
