"""The modules of a suite's author: they come first on the search path, and their files are listed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

from provisioning.base.command_line import OWN_PACKAGES
from provisioning.base.settings import ROOT

_first: Path | None = None
_theirs: dict[Path, dict[str, ModuleType]] = {}
"""By folder: the user's modules with our names, while ours have these names."""


def search_first(folder: Path) -> None:
    """Import from this folder first from now on, also in factories that are called later.

    A process that serves suites of several folders forgets the modules of the previous one, because modules
    of equal names would be confused."""
    global _first
    if _first is not None and _first != folder:
        sys.path.remove(str(_first))
        _theirs.pop(_first, None)
        if _first != ROOT:
            _forget(_first)
    if _first != folder:
        sys.path.insert(0, str(folder))
    _first = folder


@contextmanager
def users_own(folder: Path) -> Iterator[None]:
    """If the folder has packages with our names, such as `ci`, these names mean the user's packages."""
    packages = [name for name in OWN_PACKAGES if folder != ROOT and (folder / name).is_dir()]
    if not packages:
        yield
        return

    def taken() -> dict[str, ModuleType]:
        names = [name for name in sys.modules if name.partition(".")[0] in packages]
        return {name: sys.modules.pop(name) for name in names}

    ours = taken()
    sys.modules.update(_theirs.get(folder, {}))
    try:
        yield
    finally:
        _theirs[folder] = taken()
        sys.modules.update(ours)


def _forget(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        if file.is_relative_to(folder) and file == module_file(name, [folder]):
            del sys.modules[name]


def module_file(name: str, roots: Sequence[Path]) -> Path | None:
    """The file of a module in the first root that has it; None for installed and built-in modules."""
    relative = Path(*name.split("."))
    for root in roots:
        for path in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
            if path.is_file():
                return path
    return None


def closure(name: str, roots: Sequence[Path]) -> frozenset[Path]:
    """The module's file and every file below the roots that its imports need, directly or indirectly."""
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
