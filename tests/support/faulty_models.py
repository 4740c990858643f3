"""Factories of models that do not compile, or lose what they are for, and of each with its fix in it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm


class Detector(nn.Module):
    """Boxes in pixels and the scores of 80 classes, of 144 places."""

    def __init__(self, *, apart: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.head = nn.Conv2d(32, 84, 1)
        self.apart = apart

    def forward(self, x: Tensor) -> Any:
        found = self.head(self.body(x)).flatten(2)
        boxes, scores = found[:, :4].sigmoid() * 640, found[:, 4:].sigmoid()
        return (boxes, scores) if self.apart else torch.cat([boxes, scores], 1)


def _image(generator: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, 48, 48, generator=generator),)


def detector(apart: bool = False) -> Any:
    return Detector(apart=apart).eval(), _image


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = weight_norm(nn.Conv1d(8, 8, 3, padding=1)), nn.Conv1d(8, 4, 1)

    def forward(self, x: Tensor) -> Any:
        return self.second(torch.relu(self.first(x)))


def normed(removed: bool = False) -> Any:
    model = Normed().eval()
    if removed:
        parametrize.remove_parametrizations(model.first, "weight")
    return model, _drawn(1, 8, 32)


class Bag(nn.Module):
    def __init__(self, *, summed: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16) if summed else nn.EmbeddingBag(50, 16, mode="sum")
        self.last, self.summed = nn.Linear(16, 4), summed

    def forward(self, words: Tensor) -> Any:
        bag = self.table(words)
        return self.last(bag.sum(1) if self.summed else bag)


def bag(summed: bool = False) -> Any:
    return Bag(summed=summed).eval(), lambda generator: (torch.randint(0, 50, (2, 7), generator=generator),)


def volume() -> Any:
    body = nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 4, 3, padding=1))
    return body.eval(), _drawn(1, 3, 4, 8, 8)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.last = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor, *state: Tensor) -> Any:
        return self.last(self.rnn(x, *state)[0])


def recurrent(state: bool = False) -> Any:
    return Recurrent().eval(), _drawn(1, 6, 8) if not state else _several((1, 6, 8), (1, 1, 16))


def bucket(count: int) -> Tensor:
    """T5's table of relative positions."""
    off = torch.arange(count)[None] - torch.arange(count)[:, None]
    side, off = (off > 0).long() * 16, off.abs()
    far = 8 + (torch.log(off.float() / 8) / math.log(128 / 8) * 8).long()
    return side + torch.where(off < 8, off, torch.min(far, torch.full_like(far, 15)))


class Biased(nn.Module):
    def __init__(self, *, kept: bool) -> None:
        super().__init__()
        self.table, self.query, self.kept = nn.Embedding(32, 4), nn.Linear(16, 16), kept
        self.register_buffer("bucket", bucket(8), persistent=False)

    def forward(self, x: Tensor) -> Any:
        bias = self.table(self.bucket if self.kept else bucket(x.shape[1])).permute(2, 0, 1)
        heads = self.query(x).view(1, x.shape[1], 4, 4).transpose(1, 2)
        return torch.softmax(heads @ heads.transpose(-1, -2) + bias, -1)


def biased(kept: bool = False) -> Any:
    return Biased(kept=kept).eval(), _drawn(1, 8, 16)


class Named(nn.Module):
    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"y": torch.relu(inputs["a"]) + inputs["b"]}


def named() -> Any:
    return Named().eval(), ({"a": torch.randn(2, 4), "b": torch.randn(2, 4)},)


def lacking() -> Any:
    return importlib.import_module("of_another_environment").model().eval(), _drawn(1, 8, 16)


class Anchored(nn.Module):
    """A grid of places that is computed in each run, of constants alone."""

    def __init__(self, *, kept: bool) -> None:
        super().__init__()
        self.body, self.kept = nn.Conv2d(3, 2, 3, 2, 1), kept
        self.register_buffer("places", self._grid(8), persistent=False)

    @staticmethod
    def _grid(size: int) -> Tensor:
        across, down = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="xy")
        return torch.sigmoid(torch.stack([across, down])[None] / 16)

    def forward(self, x: Tensor) -> Any:
        y = self.body(x)
        return y + (self.places if self.kept else self._grid(y.shape[-1]))


def anchored(kept: bool = False) -> Any:
    return Anchored(kept=kept).eval(), _drawn(1, 3, 16, 16)


class Loud(nn.Module):
    """A norm of values whose squares fp16 does not have."""

    def __init__(self, *, smaller: bool) -> None:
        super().__init__()
        self.first, self.factor = nn.Linear(16, 16), 0.01 if smaller else 1.0

    def forward(self, x: Tensor) -> Any:
        y = self.first(x) * 300.0 * self.factor
        return y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6)


def loud(smaller: bool = False) -> Any:
    return Loud(smaller=smaller).eval(), _several((8, 16), scale=4.0)


class Mixed(nn.Module):
    """The weighted mean of its layers."""

    def __init__(self, *, sliced: bool) -> None:
        super().__init__()
        self.layers, self.sliced = nn.ModuleList(nn.Linear(16, 16) for _ in range(3)), sliced
        self.weights = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Any:
        weights = torch.softmax(self.weights, 0)
        parts = []
        for place, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            parts.append(x * (weights[place : place + 1] if self.sliced else weights[place]))
        return parts[0] + parts[1] + parts[2]


def mixed(sliced: bool = False) -> Any:
    return Mixed(sliced=sliced).eval(), _drawn(4, 16)


class Retrieves(nn.Module):
    """The rows with the best scores, as a detector chooses its queries."""

    def __init__(self, by_int32: bool) -> None:
        super().__init__()
        self.score, self.out, self.by_int32 = nn.Linear(8, 1), nn.Linear(8, 3), by_int32

    def forward(self, x: Tensor) -> Tensor:
        best = self.score(x).squeeze(-1).topk(4, dim=1).indices
        best = best.to(torch.int32).to(torch.int64) if self.by_int32 else best
        return self.out(x.gather(1, best.unsqueeze(-1).expand(-1, -1, 8)))


def retrieves(by_int32: bool = False) -> Any:
    return Retrieves(by_int32).eval(), _drawn(1, 16, 8)


class Attentive(nn.Module):
    """Torch's own attention, of one sample."""

    def __init__(self, *, replaced: bool) -> None:
        super().__init__()
        attention: Any = nn.MultiheadAttention(32, 2, batch_first=True)
        # The page's, which the test puts beside this file.
        self.attention = (
            importlib.import_module("of_the_page").Attention(attention) if replaced else attention
        )

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.attention(x, y, y, need_weights=False)[0]


def attentive(replaced: bool = False) -> Any:
    return Attentive(replaced=replaced).eval(), _several((1, 10, 32), (1, 16, 32))


class Chooses(nn.Module):
    """Classes of places: at 8 bits some have two that are as good."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2))
        self.last = nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.body(x)).argmax(1)


def chooses() -> Any:
    return Chooses().eval(), _drawn(1, 3, 32, 32)


def _drawn(*size: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return _several(size)


def _several(*sizes: tuple[int, ...], scale: float = 1.0) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda generator: tuple(scale * torch.randn(*size, generator=generator) for size in sizes)


class Masked(nn.Module):
    """Of whole numbers, which mark what counts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.linear(x) * mask.unsqueeze(-1).float()


def masked(kind: torch.dtype = torch.int64) -> Any:
    def inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
        count = int(torch.randint(2, 7, (), generator=generator))
        return torch.randn(1, 8, 32, generator=generator), (torch.arange(8)[None] < count).to(kind)

    return Masked().eval(), inputs
