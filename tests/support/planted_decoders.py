"""`python -m tests.support.planted_decoders FAULT ORDER` compiles a checkpoint with a fault in it."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ci.lanes.llm.orders import GENIE, RECORD, CompileOrder, Record

PARTS, LAYER, FIRST = 4, "1", "0"


def backwards(decoder: Any) -> None:
    """The rope of one layer turns the other way."""
    layer = decoder.layers[LAYER]
    right = layer.forward
    layer.forward = lambda x, mask, cos, sin, *cache: right(x, mask, cos, -sin, *cache)


def other_group(decoder: Any) -> None:
    """Queries read the keys and values of the other group of heads."""
    size = decoder.shape.head_dim
    for projection in (decoder.layers[LAYER].self_attn.k_proj, decoder.layers[LAYER].self_attn.v_proj):
        _set(projection, projection.weight.roll(size, 0))


def swapped_gate(decoder: Any) -> None:
    mlp = decoder.layers[FIRST].mlp
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj


def norm_without_weight(decoder: Any) -> None:
    import torch

    norm = decoder.layers[FIRST].post_attention_layernorm
    norm.weight = torch.nn.Parameter(torch.ones_like(norm.weight) * norm.weight.mean())


def without_residual(decoder: Any) -> None:
    """What goes around one layer's attention is lost."""
    layer = decoder.layers[LAYER]
    before, after, before_mlp, after_mlp = (getattr(layer, name, lambda x: x) for name in layer.norms)

    def forward(x: Any, mask: Any, cos: Any, sin: Any, *cache: Any) -> Any:
        y, k, v = layer.self_attn(before(x), mask, cos, sin, *cache)
        y = after(y)
        return y + after_mlp(layer.mlp(before_mlp(y))), k, v

    layer.forward = forward


def gelu(decoder: Any) -> None:
    from torch.nn.functional import gelu

    for layer in decoder.layers.values():
        mlp = layer.mlp
        mlp.forward = lambda x, mlp=mlp: mlp.down_proj(gelu(mlp.gate_proj(x)) * mlp.up_proj(x))


def scaled_embedding(decoder: Any) -> None:
    if decoder.has_embedding:
        _set(decoder.embed_tokens, decoder.embed_tokens.weight * 1.5)


def rolled_head(decoder: Any) -> None:
    """Each word's logit is that of the word before it."""
    if decoder.has_head:
        _set(decoder.lm_head, decoder.lm_head.weight.roll(1, 0))


def keys_one_place_on(decoder: Any) -> None:
    """One layer's keys are rotated as those of the next token: first by one place, then by their own."""
    import numpy as np
    import torch

    attention, shape = decoder.layers[LAYER].self_attn, decoder.shape
    cos, sin = (torch.from_numpy(table[0])[:, None] for table in shape.rotation(np.arange(1, 2)))
    heads = attention.k_proj.weight.view(shape.num_kv_heads, 2, shape.head_dim // 2, -1)
    one, other = heads[:, 0], heads[:, 1]
    turned = torch.stack((one * cos - other * sin, other * cos + one * sin), 1)
    _set(attention.k_proj, turned.reshape(attention.k_proj.weight.shape))


def negated_values(decoder: Any) -> None:
    """Of one head of one layer."""
    projection, size = decoder.layers[LAYER].self_attn.v_proj, decoder.shape.head_dim
    weight = projection.weight.clone()
    weight[:size] *= -1
    _set(projection, weight)


def _set(module: Any, weight: Any) -> None:
    import torch

    module.weight = torch.nn.Parameter(weight.detach().clone())


@dataclass(frozen=True)
class DecoderFault:
    plant: Callable[[Any], None]
    layer: int
    """The first that is wrong."""
    everywhere: bool = False
    """It looks itself which decoders to change."""


FAULTS = {
    "none": DecoderFault(lambda decoder: None, 0, everywhere=True),
    "rope backwards in one layer": DecoderFault(backwards, int(LAYER)),
    "keys and values of the other heads": DecoderFault(other_group, int(LAYER)),
    "gate and up projection swapped": DecoderFault(swapped_gate, int(FIRST)),
    "a norm without its weight": DecoderFault(norm_without_weight, int(FIRST)),
    "one layer's residual dropped": DecoderFault(without_residual, int(LAYER)),
    "GELU in place of SiLU": DecoderFault(gelu, 0, everywhere=True),
    "embedding scaled by 1.5": DecoderFault(scaled_embedding, 0, everywhere=True),
    "rows of the head one off": DecoderFault(rolled_head, PARTS - 1, everywhere=True),
    "one layer's keys one place on": DecoderFault(keys_one_place_on, int(LAYER)),
    "one head's values negated": DecoderFault(negated_values, int(LAYER)),
}
IN_MODULES = ("rope backwards in one layer", "one layer's residual dropped", "GELU in place of SiLU")
"""Faults that are no weights, so that a copy of the weights lacks them."""


def planting(fault: str, right: Callable[..., Any]) -> Callable[..., Any]:
    def planted(*arguments: Any) -> Any:
        import torch

        decoder, planted_fault = right(*arguments), FAULTS[fault]
        if planted_fault.everywhere or str(planted_fault.layer) in decoder.layers:
            with torch.no_grad():
                planted_fault.plant(decoder)
        return decoder

    return planted


def compile_with(fault: str, order: CompileOrder) -> None:
    from ci.lanes.llm import decoder
    from ci.lanes.llm.stage import source_of
    from provisioning.base.settings import store_path

    out = Path(order.into)
    out.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        planted = planting(fault, decoder.load_decoder)
        if order.through == GENIE:
            from ci.lanes.llm import contexts

            patch.setattr(contexts, "load_decoder", planted)
            contexts.compile_checkpoint(order)
        else:
            from ci.lanes.llm import programs

            patch.setattr(programs, "load_decoder", planted)
            patch.setattr(programs, "resized", functools.partial(planted_copy, fault))
            programs.compile_checkpoint(order)
    record = Record(order=order, size=1, source=source_of(order, store_path()), files={})
    (out / RECORD).write_text(record.as_text())


def planted_copy(fault: str, whole: Any, count: int) -> Any:
    from ci.lanes.llm.decoder import resized

    copy = resized(whole, count)
    if fault in IN_MODULES:
        FAULTS[fault].plant(copy)
    return copy


if __name__ == "__main__":
    from ci.lanes.llm import worker
    from ci.plain import read

    asked = read(CompileOrder, json.loads(sys.argv[2]))
    (worker.generate if asked.through == GENIE else worker.lower)()
    compile_with(sys.argv[1], asked)
