"""`audit` of an .onnx: at each precision the provider compiles what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci.engine.work import Failure
from ci.lanes.onnx.graph import RECIPROCAL, RECIPROCAL_FIX, GraphProblem, load_graph
from ci.lanes.onnx.orders import precision_of, search_path
from ci.lanes.onnx.suite import OnnxProgram
from ci.lanes.onnx.user_program import mixed, program_of
from ci.operators.onnx_page import inexact_onnx
from ci.pipeline.cached_steps import require_done
from ci.pipeline.options import OneModel
from ci.pipeline.precision import ONNX_PRECISIONS
from provisioning.base.errors import CheckFailed
from provisioning.fixes import fix_for


def audited(model: OneModel, precisions: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A row of facts for each precision, or for the usual ones."""
    quantized = precision_of(search_path() / model.typed, None) == "qdq"
    names = precisions or (("qdq",) if quantized else ONNX_PRECISIONS)
    return {name: _row(replace(model, precision=name)) for name in dict.fromkeys(names)}


def _row(model: OneModel) -> dict[str, Any]:
    program = program_of(model)
    result = mixed(model, program)
    if failure := result.failure:
        if problems := failure.details.get("problems"):
            return {
                "error": "; ".join(str(GraphProblem(**problem)) for problem in problems),
                "fix": "; ".join(dict.fromkeys(problem["fix"] for problem in problems)),
            }
        if failure.exit_code != CheckFailed.exit_code:
            require_done(result)
        return _error(failure, program)
    facts = result.facts
    cpu = [
        # ONNX Runtime has a CPU kernel of each: without it there would be no session.
        {**row, "kernel": True, "suggestion": str(fix_for(row["operator"], row["code"], row["source"]))}
        for row in facts["cpu"]
    ]
    row: dict[str, Any] = {name: facts[name] for name in ("delegated", "delegates", "ddr")}
    # `compile` refuses a model of which a part would run on the CPU.
    row["warnings"] = [f"{node}: {RECIPROCAL}; {RECIPROCAL_FIX}" for node in facts["reciprocals"]]
    row |= {"cpu": cpu, "kept_on_cpu": None, "usable": not cpu}
    # What is known not to compile does, as it was compiled here.
    row["inexact"] = [row for row in _inexact(facts["delegated"], program) if row["compiles"]]
    return row


def _error(error: Failure, program: OnnxProgram) -> dict[str, Any]:
    """With the operators that are known to fail."""
    nodes = load_graph(Path(program.case.model)).graph.node
    known = _inexact({node.op_type for node in nodes}, program)
    return {"error": error.message, "fix": error.fix, **({"inexact": known} if known else {})}


def _inexact(operators: Iterable[str], program: OnnxProgram) -> list[dict[str, Any]]:
    return [row._asdict() for row in inexact_onnx(operators, program.run.kind, program.soc)]
