"""The graphs of a QNN context binary: their inputs and outputs, in QNN's own order, types and shapes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.base.commands import interview
from provisioning.base.errors import CheckFailed

READER = Path(__file__).with_name("context_reader.py")
LIBRARY = "libQnnSystem.so"
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class ContextTensor:
    """An input or output of the context's own graph."""

    name: str
    dtype: str
    """Numpy's name of the type that the context itself has: quantized values are integers."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ContextGraph:
    name: str
    inputs: tuple[ContextTensor, ...]
    outputs: tuple[ContextTensor, ...]


def graphs_in(context: Path, library: Path) -> tuple[ContextGraph, ...]:
    """Read the graphs of a context with this libQnnSystem, which may not be older than the context. Raises
    CheckFailed for a file that it does not take."""
    # A child process, because QNN's code reads the bytes: they may be damaged.
    command = [sys.executable, "-I", str(READER), str(library), str(context)]
    done = interview(command, SECONDS, env={"LD_LIBRARY_PATH": str(library.parent)})
    if done.returncode:
        words = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CheckFailed(
            f"{context}: {library.name} cannot read it as a context binary: {words}",
            fix="compile it again, or take the --profile that compiled it",
        )
    return tuple(map(_graph, json.loads(done.stdout)))


def _graph(row: Mapping[str, Any]) -> ContextGraph:
    return ContextGraph(row["name"], tuple(map(_tensor, row["inputs"])), tuple(map(_tensor, row["outputs"])))


def _tensor(row: Mapping[str, Any]) -> ContextTensor:
    return ContextTensor(row["name"], row["dtype"], tuple(row["shape"]))
