"""Build convolutional nets and a vision transformer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

SETTLING = 24
"""The batch that gives the norms their statistics has so many inputs; with few, the last layers would see
unlike ones later."""

Inputs = Callable[[torch.Generator], tuple[Tensor, ...]]


PATCHES = ((1, 0.8), (2, 0.6), (8, 0.4))
"""Each row is a layer of an image: the number of patches each way, and the layer's weight. Grain is added."""


def images(size: int) -> Inputs:
    """Draw images that resemble photographs: neighbouring pixels are alike, and every image has its own
    brightness."""

    def inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
        image = 0.2 * (torch.rand(1, 3, size, size, generator=generator) - 0.5)
        for patches, weight in PATCHES:
            patch = torch.rand(1, 3, patches, patches, generator=generator) - 0.5
            image += weight * functional.interpolate(patch, (size, size), mode="bilinear")
        return (image,)

    return inputs


class Classifies(nn.Module):
    classifier: nn.Linear | nn.Conv2d


def settle(model: Classifies, inputs: Inputs) -> nn.Module:
    """Give every batch norm the statistics of what reaches it, and the classes scores around zero, as
    training would: scores that are nearly the same for all inputs would hide what the inputs do."""
    generator = torch.Generator().manual_seed(7)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d)]
    batch = torch.cat([inputs(generator)[0] for _ in range(SETTLING)])

    def centre(layer: nn.Linear | nn.Conv2d, _inputs: object, scores: Tensor) -> None:
        assert layer.bias is not None
        layer.bias.sub_(scores.mean([axis for axis in range(scores.ndim) if axis != 1]))

    with torch.no_grad():
        for norm in norms:
            norm.momentum = 1.0
        model.train()(batch)
        for norm in norms:
            norm.momentum = 0.01
        hook = model.classifier.register_forward_hook(centre)
        model.eval()(batch)
        hook.remove()
    return model


ON = 1.5
"""The mean of a ReLU's inputs, in standard deviations. Most units are on, as in a trained net; with
half of them on, each layer would amplify the noise of the one before."""

BRANCH = 0.3
"""The branch of a residual block is scaled by this before it is added, which again resembles a trained
net."""


def norm(channels: int, shift: float = 0.0, gain: float = 1.0) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels)
    nn.init.constant_(layer.bias, shift)
    nn.init.constant_(layer.weight, gain)
    return layer


class ConvNorm(nn.Sequential):
    def __init__(
        self,
        ins: int,
        outs: int,
        size: int = 3,
        stride: int = 1,
        groups: int = 1,
        dilation: int = 1,
        *,
        shift: float = ON,
        gain: float = 1.0,
    ) -> None:
        padding = dilation * (size - 1) // 2
        super().__init__(
            nn.Conv2d(ins, outs, size, stride, padding, dilation, groups, bias=False), norm(outs, shift, gain)
        )


class InvertedResidual(nn.Module):
    def __init__(self, ins: int, outs: int, stride: int, expand: int) -> None:
        super().__init__()
        middle = ins * expand
        self.residual = stride == 1 and ins == outs
        layers: list[nn.Module] = []
        if expand > 1:
            layers += [ConvNorm(ins, middle, 1), nn.ReLU6()]
        layers += [ConvNorm(middle, middle, 3, stride, middle), nn.ReLU6()]
        layers.append(ConvNorm(middle, outs, 1, shift=0.0, gain=BRANCH if self.residual else 1.0))
        self.body = nn.Sequential(*layers)

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
"""Each stage has its expansion, channels, repeats and stride."""


class MobileNetV2(Classifies):
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
    inputs = images(size)
    return settle(MobileNetV2(stages, classes), inputs), inputs


class BasicBlock(nn.Module):
    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(ins, outs, 3, stride)
        self.second = ConvNorm(outs, outs, gain=BRANCH)
        widens = stride > 1 or ins != outs
        self.shortcut = ConvNorm(ins, outs, 1, stride, shift=0.0) if widens else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


class ResNet(Classifies):
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
    """Build a residual net; width 64, 4 stages and depth 2 are ResNet-18's."""
    inputs = images(size)
    widths = tuple(width << stage for stage in range(stages))
    return settle(ResNet(widths, depth, 100), inputs), inputs


class EncoderLayer(nn.Module):
    """This is a pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
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
        return self.down(functional.gelu(self.up(x)))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
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
    return VisionTransformer(size, patch, width, layers, heads, 100).eval(), images(size)
