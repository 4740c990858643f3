"""Builds a checkpoint's graphs of static shapes with a cache of keys and values, in the layout that Genie
reads. Keys are [groups, 1, size, places], values [groups, 1, places, size]. The cache comes in as inputs, and
new keys and values go out: the caller stores them. The tokens of a call are the last places; the mask hides
empty places."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ci.lanes.llm.architecture import HIDDEN, Architecture
from ci.lanes.llm.weights import tensors_of
from provisioning.base.errors import CheckFailed

LARGEST_HALF = 65504.0


class Norm(nn.Module):
    """RMSNorm as a division, because HTP computes x * (1 / root) inexactly in 16-bit integers."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x / ((x * x).mean(-1, keepdim=True) + self.eps).sqrt() * self.weight


class DecoderAttention(nn.Module):
    def __init__(self, shape: Architecture, rotated: bool) -> None:
        super().__init__()
        self.shape = shape
        heads, groups = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, heads, bias=shape.bias)
        self.k_proj = nn.Linear(shape.hidden_size, groups, bias=shape.bias)
        self.v_proj = nn.Linear(shape.hidden_size, groups, bias=shape.bias)
        self.o_proj = nn.Linear(heads, shape.hidden_size, bias=False)
        self.rotated = rotated
        if shape.family.norms:
            across_heads = shape.family.norms == "whole"
            self.q_norm = Norm(heads if across_heads else shape.head_dim, shape.rms_norm_eps)
            self.k_norm = Norm(groups if across_heads else shape.head_dim, shape.rms_norm_eps)

    def forward(
        self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        shape, count = self.shape, x.shape[1]
        q, k = self.q_proj(x), self.k_proj(x)
        if shape.family.norms == "whole":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self._split(q, shape.num_heads), self._split(k, shape.num_kv_heads)
        v = self._split(self.v_proj(x), shape.num_kv_heads)
        if shape.family.norms == "heads":
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rotated:
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        k = k.transpose(2, 3)
        every_key, every_value = torch.cat((keys, k), 3), torch.cat((values, v), 2)
        group = shape.num_heads // shape.num_kv_heads
        # The heads of a group are rows of one product.
        q = q.reshape(shape.num_kv_heads, 1, group * count, shape.head_dim)
        places = mask.shape[-1]
        scores = (q @ every_key * shape.score_scale).view(shape.num_kv_heads, group, count, places) + mask
        weights = torch.softmax(scores, -1).view(shape.num_kv_heads, 1, group * count, places)
        y = (weights @ every_value).view(shape.num_heads, count, shape.head_dim).permute(1, 0, 2)
        return self.o_proj(y.reshape(1, count, shape.num_heads * shape.head_dim)), k, v

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[1], heads, self.shape.head_dim).permute(1, 0, 2).unsqueeze(1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    one, other, *rest = x.split((half, half, *[width for width in [x.shape[-1] - 2 * half] if width]), -1)
    return torch.cat((one * cos - other * sin, other * cos + one * sin, *rest), -1)


class FeedForward(nn.Module):
    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)
        self.gelu = shape.family.gemma

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        gate = nn.functional.gelu(gate, approximate="tanh") if self.gelu else nn.functional.silu(gate)
        y: Tensor = self.down_proj(gate * self.up_proj(x))
        return y


class Layer(nn.Module):
    def __init__(self, shape: Architecture, rotated: bool) -> None:
        super().__init__()
        for name in shape.family.layer_norms:
            if name:
                setattr(self, f"{name}_layernorm", Norm(shape.hidden_size, shape.rms_norm_eps))
        self.norms = [f"{name}_layernorm" for name in shape.family.layer_norms]
        self.self_attn = DecoderAttention(shape, rotated)
        self.mlp = FeedForward(shape)

    def forward(
        self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        before, after, before_mlp, after_mlp = (getattr(self, name, _same) for name in self.norms)
        y, k, v = self.self_attn(before(x), mask, cos, sin, keys, values)
        x = x + after(y)
        return x + after_mlp(self.mlp(before_mlp(x))), k, v


def _same(x: Tensor) -> Tensor:
    return x


class Decoder(nn.Module):
    """Computes layers `first` to `last` for `count` new tokens in a context of `context`. Modules have the
    checkpoint's names of the weights."""

    def __init__(
        self, shape: Architecture, count: int, context: int, first: int = 0, last: int | None = None
    ) -> None:
        super().__init__()
        self.shape, self.count, self.context = shape, count, context
        self.first, self.last = first, shape.num_layers if last is None else last
        numbers = range(self.first, self.last)
        self.layers = nn.ModuleDict({str(n): Layer(shape, n not in shape.unrotated) for n in numbers})
        if self.has_embedding:
            self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        if self.has_head:
            self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
            self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)

    @property
    def has_embedding(self) -> bool:
        return self.first == 0

    @property
    def has_head(self) -> bool:
        return self.last == self.shape.num_layers

    def forward(self, x: Tensor, mask: Tensor, *ropes_and_cache: Tensor) -> tuple[Tensor, ...]:
        if self.has_embedding:
            x = self.embed_tokens(x)
        count, magnitude = 2 * len(self.shape.ropes), self.shape.rope_magnitude
        ropes, cache = ropes_and_cache[:count], ropes_and_cache[count:]
        if magnitude != 1:
            ropes = tuple(rope * magnitude for rope in ropes)
        new: list[Tensor] = []
        for index, (number, layer) in enumerate(self.layers.items()):
            cos, sin = ropes[2:] if int(number) in self.shape.local else ropes[:2]
            x, k, v = layer(x, mask, cos, sin, cache[2 * index], cache[2 * index + 1])
            new += [k, v]
        if self.has_head:
            x = self.lm_head(self.norm(x))
        return (x, *new)

    @property
    def inputs(self) -> list[str]:
        names = ["input_ids" if self.has_embedding else f"{HIDDEN}_{self.first}"]
        names += ["attention_mask"]
        names += [f"{rope}position_ids_{kind}" for rope in self.shape.ropes for kind in ("cos", "sin")]
        return [*names, *self.caches]

    @property
    def caches(self) -> list[str]:
        return [f"{name}_in" for name in self._caches]

    @property
    def outputs(self) -> list[str]:
        return [
            "logits" if self.has_head else f"{HIDDEN}_{self.last}",
            *(f"{name}_out" for name in self._caches),
        ]

    @property
    def _caches(self) -> list[str]:
        return [
            f"past_{kind}_{number}" for number in range(self.first, self.last) for kind in ("key", "value")
        ]

    def example(self) -> tuple[Tensor, ...]:
        shape, count, past = self.shape, self.count, self.context - self.count
        x = (
            torch.zeros(1, count, dtype=torch.int32)
            if self.has_embedding
            else torch.zeros(1, count, shape.hidden_size)
        )
        # Each its own, because the exporter merges one that is passed twice.
        ropes = [torch.zeros(1, 1, count, shape.rotary_dim // 2) for _ in range(2 * len(shape.ropes))]
        cache = [
            torch.zeros(
                shape.num_kv_heads, 1, *((shape.head_dim, past) if kind == "key" else (past, shape.head_dim))
            )
            for _ in self.layers
            for kind in ("key", "value")
        ]
        return (x, torch.zeros(1, 1, count, self.context), *ropes, *cache)


def load_decoder(
    folder: Path, shape: Architecture, count: int, context: int, first: int = 0, last: int | None = None
) -> Decoder:
    """Load a decoder with a checkpoint's weights; only those of its own layers are read."""
    with torch.device("meta"):
        decoder = Decoder(shape, count, context, first, last)
    places = {name: shape.stored(name) for name in decoder.state_dict()}
    shapes = shape.tensors
    stored = dict(tensors_of(folder, {name: shapes[name] for name, _ in places.values()}))
    state = {name: stored[source][rows] for name, (source, rows) in places.items()}
    if shape.family.gemma:
        state = {name: _adapt_gemma_weight(name, tensor, shape) for name, tensor in state.items()}
    decoder.load_state_dict(state, assign=True)
    decoder.eval()
    return decoder


def _adapt_gemma_weight(name: str, weight: Tensor, shape: Architecture) -> Tensor:
    if name.endswith("norm.weight"):
        return 1 + weight
    return weight * shape.hidden_size**0.5 if name == "embed_tokens.weight" else weight


def resize_decoder(decoder: Decoder, count: int) -> Decoder:
    """Return the whole decoder for another number of tokens, with the same weights in memory."""
    with torch.device("meta"):
        copy = Decoder(decoder.shape, count, decoder.context)
    copy.load_state_dict(decoder.state_dict(), assign=True)
    copy.eval()
    return copy


def require_halves(decoder: Decoder) -> None:
    for name, tensor in decoder.state_dict().items():
        if not float(tensor.abs().max()) <= LARGEST_HALF:
            raise CheckFailed(
                f"{name} holds values beyond fp16's {LARGEST_HALF:g}",
                fix="quantize: --precision 16a8w --calibrate text.txt",
            )
