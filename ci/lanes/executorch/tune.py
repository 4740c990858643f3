"""`tune` of a PyTorch model: scores by PyTorch, programs by the steps of the suites."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ci.engine.work import Result
from ci.lanes.executorch.compile import Lower
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.lanes.executorch.user_program import plan_of_model, require_done
from ci.pipeline.cached_steps import run_cached_step
from ci.pipeline.divergence import FOREVER
from ci.pipeline.options import OneModel
from ci.results import CachedResults, Key

PYTHON = '''\
"""{comment}"""

from executorch.backends.qualcomm.quantizer.quantizer import ModuleQConfig, QnnQuantizer, QuantDtype
from torchao.quantization.pt2e import MinMaxObserver

NODES = {nodes}


def set_precision(quantizer: QnnQuantizer) -> None:
    """Call it before prepare_pt2e."""
    how = {{"is_conv_per_channel": True, "is_linear_per_channel": True, "act_observer": MinMaxObserver}}
    quantizer.set_default_quant_config(QuantDtype.use_{precision}, **how)
    quantizer.add_discard_nodes(NODES.get("fp16", ()))
    quantizer.set_submodule_qconfig_list(
        [
            (lambda node, names=names: node.name in names, ModuleQConfig(QuantDtype[f"use_{{name}}"], **how))
            for name, names in NODES.items()
            if name != "fp16"
        ]
    )
'''


@dataclass(frozen=True)
class Score(Lower):
    """What each group of operators loses at the program's precision and at `exact`."""

    kind = "scores"
    keeps_files = False
    log_in_folder = ""
    repeats = None

    exact: str
    seconds: float

    @property
    def title(self) -> str:
        return "scores"

    def key(self, program: ExecutorchProgram, results: CachedResults) -> Key:
        return {**super().key(program, results), "scored beside": self.exact}

    def request(self, program: ExecutorchProgram) -> Mapping[str, Any]:
        return {**program.order, "score": self.exact, "seconds": self.seconds}

    def accepts(self, program: ExecutorchProgram, result: Result) -> bool:
        """What the time ended is no score for `tune`."""
        return not result.facts.get("left")


def scores_of(
    model: OneModel, program: ExecutorchProgram, exact: str, seconds: float = FOREVER
) -> Mapping[str, Any]:
    plan = plan_of_model(model, "tune", [program])
    return require_done(program, plan, run_cached_step(Score(plan, exact, seconds), [program])).facts


def in_python(precision: str, nodes: Mapping[str, Sequence[str]], comment: str) -> str:
    """The same for a script that quantizes by itself."""
    listed = {name: list(members) for name, members in nodes.items()}
    return PYTHON.format(comment=comment, nodes=json.dumps(listed, indent=4), precision=precision)
