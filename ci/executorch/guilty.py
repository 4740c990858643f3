"""Which operators a lowering dies of, proved by lowering again with them on the CPU.

QNN's first error is often not the cause: it may be of an operator that falls back harmlessly, while a
partition that the fallback left behind, holding nothing but constants, cannot be compiled.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executorch.backends.qualcomm import qnn_preprocess

from ci.executorch import NATIVE_ERROR
from ci.executorch.audit import is_glue, operator_name, source_of

VISITING = re.compile(r"Visiting: (\S+), ")
ATTEMPTS = 3
"""Lowerings in search of a remedy; each takes as long as the one that failed."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """Nodes of the edge graph that may be what the compiler dies of."""

    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    line: str
    reason: str

    def __str__(self) -> str:
        names = ", ".join(dict.fromkeys(self.operators))
        return f"{names} ({', '.join(self.nodes)}){self.line}: {self.reason}"


@dataclass
class Partitions:
    """Remembers the partition that is compiled, as it was before QNN's passes, and where its log begins."""

    log: Path
    nodes: list[tuple[str, str, str]] = field(default_factory=list)
    """Name, operator and stack trace of each."""
    has_inputs: bool = True
    constant: set[str] = field(default_factory=set)
    """Names of nodes that depend on no input and leave the partition."""
    weights: dict[str, list[str]] = field(default_factory=dict)
    """By node, the constants' dequantizers that go where it goes."""
    visited: str = ""
    begin: int = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        backend = qnn_preprocess.QnnBackend
        original = backend._build_op_wrappers
        handler = logging.Handler()

        def visit(record: logging.LogRecord) -> None:
            if match := VISITING.match(record.getMessage()):
                self.visited = match[1]

        def build(edge_program: Any, *rest: Any, **options: Any) -> Any:
            self._remember(edge_program)
            built = original(edge_program, *rest, **options)
            self.visited = ""
            return built

        handler.emit = visit  # type: ignore[method-assign]
        backend._build_op_wrappers = staticmethod(build)
        qnn_preprocess.logger.addHandler(handler)
        try:
            yield
        finally:
            backend._build_op_wrappers = staticmethod(original)
            qnn_preprocess.logger.removeHandler(handler)
            # The backend's error path puts all of torch into its module, and torch.range over Python's.
            vars(qnn_preprocess).pop("range", None)

    def suspects(self) -> list[Suspect]:
        """The likeliest first."""
        _flush()
        with self.log.open("rb") as stream:
            stream.seek(self.begin)
            errors = NATIVE_ERROR.findall(stream.read().decode("utf-8", "replace"))
        calls = [name for name, _, _ in self.nodes]
        if calls and not self.has_inputs:
            reason = "QNN cannot compile a partition that holds nothing but constants"
            return [self._suspect(calls, reason)]
        found = []
        if self.visited in calls:
            found.append(self._suspect([self.visited], "the backend cannot build it"))
        named = [
            (index, name, error)
            for name in calls
            for index, error in enumerate(errors)
            if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", error)
        ]
        for _, name, error in sorted(named):
            found.append(self._suspect([name, *self.weights[name]], f"QNN says: {error.strip()[:200]}"))
        if self.constant:
            reason = "QNN cannot hand out a constant that an operator on the CPU needs"
            found.append(self._suspect(sorted(self.constant), reason))
        return found

    def _remember(self, program: Any) -> None:
        _flush()
        self.begin = self.log.stat().st_size
        self.visited = ""
        inputs = set(program.graph_signature.user_inputs)
        self.has_inputs = bool(inputs)
        self.nodes, live, self.constant, self.weights = [], set(), set(), {}
        for node in program.graph.nodes:
            if node.name in inputs or any(each in live for each in node.all_input_nodes):
                live.add(node)
            if node.op != "call_function" or is_glue(node):
                continue
            self.nodes.append((node.name, operator_name(node), node.meta.get("stack_trace") or ""))
            self.weights[node.name] = [
                each.name for each in node.all_input_nodes if each.op == "call_function" and each not in live
            ]
            if node not in live and any(user.op == "output" for user in node.users):
                self.constant.add(node.name)

    def _suspect(self, names: Sequence[str], reason: str) -> Suspect:
        rows = [(operator, trace) for name, operator, trace in self.nodes if name in names]
        line = ""
        for _, trace in rows:
            source, code = source_of(trace)
            if source:
                line = f" at {source}" + (f" `{code}`" if code else "")
                break
        return Suspect(tuple(names), tuple(operator for operator, _ in rows), line, reason)


@dataclass(frozen=True, slots=True)
class Remedy:
    """What must stay on the CPU, and what the lowering that proved it gave."""

    suspects: tuple[Suspect, ...]
    lowered: Any


def remedy_of(partitions: Partitions, lower: Callable[[frozenset[str]], Any]) -> Remedy | None:
    """What must stay on the CPU for the rest to lower; None if that was not found.

    Call it when lowering has failed. `lower` does it again with nodes on the CPU, and raises if it fails."""
    chosen: list[Suspect] = []
    lowered: Any = None
    while lowered is None:
        tried = {one.nodes for one in chosen}
        suspect = next((one for one in partitions.suspects() if one.nodes not in tried), None)
        if suspect is None or len(chosen) == ATTEMPTS:
            return None
        chosen.append(suspect)
        lowered = _lowered(partitions, lower, chosen)
    for one in chosen[:-1]:
        fewer = [other for other in chosen if other is not one]
        if (without := _lowered(partitions, lower, fewer)) is not None:
            chosen, lowered = fewer, without
    return Remedy(tuple(chosen), lowered)


def _lowered(
    partitions: Partitions, lower: Callable[[frozenset[str]], Any], suspects: Sequence[Suspect]
) -> Any:
    """None if it fails."""
    try:
        with partitions.installed():
            return lower(frozenset(name for one in suspects for name in one.nodes))
    except Exception as error:
        sys.stderr.write(f"tried with {', '.join(map(str, suspects))} on the CPU: {error}\n")
        return None


def _flush() -> None:
    import ctypes

    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
