"""Our own code, parsed once for all tests that read it."""

from __future__ import annotations

import ast
import gc
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

from ci.models.user_model import module_file
from provisioning.base.settings import ROOT

OURS = ("provisioning", "ci", "qnn_ci", "lab")

BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where a statement has statements."""


def our_files(*packages: str) -> list[Path]:
    """The modules of these packages of ours; without one, of all."""
    return [file for folder in packages or OURS for file in sorted((ROOT / folder).rglob("*.py"))]


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
    return tuple(walked(parsed(path)))


def forget() -> None:
    nodes.cache_clear()
    parsed.cache_clear()


def walked(tree: ast.AST) -> list[ast.AST]:
    """What ast.walk gives, in its order, in two thirds of its time."""
    found = [tree]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST)]
    return found


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Every statement, however deep, without looking into expressions."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        for name in BLOCKS:
            waiting += getattr(node, name, ())


def names_imported(tree: ast.Module) -> Iterator[str]:
    """What a module of ours may import, by its full name: `from a import b` may mean the module a.b."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name modules in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def closure(name: str, tables: Collection[str] = ()) -> frozenset[Path]:
    """The file of a module of ours, and those of all that it imports, directly or indirectly. Of `tables`,
    modules that name others of which a stage imports one at most, nothing is followed."""
    files, seen, waiting = set[Path](), set[str](), [name]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        waiting += [package] if (package := module.rpartition(".")[0]) else []
        if path := module_file(module, [ROOT]):
            files.add(path)
            waiting += [] if module in tables else names_imported(parsed(path))
    return frozenset(files)
