"""Find whether one sample is far from float only because its values leave the ranges that were calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ci.explain.sqnr import sqnr_between
from ci.explain.torch_graph import maker_of, operator_at
from ci.explain.torch_values import Passing, Tensors, values_of
from ci.lanes.executorch.export import ChipModel
from ci.lanes.executorch.orders import JudgedRange, OutsideRange, RangeRequest, SecondComparison
from ci.lanes.executorch.quantization import prepared_model
from ci.models.inference import run_copied
from ci.models.inputs import Array
from ci.suite.accuracy import Pair, compare_with_slices
from ci.suite.figures import CLEARLY_DB
from ci.suite.tensor_files import Inferences, read_pairs

QUANTIZE = torch.ops.quantized_decomposed.quantize_per_tensor.default
DEQUANTIZE = torch.ops.quantized_decomposed.dequantize_per_tensor.default
SHARE_CLIPPED = 1 / 64
"""A value that leaves its range by a smaller share of it is hardly clipped."""


class Unclipped(Passing):
    """Runs a quantized model that rounds its values and clips none."""

    def run_node(self, n: Node) -> Any:
        if n.target not in (QUANTIZE, DEQUANTIZE):
            return super().run_node(n)
        value, scale, zero = self.fetch_args_kwargs_from_env(n)[0][:3]
        return torch.round(value / scale) + zero if n.target is QUANTIZE else (value.float() - zero) * scale


def judge_range(chip_model: ChipModel, request: RangeRequest) -> JudgedRange:
    """Say where the sample leaves the calibrated ranges, if clipping it is what makes it worse than the
    others, and compare the others."""
    module, _ = prepared_model(chip_model).quantized()
    sample = chip_model.compared[request.sample]
    exact = _arrays(chip_model.float_outputs[request.sample])
    clipped_db = sqnr_between(exact, _arrays(run_copied(module, sample)))
    unclipped_db = sqnr_between(exact, _arrays(Unclipped(module).of(sample)))
    outside = outside_range(module, chip_model.compared, request.sample)
    if outside is None or unclipped_db < clipped_db + CLEARLY_DB:
        return JudgedRange(None, None)
    return JudgedRange(outside, _compare_others(request))


def outside_range(module: GraphModule, samples: Sequence[Tensors], number: int) -> OutsideRange | None:
    """Return the operator whose value leaves its range by most, in units of the range; None if another sample
    leaves a range by as much."""
    ratios = [_beyond_ranges(module, sample) for sample in samples]
    own = ratios.pop(number)
    node = max(own, key=lambda node: own[node], default=None)
    if node is None or own[node] <= max((max(row.values(), default=0.0) for row in ratios), default=0.0):
        return None
    maker, low, high = _range_of(node)
    value = values_of(module, samples[number])[maker]
    farthest = float(value.max() if value.max() - high >= low - value.min() else value.min())
    place = operator_at(maker_of(maker))
    return OutsideRange(**asdict(place), sample=number, value=farthest, low=low, high=high)


def _beyond_ranges(module: GraphModule, sample: Tensors) -> Mapping[Node, float]:
    """Map each quantizer whose value leaves its range to how far it does, as a share of the range."""
    beyond = {}
    values = values_of(module, sample)
    for node in module.graph.find_nodes(op="call_function", target=QUANTIZE):
        maker, low, high = _range_of(node)
        value = values[maker]
        if isinstance(value, Tensor) and value.numel():
            farthest = max(float(value.max()) - high, low - float(value.min()))
            # Rounding at an end is no clipping.
            if farthest > SHARE_CLIPPED * (high - low):
                beyond[node] = farthest / (high - low)
    return beyond


def _range_of(quantizer: Any) -> tuple[Node, float, float]:
    """Return the node that is quantized, and its range."""
    node, scale, zero, least, most = quantizer.args[:5]
    return node, (least - zero) * scale, (most - zero) * scale


def _compare_others(request: RangeRequest) -> SecondComparison:
    """Compare the program on all other samples."""

    def pairs(inferences: Inferences) -> list[Pair]:
        rows = list(read_pairs(Path(request.outputs.path), Path(request.compiled.path), inferences))
        size = len(rows) // max(len(inferences), 1)
        begin = request.sample * size
        return [*rows[:begin], *rows[begin + size :]]

    files = request.compared
    exact, reference = pairs(files.expected), pairs(files.reference)
    figures, slices = compare_with_slices(exact, reference, non_finite=files.non_finite)
    return SecondComparison(figures, tuple(slices))


def _arrays(tensors: Sequence[Tensor]) -> list[Array]:
    return [tensor.numpy() for tensor in tensors]
