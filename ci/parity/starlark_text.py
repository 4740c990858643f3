"""A Starlark text, read without running it, and corrected: its string literals and loads."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Literal:
    """A string literal of a Starlark text: where a value is written, and where to correct it."""

    value: str
    line: int
    begin: int
    end: int


@lru_cache(maxsize=256)
def _parsed(text: str) -> ast.Module:
    """Starlark's syntax is Python's. A text with another is empty here: the interpreter reports it."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


@lru_cache(maxsize=256)
def literals(text: str) -> Sequence[Literal]:
    """String literals in the text's order."""
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    nodes = [*ast.walk(_parsed(text))]
    within = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    strings = []
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in within:
            begin = offset(node.lineno, node.col_offset)
            end = offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
            strings.append(Literal(node.value, node.lineno, begin, end))
    return tuple(sorted(strings, key=lambda literal: literal.begin))


def loads(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The labels that a text loads from, each with the names: here, and in the file that is loaded."""
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load":
            words = [(str(word.arg), word.value) for word in node.keywords]
            renamed = {own: str(name.value) for own, name in words if isinstance(name, ast.Constant)}
            texts = [str(text.value) for text in node.args if isinstance(text, ast.Constant)]
            label, *names = texts or [""]
            yield label, {name: name for name in names} | renamed


def used_as_values(text: str) -> set[str]:
    """Names that a text uses otherwise than to call them."""
    nodes = [*ast.walk(_parsed(text))]
    called = {node.func for node in nodes if isinstance(node, ast.Call)}
    return {node.id for node in nodes if isinstance(node, ast.Name) and node not in called}


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
    return json.dumps(value, ensure_ascii=False)
