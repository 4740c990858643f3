"""A small net for each rewrite of PyTorch models: what it is made of, and an input."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self, compute: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.compute, self.parts = compute, nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> Any:
        return self.compute(*self.parts, *inputs)


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _indices(*shape: int) -> Tensor:
    return torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(1))


def _of(*shape: int, parts: tuple[nn.Module, ...] = ()) -> Callable[..., Any]:
    return lambda compute: (Net(compute, *parts), (_random(*shape),))


def _norm(channels: int = 4, **more: Any) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, **more)
    with torch.no_grad():
        for number, tensor in enumerate((norm.weight, norm.bias, norm.running_mean, norm.running_var)):
            assert tensor is not None
            tensor.copy_(_random(channels).abs() / (number + 1) + 0.1)
    return norm


def _lstm(kind: type[nn.LSTM | nn.GRU], **more: Any) -> nn.RNNBase:
    return kind(3, 5, batch_first=True, **more)


def _bag(mode: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    ids = torch.tensor([[1, 2, 3], [4, 5, 9]])
    return Net(lambda bag, rows: bag(rows), nn.EmbeddingBag(10, 4, mode=mode)), (ids,)


IMAGE, ROW = (1, 4, 8, 8), (2, 6)


def _modulated(transposed: bool, demodulates: bool) -> Callable[..., Tensor]:
    """StyleGAN's convolution of one image, as its authors fuse it."""

    def compute(conv: nn.Conv2d, affine: nn.Linear, x: Tensor, w: Tensor) -> Tensor:
        styles = affine(w)
        weight = conv.weight.unsqueeze(0) * styles.reshape(1, 1, -1, 1, 1)
        if demodulates:
            scale = (weight.square().sum(dim=[2, 3, 4]) + 1e-8).rsqrt()
            weight = weight * scale.reshape(1, -1, 1, 1, 1)
        weight = weight.reshape(-1, 4, 3, 3)
        if transposed:
            return functional.conv_transpose2d(x, weight.transpose(0, 1), stride=2, groups=1)
        return functional.conv2d(x, weight, padding=1, groups=1)

    return compute


def _style_net(*, transposed: bool, demodulates: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(1)
    net = Net(_modulated(transposed, demodulates), nn.Conv2d(4, 5, 3), nn.Linear(6, 4))
    return net, (_random(*IMAGE), _random(1, 6))


def _root_mean_square(norm: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda layer, x: layer(norm(x)) * 0.5


NETS: dict[str, list[Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]]] = {
    "selects-for-unbind": [
        lambda: _of(2, 3, 24)(lambda x: x.view(2, 3, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)[::2])
    ],
    "pool-of-images": [lambda: _of(4, 8, 8)(lambda x: functional.max_pool2d(x, 3, 1, 1))],
    "cast-to-a-type": [lambda: _of(*ROW)(lambda x: (x * 3).to(torch.int32).type_as(x) * x)],
    "amax-and-argmax": [
        lambda: _of(*ROW)(lambda x: x.max(-1)),
        lambda: _of(*ROW)(lambda x: x.min(0, keepdim=True)),
        lambda: _of(*ROW)(lambda x: x.max(1).indices),
    ],
    "logical-not-of-a-boolean": [lambda: _of(*ROW)(lambda x: torch.where(~(x > 0), x * 0.1, x))],
    "rms-norm-of-ones": [
        lambda: _of(*ROW, parts=(nn.Linear(6, 6),))(
            _root_mean_square(lambda x: x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6))
        ),
        lambda: _of(*ROW, parts=(nn.Linear(6, 6),))(
            _root_mean_square(lambda x: x * (x.square().mean(dim=1, keepdim=True) + 1e-8).rsqrt())
        ),
    ],
    "rms-norm-of-rows": [lambda: _of(1, 2, 9, 6, parts=(nn.RMSNorm(6),))(lambda norm, x: norm(x))],
    "styles-outside-the-convolution": [
        lambda: _style_net(transposed=False, demodulates=True),
        lambda: _style_net(transposed=True, demodulates=True),
        lambda: _style_net(transposed=False, demodulates=False),
    ],
    "stride-written": [lambda: _of(*IMAGE)(lambda x: functional.max_pool2d(x, 2))],
    "gelu-for-erf": [
        lambda: _of(*ROW)(lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))),
        lambda: _of(*ROW)(lambda x: 0.5 * x * (1 + torch.erf(x * 0.70710678))),
    ],
    "cumprod-as-sum": [lambda: _of(*ROW)(lambda x: torch.cumprod(torch.sigmoid(x) + 0.1, 1))],
    "embedding-and-sum": [lambda: _bag("sum"), lambda: _bag("mean"), lambda: _bag("max")],
    "norm-as-scale-and-shift": [lambda: _of(*IMAGE, parts=(_norm(),))(lambda norm, x: norm(torch.relu(x)))],
    "norm-folded": [
        lambda: _of(*IMAGE, parts=(nn.Conv2d(4, 4, 3), _norm(eps=1e-3)))(lambda conv, norm, x: norm(conv(x))),
        lambda: _of(*IMAGE, parts=(_norm(eps=1e-3),))(lambda norm, x: norm(x + x.relu())),
    ],
    "bias-for-each-call": [
        lambda: _of(*ROW, parts=(nn.Linear(6, 6),))(lambda layer, x: layer(layer(x).relu()))
    ],
    "nearest-by-index": [
        lambda: _of(*IMAGE)(lambda x: functional.interpolate(x, size=(13, 4), mode="nearest"))
    ],
    "pool-by-two-twice": [
        lambda: _of(*IMAGE)(lambda x: functional.avg_pool2d(x, 4)),
        lambda: _of(*IMAGE)(lambda x: functional.adaptive_avg_pool2d(x, 2)),
    ],
    "pool-as-convolution": [
        lambda: _of(*IMAGE)(lambda x: functional.avg_pool2d(x, 3, 3, 1)),
        lambda: _of(1, 4, 10, 8)(lambda x: functional.avg_pool2d(x, 3, 2, ceil_mode=True)),
        lambda: _of(*IMAGE)(lambda x: functional.avg_pool2d(x, (2, 4), 2, (1, 2), count_include_pad=False)),
        lambda: _of(2, 4, 9)(lambda x: functional.avg_pool1d(x, 3, 2, 1)),
    ],
    "pool-with-kernel": [lambda: _of(1, 2, 8, 8, 8)(lambda x: functional.adaptive_max_pool3d(x, 4))],
    "prelu-by-relus": [lambda: _of(*IMAGE, parts=(nn.PReLU(4),))(lambda prelu, x: prelu(x))],
    "cut-before-pad": [
        lambda: _of(1, 8, 16)(lambda x: functional.pad(x, (0, 0, 1, -1))),
        lambda: _of(*IMAGE)(lambda x: functional.pad(x, (-1, 2, 1, -2), value=0.5)),
    ],
    "pad-by-dimension": [lambda: _of(*IMAGE)(lambda x: functional.pad(x, (0, 1, 0, 2)))],
    "pad-by-slices": [
        lambda: _of(*IMAGE)(lambda x: functional.pad(x, (1, 2, 0, 1), mode="replicate")),
        lambda: _of(*IMAGE)(lambda x: functional.pad(x, (3, 2, 0, 1), mode="circular")),
        lambda: _of(*IMAGE, parts=(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),))(
            lambda conv, x: conv(x)
        ),
    ],
    "roll-by-positive-dimensions": [lambda: _of(2, 4, 4)(lambda x: torch.roll(x, (1, -2), (-2, -1)))],
    "slice-by-positive-dimension": [lambda: _of(2, 4, 6)(lambda x: x.narrow(-1, 1, 3) * 2)],
    "root-of-variance": [
        lambda: _of(*IMAGE)(lambda x: torch.std(x, (2, 3), keepdim=True)),
        lambda: _of(*ROW)(lambda x: x.std(-1, unbiased=False) * 2),
    ],
    "pool-as-mean": [
        lambda: _of(1, 4, 12)(lambda x: functional.adaptive_avg_pool1d(x, 1)),
        lambda: _of(1, 4, 12)(lambda x: functional.adaptive_avg_pool1d(x, 3)),
    ],
    "root-of-squares": [lambda: _of(*ROW)(lambda x: torch.hypot(x, x * 2 + 1))],
    "transposed-convolution-by-group": [
        lambda: _of(*IMAGE, parts=(nn.ConvTranspose2d(4, 6, 3, 2, groups=2),))(lambda conv, x: conv(x))
    ],
    "where-for-cast": [
        lambda: _of(*ROW, parts=(nn.Linear(6, 4),))(lambda layer, x: layer((x > 0.1).float()))
    ],
    "cast-before-moves": [
        lambda: (Net(lambda x: x.unsqueeze(-1).float() * 0.5), (torch.arange(12).reshape(3, 4),)),
        lambda: (Net(lambda x: 1 - x[:, None, None, :].float()), (torch.arange(12).reshape(3, 4),)),
    ],
    "truncated-before-cast": [lambda: _of(*ROW)(lambda x: (x * 3).to(torch.int64) + 1)],
    "softplus-by-absolute": [
        lambda: _of(*ROW)(functional.softplus),
        lambda: _of(*ROW)(functional.mish),
    ],
    "exp-of-clamped": [lambda: _of(*ROW)(torch.exp)],
    "group-norm-for-instance-norm": [
        lambda: _of(*IMAGE, parts=(nn.InstanceNorm2d(4, affine=True),))(lambda norm, x: norm(x)),
    ],
    "cumsum-along-the-last": [lambda: _of(2, 3, 5)(lambda x: torch.cumsum(x, 1))],
    "sort-along-the-last": [lambda: _of(2, 3, 5)(lambda x: torch.sort(x, 1, True)[0])],
    "softmax-along-the-last": [lambda: _of(2, 3, 5)(lambda x: torch.softmax(x, 1))],
    "bias-added-alone": [lambda: _of(*ROW, parts=(nn.Linear(6, 5),))(lambda layer, x: layer(x))],
    "ceil-by-floor": [lambda: _of(*ROW)(lambda x: torch.ceil(x * 2))],
    "floor-of-quotient": [lambda: _of(*ROW)(lambda x: torch.floor_divide(x, x.abs() + 0.5))],
    "small-values-apart": [
        lambda: _of(*ROW)(lambda x: torch.softmax(x * 0.01, -1)),
        lambda: _of(*ROW)(lambda x: functional.elu(x * 0.01)),
    ],
    "power-as-exp": [lambda: _of(*ROW)(lambda x: 2**x)],
    "product-for-square": [
        lambda: _of(*ROW)(lambda x: x**2),
        lambda: _of(*ROW)(torch.square),
    ],
    "scatter-of-a-tensor": [
        lambda: _of(*ROW)(lambda x: torch.scatter(x, 1, torch.tensor([[1, 2], [0, 3]]), 0.5))
    ],
    "log-of-larger": [
        lambda: _of(3, 7)(lambda x: torch.log(x.abs() + 0.5)),
        lambda: _of(3, 7)(lambda x: torch.log10(x * x + 0.5)),
    ],
    "product-for-linear": [
        lambda: _of(3, 1, parts=(nn.Linear(1, 1, bias=False),))(lambda linear, x: linear(x))
    ],
    "second-input-alone": [lambda: _of(2, 5, 5)(lambda x: torch.relu(x) @ x)],
    "depthwise-as-product": [
        lambda: _of(*IMAGE, parts=(nn.Conv2d(4, 4, 1, groups=4),))(lambda conv, x: conv(x))
    ],
    "amax-for-max": [
        lambda: _of(2, 3, 7)(lambda x: torch.max(x, -1)[0]),
        lambda: _of(2, 3, 7)(lambda x: torch.min(x, 1, keepdim=True)[0]),
    ],
    "matmul-for-einsum": [
        lambda: _of(3, 7)(lambda x: torch.einsum("ij,kj->ik", x, x * 2 + 1)),
        lambda: _of(3, 7)(lambda x: torch.einsum("ij,kl->ki", x, x * 2 + 1)),
        lambda: _of(2, 3, 7)(lambda x: torch.einsum("bij, bkj -> bki", x, x * 2 + 1)),
        lambda: _of(2, 3, 5, 7)(
            lambda x: torch.einsum("bihd,bjhd", x, x.transpose(1, 3).reshape(2, 3, 5, 7))
        ),
    ],
    "where-for-assignment": [lambda: _of(*ROW)(_assigned)],
    "mask-as-constant": [
        lambda: _of(1, 2, 5, 4)(
            lambda x: functional.scaled_dot_product_attention(x, x * 2, x + 1, is_causal=True)
        )
    ],
    "cosine-in-parts": [
        lambda: _of(*ROW)(lambda x: functional.cosine_similarity(x, torch.arange(6.0)[None] + 1, -1)),
    ],
    "constants-folded": [
        lambda: _of(*ROW)(lambda x: x + torch.log(torch.arange(6) + 1.0)),
        lambda: _of(*ROW)(lambda x: torch.cat([x, torch.ones_like(x).cumsum(-1) + x.new_zeros(x.shape)], -1)),
    ],
    "convolution-for-unfold": [
        lambda: _of(2, 4, 6, 5)(lambda x: functional.unfold(x, 3, padding=1)),
        lambda: _of(1, 3, 8, 8)(lambda x: functional.unfold(x, (2, 3), dilation=2, stride=(1, 2))),
    ],
    "recurrent-cell-by-cell": [
        lambda: _of(2, 3, parts=(nn.GRUCell(3, 5),))(lambda cell, x: cell(x, cell(x))),
        lambda: _of(2, 3, parts=(nn.LSTMCell(3, 5, bias=False),))(lambda cell, x: cell(x, cell(x))[0]),
        lambda: _of(1, 2, 3, parts=(_lstm(nn.LSTM, bidirectional=True),))(lambda rnn, x: rnn(x)[0]),
        lambda: _of(1, 2, 3, parts=(_lstm(nn.GRU, num_layers=2),))(lambda rnn, x: rnn(x)[0]),
    ],
    "group-norm-of-images": [
        lambda: _of(4, 6, parts=(nn.GroupNorm(2, 6),))(lambda norm, x: norm(x)),
        lambda: _of(1, 4, 3, parts=(nn.GroupNorm(4, 4),))(lambda norm, x: norm(x)),
    ],
    "activation-of-fewer-dimensions": [
        lambda: _of(1, 2, 3, 4, 5)(functional.elu),
        lambda: _of(1, 2, 3, 4, 5, parts=(nn.RMSNorm(5),))(lambda norm, x: norm(x)),
        lambda: _of(1, 4, 3, 4, 5, parts=(nn.GroupNorm(2, 4),))(lambda norm, x: norm(x)),
    ],
    "indices-as-int32": [
        lambda: _of(2, 5, 3)(
            lambda x: x.gather(1, x.sum(-1).topk(2, dim=1).indices.unsqueeze(-1).expand(-1, -1, 3))
        )
    ],
    "gather-by-comparison": [
        lambda: (Net(lambda x, i: torch.take_along_dim(x, i, dim=1)), (_random(2, 5, 3), _indices(2, 4, 3))),
        lambda: (Net(lambda x, i: x.gather(-1, i)), (_random(2, 5), _indices(2, 4))),
    ],
    "scatter-by-comparison": [
        lambda: (Net(lambda x, i: (x + 1).scatter_add(1, i, x * 2)), (_random(2, 5), _indices(2, 5))),
        lambda: (
            Net(lambda x, i: torch.zeros(2, 7, 3).scatter_add(1, i, x)),
            (_random(2, 4, 3), _indices(2, 4, 3)),
        ),
    ],
    "mask-for-a-slice": [
        lambda: _of(2, 5, 3)(lambda x: _written(x * 2, (slice(None), slice(2, 4)), 0) + 1),
        lambda: _of(2, 5, 3)(lambda x: _written(x * 2, (slice(None), 1), 0.5, (0, slice(3, 5)), -1.0) + 1),
    ],
    "pool-by-matrices": [lambda: _of(1, 4, 8, 7)(lambda x: functional.adaptive_avg_pool2d(x, (3, 7)))],
    "bilinear-as-linear": [
        lambda: _of(2, 5, parts=(nn.Bilinear(5, 5, 3),))(lambda layer, x: layer(x, x.relu())),
        lambda: _of(2, 4, 5, parts=(nn.Bilinear(5, 5, 3, bias=False),))(lambda layer, x: layer(x, x * x)),
    ],
    "fewer-dimensions": [
        lambda: _of(1, 8, 8, 3)(
            lambda x: x.view(1, 2, 4, 2, 4, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 3)
        ),
    ],
}
"""By rewrite: each makes a net that it matches, and its input."""


def _assigned(x: Tensor) -> Tensor:
    x = x.clone()
    x[x < 0.3] = 0.25
    return x


def _written(x: Tensor, *places_and_values: Any) -> Tensor:
    """Write the values into the places of a tensor."""
    for place, value in zip(places_and_values[::2], places_and_values[1::2], strict=True):
        x[place] = value
    return x


def weight_normed() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Net(lambda layer, x: layer(x), nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))), (
        _random(*ROW),
    )
