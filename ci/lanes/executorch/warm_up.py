"""A small model that a worker lowers before it forks."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def model() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
    return layers.eval(), (torch.rand(1, 3, 8, 8),)
