"""The standard library's TOML reader, by one name on every Python, and where in a file a key stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOMLDecodeError = tomllib.TOMLDecodeError
loads = tomllib.loads

Place = tuple[int | str, ...]
"""The keys and indices that lead to a value."""

_TABLE = re.compile(r"\s*(\[\[?)\s*([^\]#]+?)\s*\]")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_NAME = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def line_of(place: Place, path: Path) -> int:
    """The line of a TOML file in which a key or a table stands, or begins what it is in; 0 if none does.

    What is in a table stands for it: `[case.net.run]` is of `case.net` too."""
    table: Place = ()
    items: dict[Place, int] = {}
    line, nearest = 0, 0
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return 0
    for number, text in enumerate(lines, 1):
        position: Place
        if head := _TABLE.match(text):
            table = _names(head[2])
            if head[1] == "[[":
                items[table] = items.get(table, -1) + 1
                table = (*table, items[table])
            position = table
        elif key := _KEY.match(text):
            position = (*table, *_names(key[1]))
        else:
            continue
        depth = min(len(position), len(place))
        if nearest < depth and position[:depth] == place[:depth]:
            line, nearest = number, depth
    return line


def _names(dotted: str) -> Place:
    return tuple(name.strip("\"'") for name in _NAME.findall(dotted))
