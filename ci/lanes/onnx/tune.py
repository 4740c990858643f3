"""`tune` of an .onnx: scores by ONNX Runtime on the CPU, programs by the steps of `compile`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ci.engine.work import Result
from ci.lanes.onnx.compile import PROGRAM
from ci.lanes.onnx.suite import OnnxProgram
from ci.lanes.onnx.user_program import OneModelStep, plan_of_model
from ci.pipeline.cached_steps import require_done, run_cached_step
from ci.pipeline.divergence import FOREVER
from ci.pipeline.options import OneModel
from ci.pipeline.precision import precision_named

PYTHON = '''\
"""{comment}"""

import onnx
from onnxruntime.quantization import QuantType

PRECISION = {{"activation_type": QuantType.{activations}, "weight_type": QuantType.{weights}}}
NODES = {nodes}
"""By the type of their outputs; None: in float."""


def settings(model: onnx.ModelProto) -> dict:
    """More arguments of get_qnn_qdq_config, for the model that qnn_preprocess_model gives."""
    kinds = {{name: kind for kind, names in NODES for name in names}}
    found = [(node, kinds[node.name]) for node in model.graph.node if node.name in kinds]
    tensors = [(name, kind) for node, kind in found if kind for name in node.output]
    types = {{name: [{{"quant_type": QuantType[kind]}}] for name, kind in tensors}}
    return {{
        **PRECISION,
        "init_overrides": types,
        "nodes_to_exclude": [node.name for node, kind in found if not kind] or None,
    }}
'''


@dataclass(frozen=True, kw_only=True)
class ScoresOfOne(OneModelStep):
    """What each group of operators loses at the program's precision and at `exact`."""

    kind = "onnx-scores"
    title = "scores"
    keeps_files = False

    exact: str
    seconds: float

    function = f"{PROGRAM}:scored"

    def options(self, program: OnnxProgram) -> dict[str, Any]:
        return {"name": "model_qdq", "exact": self.exact, "seconds": self.seconds}

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        """What the time ended is no score for `tune`."""
        return not result.facts.get("left")


def scores_of(
    model: OneModel, program: OnnxProgram, exact: str, seconds: float = FOREVER
) -> Mapping[str, Any]:
    step = ScoresOfOne(plan_of_model(model, program), exact=exact, seconds=seconds)
    return require_done(run_cached_step(step, [program])[program.name]).facts


def in_python(precision: str, nodes: Mapping[str, Sequence[str]], comment: str) -> str:
    """The same for a script that quantizes by itself."""
    default = precision_named(precision)
    listed = [[precision_named(name).activations or None, list(members)] for name, members in nodes.items()]
    text = json.dumps(listed, indent=4).replace("null", "None")
    types = {"activations": default.activations, "weights": default.weights}
    return PYTHON.format(comment=comment, nodes=text, **types)
