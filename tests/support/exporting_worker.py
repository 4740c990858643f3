"""Exports as the lane does; in place of a compile, it says where the exported nodes come from.

It quantizes a model that has annotations, without calibrating it, and imports `late` if the suite has such a
module."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.lanes.executorch.export import ChipModel, cases
from ci.lanes.executorch.orders import ChipProgram
from ci.lanes.executorch.quantization import prepared_model
from ci.lanes.executorch.worker import export as export
from ci.lanes.executorch.worker import model_task
from ci.lanes.executorch.worker import prepare as prepare
from ci.models.model_lines import source_of
from tests.support.lowering import compiled_as


@dataclass(frozen=True)
class Request:
    into: Path


def _compile(chip_model: ChipModel, request: Request) -> ChipProgram:
    (request.into / "program.pte").write_text("a program")
    if chip_model.run.annotations:
        prepared_model(replace(chip_model, calibrating=()))
    if importlib.util.find_spec("late"):
        importlib.import_module("late")
    return compiled_as()


_answer = model_task(Request, _compile)


def compiled(order: dict[str, Any]) -> dict[str, object]:
    (_, program), *_ = cases[0]._programs
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return {**_answer(order), "places": {node.name: source_of(node)[0] for node in nodes}}
