"""What a model of the Llama family computes: its shape, by family, and how it is cut into parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ci.models.arrays import Array


@dataclass(frozen=True, slots=True)
class Family:
    """What models of a `model_type` compute otherwise than Llama."""

    models: str
    bias: bool = False
    """Of queries, keys and values, whatever config.json says."""
    norms: Literal["", "heads", "whole"] = ""
    """Of queries and keys: of each head, or of all heads at once."""
    layer_norms: tuple[str, str, str, str] = ("input", "", "post_attention", "")
    """Before and after attention, before and after feed-forward, by the checkpoint's names."""
    gemma: bool = False
    """Norms by 1 + weight, a scaled embedding, another activation, and layers with a rope of their own."""
    fused: bool = False
    """Queries, keys and values in one weight, and gate and up in one."""
    partial: bool = False
    """Whether a part of each head may be rotated alone."""
    tied: bool = False
    """Whether the head is the embedding where config.json does not say."""
    windowed: bool = False
    window: int | None = None
    """The sliding window of all layers where config.json does not say."""


FAMILIES = {
    "llama": Family("Llama 3, SmolLM 2"),
    "qwen2": Family("Qwen 2.5", bias=True),
    "qwen3": Family("Qwen 3", norms="heads"),
    "mistral": Family("Mistral", windowed=True, window=4096),
    "smollm3": Family("SmolLM 3", tied=True),
    "phi3": Family("Phi 3 and 4 mini", fused=True, partial=True, windowed=True),
    "olmo2": Family("OLMo 2", norms="whole", layer_norms=("", "post_attention", "", "post_feedforward")),
    "gemma3_text": Family(
        "Gemma 3",
        norms="heads",
        layer_norms=("input", "post_attention", "pre_feedforward", "post_feedforward"),
        gemma=True,
        tied=True,
        windowed=True,
        window=4096,
    ),
}
"""By `model_type`."""
LOCAL = "local_"
"""Begins the names of the inputs with the cosines and sines of layers that have a rope of their own."""
HIDDEN = "hidden"
"""What one part of a model hands to the next is named `hidden_` and the number of the layer."""
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""Of a rope like Llama 3's, by the names of config.json."""


@dataclass(frozen=True, slots=True)
class Architecture:
    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Heads of keys and of values."""
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    """Llama 3's scaling of rotary frequencies, by the names of config.json."""
    tied: bool
    """Whether the output head is the embedding."""
    bias: bool
    """Whether queries, keys and values have a bias."""
    context: int
    """The most tokens that it is right for."""
    bos: int | None
    """The token that begins a text, unless the tokenizer puts none there, as Qwen's."""
    eos: tuple[int, ...]
    rotary_dim: int
    """How much of each head is rotated."""
    rope_magnitude: float
    """Cosines and sines are multiplied by it."""
    score_scale: float
    local: frozenset[int]
    """Layers with a rope of their own."""
    local_theta: float
    """Its base."""
    unrotated: frozenset[int]
    """Layers without a rope."""
    adapter: Path | None
    """What peft saved, to be merged into the weights."""

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def beginning(self) -> tuple[int, ...]:
        return () if self.bos is None else (self.bos,)

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Their shapes, by their names in the checkpoint."""
        width, hidden = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        parts: dict[str, tuple[int, ...]] = {
            **{f"{name}_layernorm.weight": (width,) for name in self.family.layer_norms if name},
            "mlp.down_proj.weight": (width, hidden),
            "self_attn.o_proj.weight": (width, queries),
        }
        for whole, rows in self._fused.items():
            every = {whole: sum(rows.values())} if self.family.fused else rows
            parts |= {f"{name}.weight": (count, width) for name, count in every.items()}
        if self.bias:
            parts |= {f"{name}.bias": (count,) for name, count in self._fused["self_attn.qkv_proj"].items()}
        if self.family.norms:
            sizes = (queries, keys) if self.family.norms == "whole" else (self.head_dim, self.head_dim)
            parts |= {
                f"self_attn.{name}_norm.weight": (size,) for name, size in zip("qk", sizes, strict=True)
            }
        words = ["model.embed_tokens.weight", *([] if self.tied else ["lm_head.weight"])]
        return {
            **dict.fromkeys(words, (self.vocab_size, width)),
            "model.norm.weight": (width,),
            **{
                f"model.layers.{layer}.{name}": parts[name]
                for layer in range(self.num_layers)
                for name in parts
            },
        }

    @property
    def _fused(self) -> dict[str, dict[str, int]]:
        """Weights that some families have as one, and how many rows each has."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys}
        feed_forward = dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), self.intermediate_size)
        return {"self_attn.qkv_proj": attention, "mlp.gate_up_proj": feed_forward}

    def stored(self, name: str) -> tuple[str, slice]:
        """The checkpoint's tensor with a weight of the decoder, and the weight's rows there."""
        if name == "lm_head.weight":
            return "model.embed_tokens.weight" if self.tied else name, slice(None)
        for whole, rows in self._fused.items() if self.family.fused else ():
            start = 0
            for part, count in rows.items():
                if name.endswith(f"{part}.weight"):
                    return f"model.{name.replace(part, whole)}", slice(start, start + count)
                start += count
        return f"model.{name}", slice(None)

    @property
    def weights_of_layer(self) -> int:
        return (
            self.hidden_size * (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
            + 3 * self.hidden_size * self.intermediate_size
        )

    @property
    def weights_of_words(self) -> int:
        """Of the embedding as of the head."""
        return self.vocab_size * self.hidden_size

    def part(self, number: int, parts: int) -> tuple[int, int]:
        """The first layer of a part, and the one after its last. The embedding is in the first part and the
        head in the last, which therefore have fewer layers."""
        layer, words = self.weights_of_layer, self.weights_of_words

        def boundary(index: int) -> int:
            share = ((2 * words + self.num_layers * layer) * index // parts - words) // layer
            inside = min(max(share, index), self.num_layers - parts + index)
            return {0: 0, parts: self.num_layers}.get(index, inside)

        return boundary(number), boundary(number + 1)

    def weights(self, parts: int) -> list[int]:
        layer, words = self.weights_of_layer, self.weights_of_words
        spans = [self.part(number, parts) for number in range(parts)]
        ends = [(first == 0) + (last == self.num_layers) for first, last in spans]
        return [(last - first) * layer + end * words for (first, last), end in zip(spans, ends, strict=True)]

    @property
    def ropes(self) -> tuple[str, ...]:
        """How the names of their inputs begin."""
        return ("", LOCAL) if self.local else ("",)

    def rotation(self, positions: Array, rope: str = "") -> tuple[Array, Array]:
        """Cosines and sines as Genie hands them over, one row for each position."""
        angles = np.outer(positions.astype(np.float64), self.frequencies(rope))
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def frequencies(self, rope: str = "") -> Array:
        plain: Array = (self.local_theta if rope else self.rope_theta) ** (
            -np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim
        )
        if self.rope_scaling is None or rope:
            return plain
        low, high = float(self.rope_scaling["low_freq_factor"]), float(self.rope_scaling["high_freq_factor"])
        turns = float(self.rope_scaling["original_max_position_embeddings"]) * plain / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        scaled: Array = plain * kept + plain / float(self.rope_scaling["factor"]) * (1 - kept)
        return scaled
