"""Exports as the lane does; in place of a compile, it says where the exported nodes come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ci.lanes.executorch.worker import prepare
from ci.work.plain import to_json
from tests.support.lowering import compiled_as

__all__ = ["prepare"]


def compiled(order: dict[str, Any]) -> dict[str, Any]:
    from ci.lanes.executorch.export import cases
    from ci.models.model_lines import source_of

    (Path(order["into"]) / "program.pte").write_text("a program")
    (_, program), *_ = cases[0]._programs
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return {**to_json(compiled_as()), "places": {node.name: source_of(node)[0] for node in nodes}}
