"""Tell which chips an executorch compiles for, and what to do about a chip that it does not know."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Container
from pathlib import Path

from provisioning.base.commands import Fix

_SCHEMA = "backends/qualcomm/serialization/qc_schema.py"
_CHIPS = "QcomChipset"


def installed_chips() -> frozenset[str]:
    """Read which chips the executorch that this Python finds compiles for; empty if it finds none."""
    spec = importlib.util.find_spec("executorch")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return chips_known_to(Path(places[0])) if places else frozenset()


def chips_known_to(package: Path) -> frozenset[str]:
    """Read which chips an executorch compiles for from its source, since importing it takes seconds. Return
    an empty set if the source does not say."""
    # Late: a command's words are checked before any package is there, and this needs some.
    from provisioning.manifest import load_socs

    try:
        tree = ast.parse((package / _SCHEMA).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return frozenset()
    chips: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == _CHIPS:
            chips |= {name.id for name in ast.walk(statement) if isinstance(name, ast.Name)}
    return frozenset(chips & load_socs().keys())


def chip_instead(soc: str, known: Container[str]) -> Fix:
    """Return what to do about a chip that an executorch does not know; `known` are those that it knows."""
    from provisioning.manifest import nearest_socs

    through = Fix(
        "{}, because ONNX Runtime knows every chip", ("compile", "MODEL", "--soc", soc, "--through", "onnx")
    )
    alike = nearest_socs(soc, known)
    if not alike:
        return through
    return Fix("{} has the same Hexagon; or {}", ("--soc", alike[0]), through)
