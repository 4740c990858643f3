"""Common models as people write them, with what QNN does not take: `qnn-ci repair --suite` repairs them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ci.models.shipped.vision import BRANCH, Classifies, ConvNorm, Inputs, images, settled

Made = tuple[nn.Module, Inputs | tuple[Tensor, ...]]

EFFICIENTNET_B0 = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
"""Expansion, channels, repeats, stride, kernel of each stage."""
WINDOW = 4
BINS = 8
"""Into which a side of a box falls."""


class Squeezed(nn.Module):
    """An inverted residual whose channels are weighted by what they have in all places."""

    def __init__(self, ins: int, outs: int, expand: int, stride: int, size: int) -> None:
        super().__init__()
        middle, few = ins * expand, max(ins // 4, 1)
        self.residual = stride == 1 and ins == outs
        self.inside = nn.Sequential(
            *((ConvNorm(ins, middle, 1), nn.SiLU()) if expand > 1 else ()),
            ConvNorm(middle, middle, size, stride, middle),
            nn.SiLU(),
        )
        self.weights = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(middle, few, 1),
            nn.SiLU(),
            nn.Conv2d(few, middle, 1),
            nn.Sigmoid(),
        )
        self.outside = ConvNorm(middle, outs, 1, shift=0.0, gain=BRANCH if self.residual else 1.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inside(x)
        y = self.outside(y * self.weights(y))
        return x + y if self.residual else y


class EfficientNet(Classifies):
    def __init__(self, stages: int, classes: int) -> None:
        super().__init__()
        channels = 32
        blocks: list[nn.Module] = [ConvNorm(3, channels, 3, 2), nn.SiLU()]
        for expand, outs, repeats, stride, size in EFFICIENTNET_B0[:stages]:
            for index in range(repeats):
                blocks.append(Squeezed(channels, outs, expand, stride if index == 0 else 1, size))
                channels = outs
        self.features = nn.Sequential(*blocks, ConvNorm(channels, 4 * channels, 1), nn.SiLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(4 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))


def efficientnet_b0(stages: int = 7, size: int = 64) -> Made:
    inputs = images(size)
    return settled(EfficientNet(stages, 100), inputs), inputs


def _gelu_by_erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class Block(nn.Module):
    """A transformer layer with one projection for queries, keys and values."""

    def __init__(
        self, width: int, heads: int, activation: Callable[[Tensor], Tensor] = functional.gelu
    ) -> None:
        super().__init__()
        self.heads, self.activation = heads, activation
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.activation(self.up(self.norm2(x))))


def vit_block(width: int = 64) -> Made:
    return Block(width, 4).eval(), (torch.randn(1, 16, width),)


def bert_layer(width: int = 64) -> Made:
    return Block(width, 4, _gelu_by_erf).eval(), (torch.randn(1, 16, width),)


class SwinBlock(nn.Module):
    """Attention within windows that are moved by half their size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = Block(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        x = torch.roll(x, (-WINDOW // 2, -WINDOW // 2), (1, 2))
        x = x.view(n, h // WINDOW, WINDOW, w // WINDOW, WINDOW, c)
        x = self.block(x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, c))
        x = x.view(n, h // WINDOW, w // WINDOW, WINDOW, WINDOW, c)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return torch.roll(x, (WINDOW // 2, WINDOW // 2), (1, 2))


def swin_block(width: int = 32) -> Made:
    return SwinBlock(width).eval(), (torch.randn(1, 2 * WINDOW, 2 * WINDOW, width),)


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside, self.down = ConvNorm(3, width), ConvNorm(width, 2 * width)
        self.join, self.head = ConvNorm(3 * width, width), nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.inside(x))
        second = torch.relu(self.down(functional.max_pool2d(first, 2)))
        second = functional.interpolate(second, scale_factor=2.0, mode="nearest")
        return self.head(torch.relu(self.join(torch.cat((first, second), 1))))


def unet(width: int = 16, size: int = 32) -> Made:
    return UNet(width).eval(), images(size)


class YoloHead(nn.Module):
    """Sides of boxes as the mean of a distribution over bins, and scores of classes."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 16, 3, 2)
        self.boxes, self.classes = nn.Conv2d(16, 4 * BINS, 1), nn.Conv2d(16, 5, 1)
        self.register_buffer("bins", torch.arange(float(BINS)).view(1, 1, BINS, 1))
        rows, columns = torch.meshgrid(*[torch.arange(float(places))] * 2, indexing="ij")
        self.register_buffer("centres", torch.stack((columns, rows)).view(1, 2, -1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.silu(self.stem(x))
        sides = self.boxes(x).view(1, 4, BINS, -1).softmax(2)
        before, after = (sides * self.bins).sum(2).chunk(2, 1)
        low, high = self.centres - before, self.centres + after
        scores = self.classes(x).flatten(2).sigmoid()
        return torch.cat(((low + high) / 2, high - low, scores), 1)


def yolo_head(size: int = 32) -> Made:
    return YoloHead(size // 2).eval(), images(size)


class NormByHand(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = NormByHand(width), NormByHand(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        size = width // self.heads
        q, k, v = (
            part(x).view(batch, length, self.heads, size).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        angles = torch.outer(torch.arange(length), 1e4 ** (-torch.arange(0, size, 2) / size))
        cos, sin = (torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin())
        q, k = (part * cos + self._turned(part) * sin for part in (q, k))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    @staticmethod
    def _turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def llama_layer(width: int = 64) -> Made:
    return LlamaLayer(width, 4).eval(), (torch.randn(1, 16, width),)


class WhisperLayer(nn.Module):
    """The two convolutions over a spectrogram and a layer of the encoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(8, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)
        self.block = Block(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(self.second(functional.gelu(self.first(x))))
        return self.block(x.transpose(1, 2))


def whisper_layer(width: int = 64) -> Made:
    return WhisperLayer(width).eval(), (torch.randn(1, 8, 32),)
