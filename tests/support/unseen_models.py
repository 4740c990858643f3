"""Models of many kinds that no suite has and no fix was written for: random weights, small sizes. Each
function returns a model and a function that draws its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

Model = tuple[nn.Module, Callable[[Generator], tuple[Tensor, ...]]]


class Deformable(nn.Module):
    """A convolution that samples where its own offsets say."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.offset = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 2, 3, padding=1)
        self.head = nn.Conv2d(16, 8, 3, padding=1)
        rows, columns = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij")
        self.register_buffer("grid", torch.stack([columns, rows], -1)[None])

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x))
        grid = self.grid + 0.2 * torch.tanh(self.offset(x)).permute(0, 2, 3, 1)
        return self.head(functional.grid_sample(x, grid, align_corners=True))


class Codebook(nn.Module):
    """A VQ-VAE: the nearest code of each place, and the image that is decoded from the codes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 4, 2, 1))
        self.codes = nn.Embedding(32, 8)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x).permute(0, 2, 3, 1)
        flat, codes = z.reshape(-1, 8), self.codes.weight
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ codes.t() + codes.pow(2).sum(1)
        chosen = distance.argmin(1)
        return self.decoder(self.codes(chosen).view(z.shape).permute(0, 3, 1, 2)), chosen


class Generates(nn.Module):
    """A generator of images: convolutions modulated by a style, and pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.style, self.start = nn.Linear(16, 32), nn.Parameter(torch.randn(1, 32, 4, 4))
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(32, 32, 3, 3) * 0.1) for _ in range(2))
        self.image = nn.Conv2d(32, 12, 1)

    def forward(self, z: Tensor) -> Tensor:
        style = (
            functional.leaky_relu(self.style(z / z.square().mean(1, keepdim=True).add(1e-8).sqrt()), 0.2) + 1
        )
        x = self.start
        for number in range(len(self.weights)):
            x = functional.interpolate(x, scale_factor=2)
            x = functional.leaky_relu(self.modulated(x, number, style), 0.2)
        return torch.tanh(functional.pixel_shuffle(self.image(x), 2))

    def modulated(self, x: Tensor, number: int, style: Tensor) -> Tensor:
        kernel = self.weights[number] * style.view(1, -1, 1, 1)
        kernel = kernel * torch.rsqrt(kernel.square().sum((1, 2, 3), keepdim=True) + 1e-8)
        return functional.conv2d(x, kernel, padding=1)


class Multiplies(Generates):
    """As the fix says."""

    def __init__(self) -> None:
        super().__init__()
        powers = (weight.detach().square().sum((2, 3)) for weight in self.weights)
        self.powers = nn.ParameterList(nn.Parameter(power) for power in powers)

    def modulated(self, x: Tensor, number: int, style: Tensor) -> Tensor:
        read = style[:, :, None, None]
        given = torch.rsqrt(functional.linear(style * style, self.powers[number]) + 1e-8)[:, :, None, None]
        return functional.conv2d(x * read, self.weights[number], padding=1) * given


class Spectral(nn.Module):
    """A Fourier neural operator in one dimension; its transform is a product with sines and cosines."""

    def __init__(self, length: int = 64, modes: int = 8, width: int = 16) -> None:
        super().__init__()
        angle = 2 * math.pi * torch.arange(modes).outer(torch.arange(length)) / length
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.lift, self.skip = nn.Conv1d(1, width, 1), nn.Conv1d(width, width, 1)
        self.real, self.imag = (nn.Parameter(torch.randn(width, width, modes) / width) for _ in range(2))
        self.out = nn.Conv1d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        for _ in range(2):
            real, imag = x @ self.cos.t(), -(x @ self.sin.t())
            a = torch.einsum("bim,iom->bom", real, self.real) - torch.einsum("bim,iom->bom", imag, self.imag)
            b = torch.einsum("bim,iom->bom", real, self.imag) + torch.einsum("bim,iom->bom", imag, self.real)
            x = functional.gelu((a @ self.cos - b @ self.sin) / x.shape[-1] * 2 + self.skip(x))
        return self.out(x)


class Recommends(nn.Module):
    """A DLRM: tables of categories, and the products of each two of them."""

    def __init__(self, sizes: tuple[int, ...] = (50, 20, 10)) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 8) for size in sizes)
        self.bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        pairs = torch.tril_indices(len(sizes) + 1, len(sizes) + 1, -1)
        self.register_buffer("rows", pairs[0])
        self.register_buffer("columns", pairs[1])
        self.top = nn.Sequential(nn.Linear(8 + pairs.shape[1], 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(dense)
        rows = [table(categories[:, number]) for number, table in enumerate(self.tables)]
        stacked = torch.stack([dense, *rows], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.rows, self.columns]
        return torch.sigmoid(self.top(torch.cat([dense, products], 1)))


class Keypoints(nn.Module):
    """An hourglass, and where each of its heat maps is warmest."""

    def __init__(self, points: int = 5) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.up, self.side = nn.ConvTranspose2d(32, 16, 4, 4), nn.Conv2d(1, 16, 1)
        self.maps = nn.Conv2d(16, points, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.maps(functional.relu(self.up(self.down(x)) + self.side(x)))
        warm = (10 * maps).flatten(2).softmax(-1).view(maps.shape)
        places = self.places(maps.shape[-1])
        points = torch.stack([(warm.sum(2) * places).sum(-1), (warm.sum(3) * places).sum(-1)], -1)
        return points, warm.flatten(2).amax(-1)

    def places(self, size: int) -> Tensor:
        return torch.linspace(0, 1, size)


class KeepsPlaces(Keypoints):
    """As the fix says."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.linspace(0, 1, 32), persistent=False)

    def places(self, size: int) -> Tensor:
        return self.kept


class Echo(nn.Module):
    """An echo state network: a leaky reservoir that is never trained, read by a linear layer."""

    def __init__(self, size: int = 48) -> None:
        super().__init__()
        weights = torch.randn(size, size) * (torch.rand(size, size) < 0.2)
        self.register_buffer("inner", weights * 0.9 / torch.linalg.eigvals(weights).abs().max())
        self.register_buffer("outer", torch.rand(size, 3) * 2 - 1)
        self.read = nn.Linear(size + 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        state, seen = x.new_zeros(x.shape[0], self.inner.shape[0]), []
        for u in x.unbind(1):
            state = 0.7 * state + 0.3 * torch.tanh(
                functional.linear(u, self.outer) + functional.linear(state, self.inner)
            )
            seen.append(torch.cat([u, state], -1))
        return self.read(torch.stack(seen, 1))


class Routes(nn.Module):
    """Experts of which each token takes the best two, by a mask that scatter writes."""

    def __init__(self, experts: int = 4, d: int = 16) -> None:
        super().__init__()
        self.router = nn.Linear(d, experts)
        self.first = nn.Parameter(torch.randn(experts, d, 32) * 0.2)
        self.second = nn.Parameter(torch.randn(experts, 32, d) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        best, chosen = scores.topk(2, -1)
        weights = torch.zeros_like(scores).scatter(-1, chosen, best.softmax(-1))
        hidden = functional.silu(torch.einsum("td,edh->teh", x, self.first))
        return (torch.einsum("teh,ehd->ted", hidden, self.second) * weights.unsqueeze(-1)).sum(1) + x


class WindowedUNet(nn.Module):
    """A U-Net whose middle attends within windows that are rolled by half."""

    def __init__(self, d: int = 24, window: int = 4) -> None:
        super().__init__()
        self.window, self.down = window, nn.Conv2d(3, d, 2, 2)
        self.norm, self.qkv, self.project = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.head = nn.Conv2d(d, d, 3, padding=1), nn.Conv2d(d + 3, 1, 1)

    def attend(self, x: Tensor) -> Tensor:
        windows = self.windows(x)
        q, k, v = self.qkv(self.norm(windows)).view(*windows.shape[:2], 3, 3, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(windows.shape)
        return x + self.image(self.project(mixed), x)

    def windows(self, x: Tensor) -> Tensor:
        size, count = self.window, x.shape[1] // self.window
        parts = x.view(1, count, size, count, size, -1).transpose(2, 3)
        return parts.reshape(-1, size * size, x.shape[-1])

    def image(self, windows: Tensor, like: Tensor) -> Tensor:
        size, count = self.window, like.shape[1] // self.window
        return windows.view(1, count, count, size, size, -1).transpose(2, 3).reshape(like.shape)

    def forward(self, image: Tensor) -> Tensor:
        x = self.attend(self.down(image).permute(0, 2, 3, 1))
        half = self.window // 2
        x = self.attend(x.roll((-half, -half), (1, 2))).roll((half, half), (1, 2))
        x = functional.interpolate(
            self.up(x.permute(0, 3, 1, 2)), scale_factor=2, mode="bilinear", align_corners=False
        )
        return torch.sigmoid(self.head(torch.cat([x, image], 1)))


class FewerDimensions(WindowedUNet):
    """As the fix says."""

    def windows(self, x: Tensor) -> Tensor:
        size, count = self.window, x.shape[1] // self.window
        parts = x.reshape(count, size, count, size * x.shape[-1]).transpose(1, 2)
        return parts.reshape(-1, size * size, x.shape[-1])

    def image(self, windows: Tensor, like: Tensor) -> Tensor:
        size, count = self.window, like.shape[1] // self.window
        return windows.reshape(count, count, size, size * like.shape[-1]).transpose(1, 2).reshape(like.shape)


class Listens(nn.Module):
    """A decoder of speech: an LSTM's cell that attends to the frames at each step."""

    def __init__(self, d: int = 16, steps: int = 4) -> None:
        super().__init__()
        self.encoder, self.cell = nn.GRU(8, d, batch_first=True), nn.LSTMCell(2 * d, d)
        self.keys, self.query, self.energy = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 1, bias=False)
        self.words, self.out, self.steps = nn.Embedding(12, d), nn.Linear(2 * d, 12), steps

    def forward(self, frames: Tensor) -> Tensor:
        seen, _ = self.encoder(frames)
        keys, batch = self.keys(seen), frames.shape[0]
        h = c = context = frames.new_zeros(batch, seen.shape[-1])
        word, said = torch.zeros(batch, dtype=torch.long), []
        for _ in range(self.steps):
            h, c = self.cell(torch.cat([self.words(word), context], -1), (h, c))
            weights = self.energy(torch.tanh(keys + self.query(h).unsqueeze(1))).softmax(1)
            context = (weights * seen).sum(1)
            said.append(self.out(torch.cat([h, context], -1)))
            word = said[-1].argmax(-1)
        return torch.stack(said, 1)


class Neighbours(nn.Module):
    """A point transformer: each point attends to those that lie nearest."""

    def __init__(self, d: int = 24, nearest: int = 6) -> None:
        super().__init__()
        self.nearest, self.first, self.out = nearest, nn.Linear(3, d), nn.Linear(d, 7)
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))
        self.place, self.weigh = (
            nn.Sequential(nn.Linear(size, d), nn.ReLU(), nn.Linear(d, d)) for size in (3, d)
        )

    def forward(self, points: Tensor) -> Tensor:
        x, count = self.first(points), points.shape[1]
        distance = (points.unsqueeze(2) - points.unsqueeze(1)).square().sum(-1)
        near = self.taken(distance.topk(self.nearest, -1, largest=False).indices).unsqueeze(-1)

        def picked(rows: Tensor) -> Tensor:
            every = rows.unsqueeze(1).expand(-1, count, -1, -1)
            return every.gather(2, near.expand(-1, -1, -1, rows.shape[-1]))

        place = self.place(points.unsqueeze(2) - picked(points))
        weights = self.weigh(self.q(x).unsqueeze(2) - picked(self.k(x)) + place)
        weights = weights.transpose(2, 3).softmax(-1).transpose(2, 3)
        return self.out((x + (weights * (picked(self.v(x)) + place)).sum(2)).amax(1))

    def taken(self, indices: Tensor) -> Tensor:
        return indices


class TakesInt32(Neighbours):
    """As the fix says."""

    def taken(self, indices: Tensor) -> Tensor:
        return indices.to(torch.int32).to(torch.int64)


class Flows(nn.Module):
    """A step of a normalizing flow: a learned mixture of channels, then an affine coupling."""

    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.mixture = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0])
        self.net = nn.Sequential(
            nn.Conv2d(channels // 2, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, channels, 3, padding=1)
        )

    def forward(self, image: Tensor) -> Tensor:
        x = functional.conv2d(functional.pixel_unshuffle(image, 2), self.kernel())
        kept, changed = x.chunk(2, 1)
        shift, scale = self.net(kept).chunk(2, 1)
        return torch.cat([kept, (changed + shift) * torch.sigmoid(scale + 2)], 1)

    def kernel(self) -> Tensor:
        return self.mixture[:, :, None, None]


class KeepsMixture(Flows):
    """As the fix says."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", self.mixture.detach()[:, :, None, None], persistent=False)

    def kernel(self) -> Tensor:
        return self.kept


class Hashes(nn.Module):
    """Bytes, each by several rows of small tables: its hashes choose them."""

    def __init__(self, rows: int = 64, d: int = 4, primes: tuple[int, ...] = (31, 43, 59, 61)) -> None:
        super().__init__()
        self.tables, self.primes = nn.ModuleList(nn.Embedding(rows, d) for _ in primes), primes
        self.mix, self.out, self.rows = nn.Conv1d(d * len(primes), 32, 3, padding=1), nn.Linear(32, 3), rows

    def forward(self, text: Tensor) -> Tensor:
        x = functional.gelu(self.mix(torch.cat(self.read(text), -1).transpose(1, 2)))
        return self.out(x.amax(-1))

    def read(self, text: Tensor) -> list[Tensor]:
        pairs = zip(self.tables, self.primes, strict=True)
        return [table((text + 1) * prime % self.rows) for table, prime in pairs]


class FoldsHashes(Hashes):
    """As the fix says."""

    def __init__(self) -> None:
        super().__init__()
        for number, prime in enumerate(self.primes):
            rows, table = (torch.arange(256) + 1) * prime % self.rows, self.tables[number]
            self.tables[number] = nn.Embedding.from_pretrained(table.weight.detach()[rows])

    def read(self, text: Tensor) -> list[Tensor]:
        return [table(text) for table in self.tables]


def _drawn(*shape: int) -> Callable[[Generator], tuple[Tensor, ...]]:
    return lambda generator: (torch.randn(shape, generator=generator),)


def _made(model: Callable[[], nn.Module], inputs: Callable[[Generator], tuple[Tensor, ...]]) -> Model:
    torch.manual_seed(0)
    return model().eval(), inputs


def deformable() -> Model:
    return _made(Deformable, _drawn(1, 3, 12, 12))


def codebook() -> Model:
    return _made(Codebook, _drawn(1, 3, 16, 16))


def generator() -> Model:
    return _made(Generates, _drawn(1, 16))


def generator_fixed() -> Model:
    return _made(Multiplies, _drawn(1, 16))


def spectral() -> Model:
    return _made(Spectral, _drawn(1, 1, 64))


def recommender() -> Model:
    def inputs(generator: Generator) -> tuple[Tensor, ...]:
        columns = [torch.randint(size, (8, 1), generator=generator) for size in (50, 20, 10)]
        return torch.randn(8, 6, generator=generator), torch.cat(columns, 1)

    return _made(Recommends, inputs)


def keypoints() -> Model:
    return _made(Keypoints, _drawn(1, 1, 32, 32))


def keypoints_fixed() -> Model:
    return _made(KeepsPlaces, _drawn(1, 1, 32, 32))


def echo() -> Model:
    return _made(Echo, _drawn(1, 8, 3))


def router() -> Model:
    return _made(Routes, _drawn(12, 16))


def windowed_unet() -> Model:
    return _made(WindowedUNet, _drawn(1, 3, 16, 16))


def windowed_unet_fixed() -> Model:
    return _made(FewerDimensions, _drawn(1, 3, 16, 16))


def speech() -> Model:
    return _made(Listens, _drawn(1, 10, 8))


def neighbours() -> Model:
    return _made(Neighbours, _drawn(1, 24, 3))


def neighbours_fixed() -> Model:
    return _made(TakesInt32, _drawn(1, 24, 3))


def flow() -> Model:
    return _made(Flows, _drawn(1, 3, 16, 16))


def flow_fixed() -> Model:
    return _made(KeepsMixture, _drawn(1, 3, 16, 16))


def hashes() -> Model:
    return _made(Hashes, lambda generator: (torch.randint(256, (1, 32), generator=generator),))


def hashes_fixed() -> Model:
    return _made(FoldsHashes, lambda generator: (torch.randint(256, (1, 32), generator=generator),))
