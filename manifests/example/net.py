"""Two models: an operator of `model` stays on the CPU, and a line of `scores` is wrong on the NPU."""

import torch


class Net(torch.nn.Module):
    def __init__(self, by_hand):
        super().__init__()
        self.by_hand = by_hand
        self.features = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.head = torch.nn.Linear(16, 10)

    def gelu(self, x):
        if self.by_hand:
            return 0.5 * x * (1 + torch.erf(x / 2**0.5))
        return torch.nn.functional.gelu(x)

    def forward(self, image):
        x = self.gelu(self.features(image))
        return self.head(x.mean((2, 3)))


def image(generator):
    return (torch.randn(1, 3, 32, 32, generator=generator),)


def model(by_hand=True):
    return Net(by_hand).eval(), image


class Scores(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.text = torch.nn.Linear(16, 32)
        self.image = torch.nn.Linear(16, 32)

    def forward(self, texts, images):
        texts = torch.nn.functional.gelu(self.text(texts))
        images = torch.nn.functional.gelu(self.image(images))
        return torch.einsum("ij,kj->ik", texts, images)


def texts_and_images(generator):
    return torch.randn(8, 16, generator=generator), torch.randn(12, 16, generator=generator)


def scores():
    return Scores().eval(), texts_and_images
