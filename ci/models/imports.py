"""The modules of a suite's author: they come first on the search path."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from provisioning.base.command_line import OWN_PACKAGES
from provisioning.base.settings import ROOT

OURS = tuple(f"{ROOT / name}/" for name in OWN_PACKAGES)

_first: Path | None = None


def search_first(folder: Path) -> None:
    """Import from this folder first from now on, also in factories and models that are called later.

    A process that serves suites of several folders forgets the modules of the previous one, because modules
    of equal names would be confused."""
    global _first
    if _first == folder:
        return
    if _first is not None:
        sys.path.remove(str(_first))
        if _first != ROOT:
            _forget(_first)
    sys.path.insert(0, str(folder))
    _first = folder


def _forget(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        if file.is_relative_to(folder) and file == module_file(name, [folder]):
            del sys.modules[name]


def module_file(name: str, roots: Sequence[Path]) -> Path | None:
    """The file of a module in the first root that has it; None for installed and built-in modules."""
    relative = name.replace(".", "/")
    for root in roots:
        for path in (root / f"{relative}.py", root / f"{relative}/__init__.py"):
            if path.is_file():
                return path
    return None


def modules_in(folder: Path) -> list[str]:
    """The files of modules below it that this process has imported. Neither this toolkit, installed or a
    clone, nor what else is installed into a virtual environment there is the user's."""
    ours = () if f"{folder}/".startswith(OURS) else OURS
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    below = {
        file for file in files if file and Path(file).is_relative_to(folder) and not file.startswith(ours)
    }
    return sorted(file for file in below if "site-packages" not in Path(file).relative_to(folder).parts)
