"""The lines of a TOML file in which its keys and tables stand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

Place = tuple[int | str, ...]
"""The keys and indices that lead to a value."""

_TABLE = re.compile(r"\s*(\[\[?)\s*([^\]#]+?)\s*\]")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_WORDS = re.compile(r"""\"(?:[^"\\]|\\.)*"|'[^']*'|#.*""")
"""Strings and comments."""
_NAME = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def line_of(place: Place, path: Path) -> int:
    """Return the line of a TOML file in which a key or a table stands. Without it, return the line of the
    nearest table around it; 0 if there is none.

    A part stands for its whole: `[case.net.run]` is a line of `case.net` too."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return 0
    nearest_line, nearest_depth = 0, 0
    for line, position in _positions(lines):
        depth = min(len(position), len(place))
        if depth > nearest_depth and position[:depth] == place[:depth]:
            nearest_line, nearest_depth = line, depth
    return nearest_line


def _positions(lines: Sequence[str]) -> Iterator[tuple[int, Place]]:
    """Yield the line and the place of each head of a table and of each key."""
    table: Place = ()
    last_index_by_array: dict[Place, int] = {}
    open_brackets = 0
    for line, text in enumerate(lines, 1):
        if open_brackets:
            # A row of an array may look like the head of a table.
            open_brackets += _brackets_opened(text)
        elif head := _TABLE.match(text):
            table = _names(head[2])
            if head[1] == "[[":
                index = last_index_by_array.get(table, -1) + 1
                last_index_by_array[table] = index
                table = (*table, index)
            yield line, table
        elif key := _KEY.match(text):
            yield line, (*table, *_names(key[1]))
            open_brackets = _brackets_opened(text)


def _brackets_opened(text: str) -> int:
    """Count the brackets of arrays that a line opens, without those that it closes."""
    without_words = _WORDS.sub("", text)
    return without_words.count("[") - without_words.count("]")


_WHERE = re.compile(r"\(at line (\d+), column \d+\)")


def line_of_error(error: ValueError, text: str) -> int:
    """Return the line at which the reader found no TOML. The error says it in words alone; at the end of the
    file it says no number."""
    if match := _WHERE.search(str(error)):
        return int(match[1])
    return max(1, len(text.splitlines()))


def _names(dotted: str) -> Place:
    return tuple(name.strip("\"'") for name in _NAME.findall(dotted))
