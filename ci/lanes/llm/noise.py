"""What rounding alone costs a checkpoint: transformers' own model with the scheme's integers, never the
compiled graph, whose mistakes would hide in it. For workers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ci.lanes.llm.arrays import Array
from ci.lanes.llm.graphs import FAR, MARGIN
from provisioning.base.errors import CheckFailed

BITS, WEIGHT_BITS, CACHE_BITS = 16, 8, 8
"""Of activations, weights, and keys and values, in u16u8 as `compile` makes it."""
ATTENTION = "qnn_ci_rounded"


class Rounding:
    """Values pass while their ranges are seen, and then as integers of these ranges."""

    def __init__(self) -> None:
        self.ranges: dict[str, tuple[float, float]] = {}
        self.seen = False

    def __call__(self, name: str, values: Tensor, bits: int = BITS, *, cache: bool = False) -> Tensor:
        if self.seen:
            return rounded(values, *self.ranges[name], bits)
        low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
        if cache:
            high = max(-low, high) * MARGIN
            low = -high
        known = self.ranges.get(name, (low, high))
        self.ranges[name] = min(low, known[0]), max(high, known[1])
        return values


def rounded(values: Tensor, low: float, high: float, bits: int) -> Tensor:
    most = 2**bits - 1
    scale = max(high - low, 1e-9) / most
    zero = round(-low / scale)
    integers: Tensor = ((values / scale).round() + zero).clamp(0, most)
    return (integers - zero) * scale


def in_four_bits(weight: Tensor) -> Tensor:
    """With a scale for each channel, around zero."""
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-9) / 7.5
    return (weight / scale).round().clamp(-8, 7) * scale


def rounded_logits(
    reference: Any, rows: Sequence[Sequence[int]], *, four_bits: bool = False
) -> tuple[list[Array], list[Array]]:
    """Float's logits of rows, and those with everything rounded. `reference` is not float's afterwards.
    `four_bits` are of the layers' matrices."""
    from transformers import AttentionInterface
    from transformers.activations import SiLUActivation
    from transformers.modeling_layers import GradientCheckpointingLayer

    rounding = Rounding()
    AttentionInterface.register(ATTENTION, functools.partial(_attention, rounding))
    reference.config._attn_implementation = ATTENTION

    def after(name: str, _module: Any, _inputs: Any, output: Tensor) -> Tensor:
        return rounding(name, output)

    def before(name: str, _module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (rounding(f"{name} input", inputs[0]), *inputs[1:])

    linear: dict[str, Any] = {}
    for name, module in reference.named_modules():
        if isinstance(module, nn.Linear):
            linear[name] = module
            module.register_forward_pre_hook(functools.partial(before, name))
        if isinstance(module, nn.Linear | nn.Embedding | GradientCheckpointingLayer):
            module.register_forward_hook(functools.partial(after, name))
        elif type(module).__name__.endswith("Norm"):
            module.register_forward_hook(functools.partial(_norm, rounding, name))
        elif isinstance(module, nn.SiLU | SiLUActivation):
            module.register_forward_hook(functools.partial(_silu, rounding, name))
    with torch.no_grad():
        exact = [_logits(reference, row) for row in rows]
        for name, module in linear.items():
            weight = module.weight
            module.weight = nn.Parameter(
                in_four_bits(weight)
                if four_bits and name != "lm_head"
                else rounded(
                    weight, min(0.0, float(weight.min())), max(0.0, float(weight.max())), WEIGHT_BITS
                )
            )
        rounding.seen = True
        return exact, [_logits(reference, row) for row in rows]


def _logits(reference: Any, row: Sequence[int]) -> Array:
    result: Array = reference(torch.tensor([list(row)]), use_cache=False).logits[0].numpy()
    return result


def _norm(rounding: Rounding, name: str, module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Step by step: a square has the widest range of all."""
    llama = hasattr(module, "variance_epsilon")
    eps, weight = (module.variance_epsilon, module.weight) if llama else (module.eps, 1 + module.weight)
    x = rounding(f"{name} input", inputs[0])
    squares = rounding(f"{name} squares", x * x)
    mean = rounding(f"{name} mean", squares.mean(-1, keepdim=True) + eps)
    quotient = rounding(f"{name} quotient", x / rounding(f"{name} root", mean.sqrt()))
    result = rounding(name, quotient * rounding(f"{name} weight", weight))
    if not rounding.seen and not torch.allclose(
        result, output, rtol=1e-3, atol=1e-4 * float(output.abs().max())
    ):
        raise CheckFailed(
            f"{name}: not the norm that is rounded here", fix="report it, with the checkpoint's config.json"
        )
    return result


def _silu(rounding: Rounding, name: str, _module: Any, inputs: tuple[Tensor, ...], _output: Tensor) -> Tensor:
    gate = inputs[0]
    return rounding(name, gate * rounding(f"{name} sigmoid", torch.sigmoid(gate)))


def _attention(
    rounding: Rounding,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' own, where no cache is used. Hidden places are far away as Genie has them, which the
    range of the scores must hold, too."""
    name = f"layer {module.layer_idx}"
    query = rounding(f"{name} query", query)
    # What is computed has integers of its own first.
    key = rounding(f"{name} keys", rounding(f"{name} new keys", key), CACHE_BITS, cache=True)
    value = rounding(f"{name} values", value, CACHE_BITS, cache=True)
    each, count = query.shape[1] // key.shape[1], query.shape[2]
    key, value = key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)
    scores = rounding(f"{name} products", query @ key.transpose(2, 3)) * scaling
    hidden = torch.full((count, count), FAR).triu(1)
    weights = torch.softmax(rounding(f"{name} scores", scores + hidden), -1)
    mixed = rounding(f"{name} mixed", rounding(f"{name} weights", weights) @ value)
    return mixed.transpose(1, 2).contiguous(), None
