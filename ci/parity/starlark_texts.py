"""Build files of Buck as they are written: string literals and loads."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Literal:
    """A string literal of a Starlark text."""

    value: str
    line: int


@lru_cache(maxsize=256)
def _syntax(text: str) -> ast.Module:
    """Starlark's syntax is Python's. A text with another is empty here: the interpreter reports it."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


@lru_cache(maxsize=256)
def literals(text: str) -> Sequence[Literal]:
    """String literals in the text's order."""
    nodes = [*ast.walk(_syntax(text))]
    within = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    strings = [
        node
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in within
    ]
    strings.sort(key=lambda node: (node.lineno, node.col_offset))
    return tuple(Literal(str(node.value), node.lineno) for node in strings)


def loads(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The labels that a text loads from, each with the names: here, and in the file that is loaded."""
    for node in ast.walk(_syntax(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load":
            words = [(str(word.arg), word.value) for word in node.keywords]
            aliases = {own: str(name.value) for own, name in words if isinstance(name, ast.Constant)}
            texts = [str(text.value) for text in node.args if isinstance(text, ast.Constant)]
            label, *names = texts or [""]
            yield label, {name: name for name in names} | aliases


def used_as_values(text: str) -> set[str]:
    """Names that a text uses otherwise than to call them."""
    nodes = [*ast.walk(_syntax(text))]
    callees = {node.func for node in nodes if isinstance(node, ast.Call)}
    return {node.id for node in nodes if isinstance(node, ast.Name) and node not in callees}


def nearest(strings: Sequence[Literal], value: str, line: int) -> Literal | None:
    """The literal of that value at or after a line, else the last one before it."""
    before = None
    for literal in strings:
        if literal.value == value:
            if literal.line >= line:
                return literal
            before = literal
    return before
