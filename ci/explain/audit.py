"""`audit`: operators by precision, then what stays on the CPU, why, and what to write instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ci.artifacts.compiler_log import OF_INTEGERS, REFUSES
from provisioning.base.units import aligned

FAILED = "does not compile"
IN_FLOAT = "compute it in float, if it need not be exact: cast its inputs with .float()"


def fails(row: Mapping[str, Any]) -> bool:
    """Whether a precision gives no program that runs."""
    return "error" in row or not row["usable"]


def as_text(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A table of operators by precision, the cost of the CPU's part, then each operator on the CPU with its
    line."""
    compiled = {scheme: row for scheme, row in rows.items() if "error" not in row}
    tables = {scheme: cells_of(row) for scheme, row in compiled.items()}
    names = sorted(
        {name for cells in tables.values() for name in cells},
        key=lambda name: (all("cpu" not in cells.get(name, "") for cells in tables.values()), name),
    )
    lines = [("operator", *rows)]
    lines += [
        (name, *(tables[scheme].get(name, "-") if scheme in tables else FAILED for scheme in rows))
        for name in names
    ]
    costs = [_costs(row) if scheme in compiled else {} for scheme, row in rows.items()]
    titles = dict.fromkeys(title for cells in costs for title in cells)
    lines += [(title, *(cells.get(title, "") for cells in costs)) for title in titles]
    yield from aligned(lines)
    yield from _on_cpu(compiled)
    for row in rows.values():
        for operator in row.get("inexact", ()):
            yield operator["message"]
            yield f"  → {operator['command']}"
    for scheme, row in compiled.items():
        yield from (f"{scheme}: {warning}" for warning in row.get("warnings", ()))
    errors: dict[tuple[str, str], list[str]] = {}
    for scheme, row in rows.items():
        if "error" in row:
            errors.setdefault((row["error"], row["fix"]), []).append(scheme)
    for (error, fix), schemes in errors.items():
        yield f"{', '.join(schemes)}: {error}"
        yield f"  → {fix}"
    for scheme, row in compiled.items():
        if kept := row["kept_on_cpu"]:
            nodes = ", ".join(f'"{name}"' for name in kept["cpu_nodes"])
            yield f"{scheme}: {kept['because']}"
            yield f"  → kept on the CPU here: cpu_nodes = [{nodes}]"


def _costs(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "delegates": f"{row['delegates']}",
        "operators on the CPU": f"{len(row['cpu'])}",
        "bytes of DDR": f"{row['ddr']['read'] + row['ddr']['written']:,}",
    }


def with_precisions(rows: dict[str, dict[str, Any]], soc: str) -> dict[str, dict[str, Any]]:
    """For what is refused for its types: a precision at which this audit saw the chip take all of it."""
    for row in rows.values():
        for left in row.get("cpu", ()):
            reason, operator = left["reason"], left["operator"]
            # What is refused for its shape, and not for its types, has no better precision.
            if left["suggestion"] or not reason.startswith(REFUSES) or "datatypes" not in reason:
                continue
            better = next((name for name, other in rows.items() if _takes(other, operator)), "")
            another = f"--precision {better}, at which {soc} takes each {operator} here" if better else ""
            left["suggestion"] = IN_FLOAT if OF_INTEGERS in reason else another
    return rows


def _takes(row: Mapping[str, Any], operator: str) -> bool:
    on_cpu = [left["operator"] for left in row.get("cpu", ())]
    return operator in row.get("delegated", ()) and operator not in on_cpu


def cells_of(row: Mapping[str, Any]) -> dict[str, str]:
    """By operator: how many run on HTP, and how many stay on the CPU."""
    cpu = Counter(operator["operator"] for operator in row["cpu"])
    cells = {}
    for name in {*row["delegated"], *cpu}:
        parts = [f"{row['delegated'][name]} htp"] if name in row["delegated"] else []
        cells[name] = ", ".join([*parts, f"{cpu[name]} cpu"] if cpu[name] else parts)
    return cells


def _on_cpu(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    schemes_of: dict[tuple[str, str, str, bool, str], list[str]] = {}
    for scheme, row in rows.items():
        for node in row["cpu"]:
            # An .onnx has the lines of its code only if its exporter wrote them.
            where = f" at {node['source']} `{node['code']}`" if node["source"] else f" {node.get('node', '')}"
            key = (node["operator"], where.rstrip(), node["reason"], node["kernel"], node["suggestion"])
            schemes = schemes_of.setdefault(key, [])
            if scheme not in schemes:
                schemes.append(scheme)
    if schemes_of:
        yield "on the CPU"
    for (operator, where, reason, kernel, suggestion), schemes in schemes_of.items():
        lacks = "" if kernel else "; ExecuTorch has no CPU kernel of it: the program will not run"
        yield f"  {operator}{where} ({', '.join(schemes)}): {reason}{lacks}"
        if suggestion:
            yield f"    → {suggestion}"
