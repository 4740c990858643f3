"""Show the answer of `audit`: operators by precision, then what stays on the CPU, why, and what to write
instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ci.artifacts.compiler_log import Traffic
from ci.operators import CpuOperator
from ci.work import to_json
from provisioning.base.units import align

FAILED = "does not compile"


@dataclass(frozen=True, slots=True)
class KeptNodes:
    """The compiler crashes on these nodes, which are left on the CPU."""

    because: str
    cpu_nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """It says what HTP runs of a model at a precision."""

    delegated: Mapping[str, int]
    cpu: tuple[CpuOperator, ...]
    usable: bool
    """Whether the program runs."""
    delegates: int
    ddr: Traffic
    kept_on_cpu: KeptNodes | None = None


@dataclass(frozen=True, slots=True)
class NoProgram:
    error: str
    fix: str


AuditRows: TypeAlias = Mapping[str, AuditRow | NoProgram]
"""A row for each precision."""


def fails(row: AuditRow | NoProgram) -> bool:
    """Whether a precision gives no program that runs."""
    return isinstance(row, NoProgram) or not row.usable


def document(rows: AuditRows) -> dict[str, dict[str, Any]]:
    """Return the evidence of an answer; each operator on the CPU also has what to write instead."""
    answers = {scheme: to_json(row) for scheme, row in rows.items()}
    for scheme, row in rows.items():
        if isinstance(row, AuditRow):
            answers[scheme]["cpu"] = [{**to_json(node), "suggestion": str(node.fix)} for node in row.cpu]
    return answers


def text_lines(rows: AuditRows) -> Iterator[str]:
    """Yield a table of operators by precision, the cost of the CPU's part, then each operator on the CPU with
    its line."""
    compiled = {scheme: row for scheme, row in rows.items() if isinstance(row, AuditRow)}
    yield from align(_table(rows, compiled))
    yield from _cpu_lines(compiled)
    yield from _error_lines(rows)
    for scheme, row in compiled.items():
        if kept := row.kept_on_cpu:
            nodes = ", ".join(f'"{name}"' for name in kept.cpu_nodes)
            yield f"{scheme}: {kept.because}"
            yield f"  → kept on the CPU here: cpu_nodes = [{nodes}]"


def _table(rows: AuditRows, compiled: Mapping[str, AuditRow]) -> list[tuple[str, ...]]:
    """Return a line for each operator and each cost, with a cell for each precision. What stays on the CPU
    at some precision comes first."""
    operators = {scheme: cells_of(row) for scheme, row in compiled.items()}
    costs = {scheme: _costs(row) for scheme, row in compiled.items()}
    names, on_cpu = set[str](), set[str]()
    for cells in operators.values():
        names.update(cells)
        on_cpu.update(name for name, cell in cells.items() if "cpu" in cell)
    lines = [("operator", *rows)]
    for name in [*sorted(on_cpu), *sorted(names - on_cpu)]:
        cells_of_name = [
            operators[scheme].get(name, "-") if scheme in compiled else FAILED for scheme in rows
        ]
        lines.append((name, *cells_of_name))
    titles: dict[str, None] = {}
    for costs_of_scheme in costs.values():
        titles |= dict.fromkeys(costs_of_scheme)
    for title in titles:
        lines.append((title, *(costs.get(scheme, {}).get(title, "") for scheme in rows)))
    return lines


def _error_lines(rows: AuditRows) -> Iterator[str]:
    """Yield each error, once for all precisions that have it."""
    schemes_by_error: dict[tuple[str, str], list[str]] = {}
    for scheme, row in rows.items():
        if isinstance(row, NoProgram):
            schemes_by_error.setdefault((row.error, row.fix), []).append(scheme)
    for (error, fix), schemes in schemes_by_error.items():
        yield f"{', '.join(schemes)}: {error}"
        yield f"  → {fix}"


def _costs(row: AuditRow) -> dict[str, str]:
    return {
        "delegates": f"{row.delegates}",
        "operators on the CPU": f"{len(row.cpu)}",
        "bytes of DDR": f"{row.ddr.read + row.ddr.written:,}",
    }


def cells_of(row: AuditRow) -> dict[str, str]:
    """Return for each operator how many run on HTP, and how many stay on the CPU."""
    cpu = Counter(operator.operator for operator in row.cpu)
    cells = {}
    for name in {*row.delegated, *cpu}:
        parts = []
        if name in row.delegated:
            parts.append(f"{row.delegated[name]} htp")
        if name in cpu:
            parts.append(f"{cpu[name]} cpu")
        cells[name] = ", ".join(parts)
    return cells


def _cpu_lines(rows: Mapping[str, AuditRow]) -> Iterator[str]:
    """Yield each operator on the CPU with its precisions. Operators with the same fix are followed by it."""
    schemes_of: dict[tuple[str, str, str, bool, str], list[str]] = {}
    for scheme, row in rows.items():
        for operator in row.cpu:
            # An .onnx has the lines of its code only if its exporter wrote them.
            where = f" at {operator.source} `{operator.code}`" if operator.source else f" {operator.node}"
            key = (operator.operator, where, operator.reason, operator.kernel, str(operator.fix))
            schemes = schemes_of.setdefault(key, [])
            if scheme not in schemes:
                schemes.append(scheme)
    if schemes_of:
        yield "on the CPU"
    messages: dict[str, list[str]] = {}
    for (name, where, reason, kernel, suggestion), schemes in schemes_of.items():
        lacks = "" if kernel else "; ExecuTorch has no CPU kernel of it: the program will not run"
        message = f"  {name}{where} ({', '.join(schemes)}): {reason}{lacks}"
        messages.setdefault(suggestion, []).append(message)
    for suggestion, lines in messages.items():
        yield from lines
        if suggestion:
            yield f"    → {suggestion}"
