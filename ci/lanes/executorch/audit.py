"""`audit` of a PyTorch model: every partition is compiled at each precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ci.artifacts.compiler_log import OF_INTEGERS, REFUSES
from ci.engine.work import Result
from ci.lanes.executorch.compile import compile_programs
from ci.lanes.executorch.user_program import plan_of_model, program_of, pytorch_model, require_done
from ci.operators.faults import shown_by_inputs
from ci.operators.table import inexact, operators_in
from ci.pipeline.options import OneModel
from provisioning.base.errors import CheckFailed
from provisioning.fixes import fix_for

SCHEMES = ("fp16", "8a8w", "16a8w", "16a4w")
QUANTIZERS = "quantized_decomposed."
IN_FLOAT = "compute it in float, if it need not be exact: cast its inputs with .float()"


def audited(model: OneModel, precisions: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A row of facts for each precision, or for the usual ones."""
    selection, usual = model.selection, ("qdq",) if pytorch_model(model).quantized else SCHEMES
    every = [program_of(replace(model, precision=name)) for name in precisions or usual]
    programs = {program.run.precision: program for program in every}
    model = replace(model, work=replace(model.work, keep_going=True))
    plan = plan_of_model(model, "audit", list(programs.values()))
    results = compile_programs(plan)
    rows: dict[str, dict[str, Any]] = {}
    for scheme, program in programs.items():
        try:
            result = require_done(program, plan, results)
        except CheckFailed as error:
            rows[scheme] = {"error": error.message, "fix": error.fix}
            continue
        rows[scheme] = row_of(result, scheme, selection.soc)
        shown = shown_by_inputs(result.facts, scheme, selection.soc, plan.basis.build_id)
        rows[scheme]["warnings"] = [met.warning for met in shown]
    suggest_precisions(rows, selection.soc)
    return rows


def row_of(result: Result, scheme: str, soc: str) -> dict[str, Any]:
    known = inexact(operators_in(result.facts["nodes"]), scheme, soc)
    # What is known not to compile does, as it was compiled here.
    return {**_facts(result), "inexact": [row._asdict() for row in known if row.compiles]}


def suggest_precisions(rows: Mapping[str, Mapping[str, Any]], soc: str) -> None:
    """Of what is refused for its types: a precision at which this audit saw the chip take all of it."""
    for row in rows.values():
        for left in row.get("cpu", ()):
            reason, operator = left["reason"], left["operator"]
            # What is refused for its shape, and not for its types, has no better precision.
            if left["suggestion"] or not reason.startswith(REFUSES) or "datatypes" not in reason:
                continue
            taken = next((name for name, other in rows.items() if _takes(other, operator)), "")
            another = f"--precision {taken}, at which {soc} takes each {operator} here" if taken else ""
            left["suggestion"] = IN_FLOAT if OF_INTEGERS in reason else another


def _takes(row: Mapping[str, Any], operator: str) -> bool:
    on_cpu = [left["operator"] for left in row.get("cpu", ())]
    return operator in row.get("delegated", ()) and operator not in on_cpu


def _facts(result: Result) -> dict[str, Any]:
    facts = result.facts
    kept = facts["kept_on_cpu"]
    return {
        "delegated": dict(Counter(operators_of(facts))),
        "cpu": [
            {
                **row,
                "suggestion": str(fix_for(row["operator"], row["code"], row["source"], reason=row["reason"])),
            }
            for row in facts["left"]
        ],
        "usable": all(row["kernel"] for row in facts["left"]),
        "delegates": facts["delegates"],
        "ddr": facts["ddr"],
        "kept_on_cpu": kept and {"because": kept["because"], "cpu_nodes": kept["nodes"]},
    }


def operators_of(facts: Mapping[str, Any]) -> list[str]:
    """The operators on HTP, once for each node."""
    names = (node["operator"] for node in facts["nodes"].values())
    return [name for name in names if not name.startswith(QUANTIZERS) and name != "getitem"]
