"""Convolutional nets, a vision transformer and a segmentation net."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

SETTLING = 24
"""Inputs in the batch whose statistics the norms get: with few, the last layers would see none like them."""

Inputs = Callable[[torch.Generator], tuple[Tensor, ...]]


def images(*shape: int) -> Inputs:
    return lambda generator: (torch.randn(shape, generator=generator),)


def settled(model: nn.Module, inputs: Inputs) -> nn.Module:
    """Give every batch norm the statistics of what reaches it, as training would."""
    generator = torch.Generator().manual_seed(7)
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d | nn.BatchNorm1d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.cat([inputs(generator)[0] for _ in range(SETTLING)]))
    for norm in norms:
        norm.momentum = 0.01
    return model.eval()


class ConvNorm(nn.Sequential):
    def __init__(
        self, ins: int, outs: int, size: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1
    ) -> None:
        padding = dilation * (size - 1) // 2
        super().__init__(
            nn.Conv2d(ins, outs, size, stride, padding, dilation, groups, bias=False), nn.BatchNorm2d(outs)
        )


class InvertedResidual(nn.Module):
    def __init__(self, ins: int, outs: int, stride: int, expand: int) -> None:
        super().__init__()
        middle = ins * expand
        layers: list[nn.Module] = []
        if expand > 1:
            layers += [ConvNorm(ins, middle, 1), nn.ReLU6()]
        layers += [ConvNorm(middle, middle, 3, stride, middle), nn.ReLU6(), ConvNorm(middle, outs, 1)]
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and ins == outs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, repeats, stride of each stage."""


class MobileNetV2(nn.Module):
    def __init__(self, stages: int, classes: int) -> None:
        super().__init__()
        channels = 32
        blocks: list[nn.Module] = [ConvNorm(3, channels, 3, 2), nn.ReLU6()]
        for expand, outs, repeats, stride in MOBILENET_V2[:stages]:
            for index in range(repeats):
                blocks.append(InvertedResidual(channels, outs, stride if index == 0 else 1, expand))
                channels = outs
        self.features = nn.Sequential(*blocks)
        self.head = nn.Sequential(ConvNorm(channels, 4 * channels, 1), nn.ReLU6())
        self.classifier = nn.Linear(4 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.head(self.features(x)).mean((2, 3)))


def mobilenet_v2(stages: int = 7, size: int = 96, classes: int = 100) -> tuple[nn.Module, Inputs]:
    inputs = images(1, 3, size, size)
    return settled(MobileNetV2(stages, classes), inputs), inputs


class BasicBlock(nn.Module):
    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(ins, outs, 3, stride)
        self.second = ConvNorm(outs, outs)
        self.shortcut = ConvNorm(ins, outs, 1, stride) if stride > 1 or ins != outs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...], depth: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(3, widths[0], 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        channels = widths[0]
        for stage, outs in enumerate(widths):
            for index in range(depth):
                blocks.append(BasicBlock(channels, outs, 2 if stage and index == 0 else 1))
                channels = outs
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.blocks(self.stem(x)).mean((2, 3)))


def resnet(width: int = 64, stages: int = 4, depth: int = 2, size: int = 96) -> tuple[nn.Module, Inputs]:
    """width 64, 4 stages and depth 2 are ResNet-18's."""
    inputs = images(1, 3, size, size)
    widths = tuple(width << stage for stage in range(stages))
    return settled(ResNet(widths, depth, 100), inputs), inputs


class EncoderLayer(nn.Module):
    """Pre-norm transformer layer; `post_norm` is BERT's order."""

    def __init__(self, width: int, heads: int, *, post_norm: bool = False, gelu: str = "none") -> None:
        super().__init__()
        self.heads, self.post_norm, self.gelu = heads, post_norm, gelu
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (part(x).view(split).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x), approximate=self.gelu))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.post_norm:
            x = self.norm1(x + self.attention(x, mask))
            return self.norm2(x + self.mlp(x))
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, size: int, patch: int, width: int, layers: int, heads: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token, x), 1) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.norm(x)[:, 0])


def vit(
    size: int = 64, patch: int = 16, width: int = 128, layers: int = 2, heads: int = 4
) -> tuple[nn.Module, Inputs]:
    return VisionTransformer(size, patch, width, layers, heads, 100).eval(), images(1, 3, size, size)


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


class Segmenter(nn.Module):
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
    inputs = images(1, 3, size, size)
    return settled(Segmenter(width, classes), inputs), inputs
