"""QNN programs from Python: `from qnn_ci import compile, audit, run`; and the command `qnn-ci`.

Importing it imports nothing: the packages `ci` and `provisioning` of this wheel are the command's alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnn_ci.api import Answer, Audited, Compiled, Failed, Ran, audit, compile, run
    from qnn_ci.pytest_plugin import Qnn

__all__ = ["Answer", "Audited", "Compiled", "Failed", "Qnn", "Ran", "audit", "compile", "main", "run"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("qnn_ci.pytest_plugin" if name == "Qnn" else "qnn_ci.api"), name)


def main() -> int:
    """The command `qnn-ci`."""
    from qnn_ci.command import main as command

    return command()
