"""Build decoders of Llama 3.2's kind: one for prefill, and one that computes one token with a static
cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ci.models.shipped.vision import Inputs

FAR = -100.0
"""A mask adds this where a token must not look: it acts like minus infinity, and quantizes well."""


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def rotation(length: int, size: int, base: float = 500_000.0) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of rotary embedding, for every position."""
    steps = base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * steps
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of the last dimension against each other, as Llama's checkpoints need it."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class GroupedAttention(nn.Module):
    """Each head of keys and values serves a group of heads of queries."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x.shape
        q = self.query(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.key(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        v = self.value(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        keys, values = (k, v) if past is None else (torch.cat((past[0], k), 2), torch.cat((past[1], v), 2))
        # A group's heads are rows of one product: nothing is copied, and every step has a quantized form.
        rows, total = self.heads // self.groups * length, keys.shape[2]
        scores = q.reshape(batch, self.groups, rows, self.size) @ keys.transpose(2, 3) * self.size**-0.5
        weights = torch.softmax(scores.view(batch, self.heads, length, total) + mask, -1)
        mixed = weights.view(batch, self.groups, rows, total) @ values
        mixed = mixed.view(batch, self.heads, length, self.size).transpose(1, 2)
        return self.out(mixed.reshape(batch, length, -1)), k, v


class DecoderLayer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.attention = GroupedAttention(width, heads, groups)
        hidden = width * 8 // 3 // 32 * 32
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        mixed, k, v = self.attention(self.norm1(x), cos, sin, mask, past)
        x = x + mixed
        y = self.norm2(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y)), k, v


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, words: int, width: int, layers: int, heads: int, groups: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, groups) for _ in range(layers))
        self.norm = RmsNorm(width)
        self.output = nn.Linear(width, words, bias=False)
        cos, sin = rotation(context, width // heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)


class Prefill(Llama):
    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x, _, _ = layer(x, self.cos, self.sin, mask)
        return self.output(self.norm(x))


class Decode(Llama):
    """It computes one token. The cache comes in, and the token's own keys and values go out, so shapes never
    change."""

    def forward(self, token: Tensor, position: Tensor, mask: Tensor, *cache: Tensor) -> tuple[Tensor, ...]:
        x = self.embedding(token)
        cos, sin = self.cos[position], self.sin[position]
        new_cache: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            x, k, v = layer(x, cos, sin, mask, (cache[2 * index], cache[2 * index + 1]))
            new_cache += [k, v]
        return (self.output(self.norm(x)), *new_cache)


def llama_prefill(
    words: int = 512, width: int = 256, layers: int = 2, heads: int = 8, groups: int = 2, length: int = 32
) -> tuple[nn.Module, Inputs]:
    def inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
        tokens = torch.randint(0, words, (1, length), generator=generator, dtype=torch.int32)
        return tokens, torch.full((length, length), FAR).triu(1)[None, None]

    return Prefill(words, width, layers, heads, groups, length).eval(), inputs


def llama_decode(
    words: int = 512,
    width: int = 256,
    layers: int = 2,
    heads: int = 8,
    groups: int = 2,
    context: int = 64,
) -> tuple[nn.Module, Inputs]:
    size = width // heads

    def inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
        filled = int(torch.randint(1, context, (), generator=generator))
        mask = torch.full((1, 1, 1, context), FAR)
        mask[..., :filled] = 0
        mask[..., -1] = 0
        cache = []
        for _ in range(2 * layers):
            past = torch.randn(1, groups, context - 1, size, generator=generator)
            past[:, :, filled:] = 0
            cache.append(past)
        token = torch.randint(0, words, (1, 1), generator=generator, dtype=torch.int32)
        return token, torch.tensor([filled], dtype=torch.int32), mask, *cache

    return Decode(words, width, layers, heads, groups, context).eval(), inputs
