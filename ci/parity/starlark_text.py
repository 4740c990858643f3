"""String literals of a Starlark text with their lines: where a value is written, and where to correct it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

TOKEN = re.compile(
    r"""
    (?P<comment>\#[^\n]*)
  | (?P<string>(?:\b[rR])?(?:'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"
      |'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))
    """,
    re.VERBOSE | re.DOTALL,
)
"""A comment or a literal."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: str
    line: int
    begin: int
    end: int


@lru_cache(maxsize=256)
def literals(text: str) -> Sequence[Literal]:
    """String literals in the text's order. What cannot be parsed is left out: the interpreter reports it."""
    strings: list[Literal] = []
    line, counted = 1, 0
    for match in TOKEN.finditer(text):
        if match["string"] is None:
            continue
        line += text.count("\n", counted, match.start())
        counted = match.start()
        try:
            value = ast.literal_eval(match["string"])
        except (SyntaxError, ValueError):
            continue
        strings.append(Literal(value, line, match.start(), match.end()))
    return tuple(strings)


def nearest(strings: Sequence[Literal], value: str, line: int) -> Literal | None:
    """The literal of that value at or after a line, else the last one before it."""
    before = None
    for literal in strings:
        if literal.value == value:
            if literal.line >= line:
                return literal
            before = literal
    return before


def without(text: str, literal: Literal) -> str:
    """The text without one element of a list, and without its line if nothing else is on it."""
    begin, end = literal.begin, literal.end
    rest = re.compile(r"[ \t]*,[ \t]*").match(text, end)
    if rest:
        end = rest.end()
    elif before := re.compile(r",[ \t]*\Z").search(text, 0, begin):
        begin = before.start()
    start_of_line = text.rfind("\n", 0, begin) + 1
    comment = re.compile(r"(?:#[^\n]*)?(?:\n|\Z)").match(text, end)
    if comment and not text[start_of_line:begin].strip():
        above, below = text[:start_of_line], text[comment.end() :]
        # A comment above it goes too, unless it may be about the elements below.
        if re.match(r"[ \t]*(?:[\])#]|\Z)", below):
            above = re.sub(r"(?<=\n)(?:[ \t]*\#[^\n]*\n)+\Z", "", above)
        return above + below
    return text[:begin] + text[end:]


def with_after(text: str, literal: Literal, value: str) -> str:
    """The text with one more element after a literal, formatted like that one."""
    element = quoted(value)
    start_of_line = text.rfind("\n", 0, literal.begin) + 1
    indent = text[start_of_line : literal.begin]
    rest = re.compile(r"[ \t]*,[ \t]*(?:#[^\n]*)?\n").match(text, literal.end)
    if rest and not indent.strip():
        return f"{text[: rest.end()]}{indent}{element},\n{text[rest.end() :]}"
    return f"{text[: literal.end]}, {element}{text[literal.end :]}"


def replaced(text: str, literal: Literal, value: str) -> str:
    return text[: literal.begin] + quoted(value) + text[literal.end :]


def quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
