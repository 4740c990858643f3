"""A segmentation net and a BERT encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ci.models.shipped.language import FAR
from ci.models.shipped.vision import (
    BasicBlock,
    Classifies,
    ConvNorm,
    EncoderLayer,
    Inputs,
    images,
    settle,
)


class DilatedPyramid(nn.Module):
    """The parallel dilated convolutions of deeplab_v3."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [ConvNorm(ins, outs, 1), *(ConvNorm(ins, outs, 3, dilation=rate) for rate in (2, 4, 6))]
        )
        self.pooled = nn.Conv2d(ins, outs, 1)
        self.project = ConvNorm(5 * outs, outs, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [torch.relu(branch(x)) for branch in self.branches]
        pooled = torch.relu(self.pooled(functional.adaptive_avg_pool2d(x, 1)))
        size = (x.shape[-2], x.shape[-1])
        parts.append(functional.interpolate(pooled, size, mode="bilinear", align_corners=False))
        return torch.relu(self.project(torch.cat(parts, 1)))


class Segmenter(Classifies):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(3, width, 3, 2), nn.ReLU())
        self.body = nn.Sequential(BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 4 * width, 2))
        self.pyramid = DilatedPyramid(4 * width, 2 * width)
        self.classifier = nn.Conv2d(2 * width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.classifier(self.pyramid(self.body(self.stem(x))))
        size = (x.shape[-2], x.shape[-1])
        return functional.interpolate(scores, size, mode="bilinear", align_corners=False)


def segmenter(width: int = 16, size: int = 64, classes: int = 21) -> tuple[nn.Module, Inputs]:
    inputs = images(size)
    return settle(Segmenter(width, classes), inputs), inputs


class PostNormLayer(EncoderLayer):
    """BERT's order."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.mlp(x))


class Bert(nn.Module):
    def __init__(self, words: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(PostNormLayer(width, heads) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.register_buffer("place", torch.arange(length, dtype=torch.int32)[None], persistent=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.words(tokens) + self.positions(self.place))
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


def bert(
    words: int = 512, length: int = 32, width: int = 128, layers: int = 2, heads: int = 4
) -> tuple[nn.Module, Inputs]:
    def inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
        tokens = torch.randint(0, words, (1, length), generator=generator, dtype=torch.int32)
        kept = int(torch.randint(length // 2, length + 1, (), generator=generator))
        mask = torch.zeros(1, 1, 1, length)
        mask[..., kept:] = FAR
        return tokens, mask

    return Bert(words, length, width, layers, heads).eval(), inputs
