"""Which files of ours a Python module is made of: the modules it imports, and those that they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path


def module_file(name: str, roots: Sequence[Path]) -> Path | None:
    """The file of a module in the first root that has it; None for what is installed or built in."""
    relative = Path(*name.split("."))
    for root in roots:
        for path in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
            if path.is_file():
                return path
    return None


def closure(name: str, roots: Sequence[Path]) -> frozenset[Path]:
    """The module's file and, over all imports written in the code, every file below the roots it needs."""
    found: set[Path] = set()
    waiting = list(_with_packages(name))
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        path = module_file(module, roots)
        if path is None:
            continue
        found.add(path)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        waiting += imported(path, path.stat().st_mtime_ns, package)
    return frozenset(found)


@cache
def imported(path: Path, changed: int, package: str) -> tuple[str, ...]:
    """Every module that the file may import, by full name, with the packages around it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ()
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return tuple(dict.fromkeys(each for name in names if name for each in _with_packages(name)))


def _base(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, node.module] if node.module else kept)


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])
