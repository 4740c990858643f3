"""Models that no suite of ours names, as a user brings them: random weights, small sizes."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn

Sample = tuple[nn.Module, tuple[Tensor, ...]]


class Classifies(nn.Module):
    """A transformers model with one tensor for argument and result."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=x).logits
        return logits


def swin() -> Sample:
    torch.manual_seed(0)
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "window_size": 4, "num_labels": 10}
    config = transformers.SwinConfig(**sizes, depths=[2, 2], num_heads=[2, 4])
    model = transformers.SwinForImageClassification(config).eval()
    return Classifies(model).eval(), (torch.rand(1, 3, 32, 32),)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.rnn(x)
        result: Tensor = self.head(y)
        return result


def lstm() -> Sample:
    torch.manual_seed(0)
    return Recurrent().eval(), (torch.randn(1, 5, 16),)


class UNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inside = self._block(3, width)
        self.down = self._block(width, 2 * width)
        self.bottom = self._block(2 * width, 4 * width)
        self.up_bottom = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join = self._block(4 * width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.outside = self._block(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    @staticmethod
    def _block(before: int, after: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        first = self.inside(x)
        second = self.down(nn.functional.max_pool2d(first, 2))
        third = self.bottom(nn.functional.max_pool2d(second, 2))
        second = self.join(torch.cat([self.up_bottom(third), second], dim=1))
        return torch.sigmoid(self.head(self.outside(torch.cat([self.up(second), first], dim=1))))


def unet() -> Sample:
    torch.manual_seed(0)
    return UNet().eval(), (torch.rand(1, 3, 32, 32),)


class Assigns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        y[:, 0] = 0
        return y


def assigns() -> Sample:
    torch.manual_seed(0)
    return Assigns().eval(), (2 * torch.rand(2, 8) - 1,)


@torch.library.custom_op("common_models::double", mutates_args=())  # type: ignore[untyped-decorator]
def double(x: Tensor) -> Tensor:
    return x * 2


@double.register_fake  # type: ignore[untyped-decorator]
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class OwnOperator(Assigns):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = double(self.linear(x))
        return result


def own_operator() -> Sample:
    torch.manual_seed(0)
    return OwnOperator().eval(), (2 * torch.rand(2, 8) - 1,)
