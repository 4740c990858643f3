"""A PyTorch model with every rewrite that it needs: exported, rewritten, proved on the CPU, and saved."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node
from torch.nn.utils import parametrize

from ci.lanes.executorch import REWRITTEN, SAMPLES
from ci.lanes.executorch.export import exported_case
from ci.lanes.executorch.rewrites import INPUTS, REWRITES, WEIGHTS, retyped
from ci.lanes.executorch.rewriting import Exported, NodeMatch, Tensors
from ci.lanes.executorch.suite import ExecutorchCase, ExecutorchRun
from ci.pipeline.models.arrays import Array
from ci.pipeline.models.factory import REMOVED_BY, computed_weights, is_quantized, run_copied
from ci.pipeline.models.inputs import as_files
from ci.pipeline.models.model_lines import source_of
from ci.pipeline.models.user_model import BadFactory
from ci.pipeline.rewriting import Need, Repaired


def rewritten(
    case: ExecutorchCase,
    run: ExecutorchRun,
    search_path: Path,
    into: Path,
    needs: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Write the model with every rewrite that is needed, matches and is proved, and samples for it."""
    exported = exported_case(case, search_path)
    loaded = exported.loaded
    if is_quantized(loaded.model):
        message = "the model is already quantized, but rewrites need a float model"
        raise BadFactory(message, "name the float model")
    compared, calibrating, used = exported.chosen(case, run)
    if not calibrating and not used.given:
        # A quarter of the files is compared: of all that are drawn, as many as here.
        calibrating = loaded.drawn_to_calibrate(3 * len(compared))
    samples = as_files(compared, calibrating)
    repaired = RepairedModule(loaded.model, compared)
    repaired.apply([Need.read(need) for need in needs])
    if repaired.rewritten:
        (into / SAMPLES).mkdir(parents=True)
        samples = [repaired.fed(sample) for sample in samples]
        torch.export.save(repaired.exported(), into / REWRITTEN)
        for number, sample in enumerate(samples):
            torch.save(sample, into / SAMPLES / f"{number:04}.pt")
    return {"changes": [asdict(change) for change in repaired.changes], "compared": len(compared)}


class RepairedModule(Repaired):
    def __init__(self, model: torch.nn.Module, samples: Sequence[Tensors]) -> None:
        super().__init__()
        self.samples, self.kinds = samples, [tensor.dtype for tensor in samples[0]]
        self.weights = computed_weights(model.requires_grad_(False))
        self.wanted = [_arrays(model, sample) for sample in samples]
        self.model = Exported(with_constant_weights(model) if self.weights else model, samples)

    def fed(self, sample: Tensors) -> Tensors:
        return tuple(tensor.to(kind) for tensor, kind in zip(sample, self.kinds, strict=True))

    def exported(self) -> Any:
        return torch.export.export(self.model.module, self.fed(self.samples[0]), strict=True)

    def apply(self, needs: Sequence[Need]) -> None:
        for need in needs:
            if need.rewrite == WEIGHTS:
                for name, call in self.weights.items():
                    self.note(replace(need, words=call), (name, "", ""))
            elif need.rewrite in INPUTS:
                self._retype(need)
            else:
                # The table has rewrites that are another lane's.
                for find in REWRITES.get(need.rewrite, ()):
                    if matches := list(find(self.model)):
                        self.rewrite(need, matches)
                        self.model.settle()
        if self.rewritten:
            found = [_arrays(self.model.module, self.fed(sample)) for sample in self.samples]
            self.judge(self.wanted, found)

    def place_of(self, node: Node) -> tuple[str, str, str]:
        return node.name, *source_of(node)

    def put(self, match: NodeMatch, need: Need) -> None:
        self.model.put(match, self.model.proved(match, need))

    def _retype(self, need: Need) -> None:
        places = self.model.module.graph.find_nodes(op="placeholder")
        for node in retyped(self.model, need.rewrite):
            kind = INPUTS[need.rewrite][1]
            if not need.withheld:
                self.kinds[places.index(node)] = kind
            words = f"pass {node.name} as {str(kind).removeprefix('torch.')}"
            self.note(replace(need, words=words), (f"input {node.name}", "", ""), need.withheld)


def _arrays(model: Any, sample: Tensors) -> list[Array]:
    return [tensor.numpy() for tensor in run_copied(model, sample)]


def with_constant_weights(model: torch.nn.Module) -> torch.nn.Module:
    """A copy whose weights are those that it would compute."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for weight in list(module.parametrizations) if parametrize.is_parametrized(module) else ():
            parametrize.remove_parametrizations(module, weight)
        for hook in list(module._forward_pre_hooks.values()):
            if type(hook).__name__ in REMOVED_BY:
                getattr(torch.nn.utils, REMOVED_BY[type(hook).__name__])(module)
    return model.requires_grad_(False)
