"""Models that no suite of ours names, as a user brings them: random weights, small sizes."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn

Sample = tuple[nn.Module, tuple[Tensor, ...]]


class Calls(nn.Module):
    """A transformers model with tensors for arguments and one tensor for result."""

    def __init__(self, model: nn.Module, result: str, argument: str) -> None:
        super().__init__()
        self.model, self.result, self.argument = model, result, argument

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = getattr(self.model(**{self.argument: x}), self.result)
        return found


def _of(model: nn.Module, argument: str, x: Tensor, result: str = "logits") -> Sample:
    return Calls(model.eval(), result, argument).eval(), (x,)


def convnext() -> Sample:
    torch.manual_seed(0)
    config = transformers.ConvNextConfig(
        image_size=64, depths=[1, 1, 2, 1], hidden_sizes=[16, 32, 48, 64], num_labels=10
    )
    model = transformers.ConvNextForImageClassification(config)
    return _of(model, "pixel_values", torch.rand(1, 3, 64, 64))


def swin() -> Sample:
    torch.manual_seed(0)
    config = transformers.SwinConfig(
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=10,
    )
    model = transformers.SwinForImageClassification(config)
    return _of(model, "pixel_values", torch.rand(1, 3, 32, 32))


def whisper_encoder() -> Sample:
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=64, max_source_positions=50,
        decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=64,
    )  # fmt: skip
    model = transformers.WhisperModel(config).encoder
    return _of(model, "input_features", torch.rand(1, 80, 100), "last_hidden_state")


def distilbert() -> Sample:
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=128, max_position_embeddings=32, n_layers=2, n_heads=2, dim=32, hidden_dim=64
    )
    model = transformers.DistilBertForSequenceClassification(config)
    return _of(model, "input_ids", torch.randint(0, 128, (1, 16)))


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


class Windows(nn.Module):
    """Attention's windows as Swin cuts them, in six dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mix, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 8), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x)).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        windows = x.reshape(n, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5)
        windows = windows + self.mix(windows)
        whole = windows.permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        result: Tensor = self.last(whole.permute(0, 3, 1, 2))
        return result


def rank_six() -> Sample:
    torch.manual_seed(0)
    return Windows().eval(), (torch.rand(1, 3, 16, 16),)


class CalledAgain(nn.Module):
    """One layer in two parts of the program: erf between its calls stays on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(torch.erf(self.layer(x))))
        return result


def called_again() -> Sample:
    torch.manual_seed(0)
    return CalledAgain().eval(), (torch.randn(4, 8),)


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
