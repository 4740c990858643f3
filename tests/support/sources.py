"""Our own code, parsed once for all tests that read it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


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
