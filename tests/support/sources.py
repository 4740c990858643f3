"""Our own code, parsed once for all tests that read it."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    # All of a tree stays: to look for garbage among its nodes takes as long as to parse it.
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


def with_any(files: Iterable[Path], *words: str) -> Iterator[Path]:
    """The files that have one of these in their text: parsing all of them takes a second."""
    for path in files:
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in words):
            yield path


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Every statement, however deep, without looking into expressions."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.stmt):
                yield child
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                waiting.append(child)
