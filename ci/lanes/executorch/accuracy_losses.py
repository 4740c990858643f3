"""The operators at which a quantized model loses accuracy: each output compared with the float model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node
from torch.utils._python_dispatch import TorchDispatchMode

from ci.lanes.executorch.values import values_of
from ci.operators.partition.decisions import module_of
from ci.pipeline.accuracy import USUAL_OF_FLOAT_DB, Pair, Unusable, compared, least_sqnr_db
from ci.pipeline.losses import HALF_MOST, losses_of
from ci.pipeline.models.factory import copied
from ci.pipeline.models.model_lines import source_of
from ci.pipeline.models.user_model import BadFactory
from provisioning.base.units import decibels


def figures_in_torch(
    expected: Sequence[Sequence[Tensor]], reference: Sequence[Sequence[Tensor]], non_finite: bool
) -> dict[str, Any]:
    """How near the quantized model's outputs are to the float model's, both computed by PyTorch."""
    pairs = [
        Pair(f"output {index} of inference {number}", wanted.numpy(), value.numpy(), index)
        for number, (floats, values) in enumerate(zip(expected, reference, strict=True))
        for index, (wanted, value) in enumerate(zip(floats, values, strict=True))
    ]
    try:
        figures, slices = compared(pairs, non_finite=non_finite)
    except Unusable as error:
        raise BadFactory(str(error), "give samples of which the float model's outputs are numbers") from error
    return {"figures": figures, "slices": slices}


def outputs_of(graph: Any, sample: Sequence[Tensor]) -> dict[str, Tensor]:
    """Every node's output of floats, by name."""
    values = values_of(graph, sample).items()
    return {
        node.name: value for node, value in values if isinstance(value, Tensor) and value.is_floating_point()
    }


MASKS = ("aten.masked_fill", "aten.where")
"""Their numbers of any size are meant to be infinite."""


class _InHalf(Interpreter):
    """A float model of which what leaves fp16 is infinite."""

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        return value.half().to(value.dtype) if _beyond(value) else value


class _Largest(TorchDispatchMode):
    beyond = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.beyond = self.beyond or any(map(_beyond, torch.utils._pytree.tree_leaves(result)))
        return result


def _beyond(value: object) -> bool:
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
        return False
    return bool(((value.abs() > HALF_MOST) & value.isfinite()).any())


def beyond_half(model: Any, samples: Sequence[tuple[Tensor, ...]]) -> list[dict[str, object]]:
    """The operators of a float model whose outputs leave fp16, while their inputs do not, each with its line
    and its largest value; none where the model's outputs are the same without what leaves it."""
    with torch.no_grad(), _Largest() as largest:
        for sample in samples:
            model(*copied(sample))
    if not largest.beyond:
        return []
    graph: Any = torch.export.export(model, copied(samples[0]), strict=True).module()
    if all(_same_in_half(graph, sample) for sample in samples):
        return []
    found: dict[str, dict[str, object]] = {}
    for sample in samples:
        outputs = outputs_of(graph, sample)
        for node in graph.graph.nodes:
            operands = [outputs.get(operand.name) for operand in node.all_input_nodes]
            if (
                node.op != "call_function"
                or not operands
                or str(node.target).startswith(MASKS)
                or not _beyond(outputs.get(node.name))
                or any(map(_beyond, operands))
            ):
                continue
            value = outputs[node.name]
            most = float(value[value.isfinite()].abs().max())
            earlier = found.get(node.name, {"largest": 0.0})
            found[node.name] = {**described(node), "largest": max(most, float(str(earlier["largest"])))}
    return [*found.values()]


def _same_in_half(graph: Any, sample: tuple[Tensor, ...]) -> bool:
    """As where the least value masks a softmax."""
    both = (torch.utils._pytree.tree_leaves(run(*copied(sample))) for run in (graph, _InHalf(graph).run))
    pairs = [Pair("", wanted.numpy(), found.numpy()) for wanted, found in zip(*both, strict=True)]
    try:
        return least_sqnr_db(pairs) >= USUAL_OF_FLOAT_DB
    except Unusable:
        return False


def normed(graph: Any) -> dict[str, str]:
    """The convolutions by name, with the batch norm that quantization folds into each."""
    norms = [node for node in graph.nodes if "batch_norm" in str(node.target)]
    return {node.args[0].name: node.name for node in norms if isinstance(node.args[0], Node)}


def worst_losses(
    floats: Mapping[str, Tensor], folded: Mapping[str, str], quantized: Any, sample: Sequence[Tensor]
) -> list[dict[str, Any]]:
    """The operators that add noise, the worst first."""
    ours = outputs_of(quantized, sample)

    def measured(node: Node) -> float | None:
        wanted, value = floats.get(node.name), ours.get(node.name)
        if folded.get(node.name, "") not in ours:
            wanted = floats.get(folded.get(node.name, node.name))
        if node.op != "call_function" or wanted is None or value is None or wanted.shape != value.shape:
            return None
        return decibels(float((wanted.double() ** 2).sum()), float(((value - wanted).double() ** 2).sum()))

    return losses_of(
        quantized.graph.nodes, lambda node: node.name, lambda node: node.all_input_nodes, measured, described
    )


def described(node: Node) -> dict[str, str]:
    source, code = source_of(node)
    return {"operator": str(node.target), "module": module_of(node), "source": source, "code": code}
