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
"""It has a row for each precision."""


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
    tables = {scheme: cells_of(row) for scheme, row in compiled.items()}
    names = sorted(
        {name for cells in tables.values() for name in cells},
        key=lambda name: (all("cpu" not in cells.get(name, "") for cells in tables.values()), name),
    )
    lines = [("operator", *rows)]
    for name in names:
        cells = [tables[scheme].get(name, "-") if scheme in tables else FAILED for scheme in rows]
        lines.append((name, *cells))
    costs = {scheme: _costs(row) for scheme, row in compiled.items()}
    titles = dict.fromkeys(title for cells in costs.values() for title in cells)
    for title in titles:
        lines.append((title, *(costs.get(scheme, {}).get(title, "") for scheme in rows)))
    yield from align(lines)
    yield from _cpu_lines(compiled)
    errors: dict[tuple[str, str], list[str]] = {}
    for scheme, row in rows.items():
        if isinstance(row, NoProgram):
            errors.setdefault((row.error, row.fix), []).append(scheme)
    for (error, fix), schemes in errors.items():
        yield f"{', '.join(schemes)}: {error}"
        yield f"  → {fix}"
    for scheme, compiled_row in compiled.items():
        if fallback := compiled_row.kept_on_cpu:
            nodes = ", ".join(f'"{name}"' for name in fallback.cpu_nodes)
            yield f"{scheme}: {fallback.because}"
            yield f"  → kept on the CPU here: cpu_nodes = [{nodes}]"


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
        parts = [f"{row.delegated[name]} htp"] if name in row.delegated else []
        cells[name] = ", ".join([*parts, f"{cpu[name]} cpu"] if cpu[name] else parts)
    return cells


def _cpu_lines(rows: Mapping[str, AuditRow]) -> Iterator[str]:
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
