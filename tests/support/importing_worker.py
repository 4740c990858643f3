"""A worker that imports a module as a model does, and says which it lacks."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from ci.models.user_model import BadFactory
from ci.work.child import reporting


@dataclass(frozen=True)
class ImportRequest:
    module: str


def prepare() -> None:
    """It imports nothing."""


def _import(order: dict[str, Any]) -> dict[str, Any]:
    try:
        importlib.import_module(order["module"])
    except ModuleNotFoundError as error:
        raise BadFactory(str(error), "") from error
    return {}


def _error_of(error: Exception, order: dict[str, Any]) -> dict[str, Any]:
    missing = error.missing if isinstance(error, BadFactory) else ""
    return {"kind": "factory", "message": str(error), "fix": "", "missing": missing}


imported = reporting(_import, _error_of)
