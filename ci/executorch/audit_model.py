"""`audit`: how much of a model HTP takes at each precision, proved by compiling every partition."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci.engine.installed import ready_environment, ready_runner
from ci.engine.work import Result
from ci.executorch.compile import PROGRAM, Settings, basis_of, compile_programs
from ci.executorch.judge import failure_in_words, suggestion_for
from ci.executorch.one_model import program_named
from ci.executorch.profile import measure
from ci.suites.baseline import Baseline
from provisioning.base.files import write_named
from provisioning.base.settings import DEFAULT_TARGET, selection_of
from provisioning.components import QNN_SDK
from provisioning.environment import Environment

SCHEMA = 1
QUANTIZERS = "quantized_decomposed."
FAILED = "does not compile"


def run(args: argparse.Namespace, schemes: Sequence[str]) -> int:
    selection = replace(selection_of(args), target=DEFAULT_TARGET)
    programs = {
        scheme: program_named(args.model, scheme, selection.soc, selection)
        for scheme in dict.fromkeys(schemes)
    }
    runner = ready_runner(os.environ, selection.reports) if args.measure else None
    found = ready_environment(selection, os.environ)
    settings = Settings(
        selection.store,
        Path(selection.reports).absolute() / "audit",
        jobs=args.jobs,
        timeout=args.timeout,
        keep_going=True,
    )
    results = compile_programs(
        list(programs.values()),
        found,
        os.environ,
        settings,
        basis_of(found.root(QNN_SDK).path, selection.store),
        lambda program: Baseline(program.suite, {}),
    )
    rows: dict[str, dict[str, Any]] = {}
    for scheme, program in programs.items():
        result = results[program.name]
        if result.failure:
            message, remedy = failure_in_words(program, result.failure)
            rows[scheme] = {"error": message, "remedy": remedy}
        else:
            rows[scheme] = _facts(result)
            if runner:
                rows[scheme]["measured"] = _measured(runner, result, found, args.timeout)
    body = {"schema": SCHEMA, "model": args.model, "soc": selection.soc, "precisions": rows}
    if args.json:
        write_named(args.json, json.dumps(body, indent=2) + "\n")
    print("\n".join(as_text(rows)))
    broken = any("error" in row or any(not each["kernel"] for each in row["cpu"]) for row in rows.values())
    return int(broken)


def _facts(result: Result) -> dict[str, Any]:
    facts = result.facts
    kept = facts["kept_on_cpu"]
    delegated = Counter(
        each["operator"]
        for each in facts["nodes"].values()
        if not each["operator"].startswith(QUANTIZERS) and each["operator"] != "getitem"
    )
    return {
        "delegated": dict(delegated),
        "cpu": [
            {**each, "suggestion": suggestion_for(each["operator"], each["code"])} for each in facts["left"]
        ],
        "delegates": facts["delegates"],
        "ddr": facts["ddr"],
        "kept_on_cpu": kept and {"because": kept["because"], "cpu_nodes": kept["nodes"]},
    }


def _measured(runner: Path, result: Result, found: Environment, timeout: float) -> dict[str, Any]:
    assert result.folder is not None
    inputs = [result.folder / row["file"] for row in result.facts["inputs"][0]]
    environment = {**found.merged(os.environ), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="qnn-ci-audit-") as scratch:
        measured = measure(
            runner, result.folder / PROGRAM, inputs, result.facts, Path(scratch), environment, timeout
        )
    return {
        "milliseconds": round(sum(each.milliseconds for each in measured.cpu), 3),
        "share": sum(each.share for each in measured.cpu),
    }


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
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    yield from _on_cpu(compiled)
    for scheme, row in rows.items():
        if "error" in row:
            yield f"{scheme}: {row['error']}"
            yield f"  → {row['remedy']}"
        elif kept := row["kept_on_cpu"]:
            nodes = ", ".join(f'"{name}"' for name in kept["cpu_nodes"])
            yield f"{scheme}: {kept['because']}"
            yield f"  → kept on the CPU here: cpu_nodes = [{nodes}]"


def _costs(row: Mapping[str, Any]) -> dict[str, str]:
    costs = {
        "delegates": f"{row['delegates']}",
        "operators on the CPU": f"{len(row['cpu'])}",
        "bytes of DDR": f"{row['ddr']['read'] + row['ddr']['written']:,}",
    }
    if measured := row.get("measured"):
        costs["time on the CPU"] = f"{measured['milliseconds']:g} ms, {measured['share']:.1%}"
    return costs


def cells_of(row: Mapping[str, Any]) -> dict[str, str]:
    """By operator: how many run on HTP, and how many stay on the CPU."""
    cpu = Counter(each["operator"] for each in row["cpu"])
    cells = {}
    for name in {*row["delegated"], *cpu}:
        parts = [f"{row['delegated'][name]} htp"] if name in row["delegated"] else []
        cells[name] = ", ".join([*parts, f"{cpu[name]} cpu"] if cpu[name] else parts)
    return cells


def _on_cpu(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    found: dict[tuple[str, str, str, str, bool, str], list[str]] = {}
    for scheme, row in rows.items():
        for each in row["cpu"]:
            key = (
                each["operator"],
                each["source"],
                each["code"],
                each["reason"],
                each["kernel"],
                each["suggestion"],
            )
            schemes = found.setdefault(key, [])
            if scheme not in schemes:
                schemes.append(scheme)
    if found:
        yield "on the CPU"
    for (operator, source, code, reason, kernel, suggestion), schemes in found.items():
        where = f" at {source} `{code}`" if source else ""
        lacks = "" if kernel else "; ExecuTorch has no CPU kernel of it: the program will not run"
        yield f"  {operator}{where} ({', '.join(schemes)}): {reason}{lacks}"
        if suggestion:
            yield f"    → {suggestion}"
