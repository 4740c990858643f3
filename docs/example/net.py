"""The model of README.md and of the picture of a report: one operator of it stays on the CPU."""

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
