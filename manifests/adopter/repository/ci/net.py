"""A small model of the repository that `nox -s lab -- adopter` changes and gates."""

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.features = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.head = torch.nn.Linear(16, 10)

    def forward(self, image):
        x = torch.nn.functional.relu(self.features(image))
        return self.head(x.mean((2, 3)))


def image(generator):
    return (torch.randn(1, 3, 32, 32, generator=generator),)


def model():
    return Net().eval(), image
