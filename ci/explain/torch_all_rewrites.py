"""Collect all rewrites of places in a PyTorch model's graph, by their names in manifests/fixes.toml."""

from __future__ import annotations

from ci.explain.torch_escapes import ESCAPES
from ci.explain.torch_layers import LAYERS
from ci.explain.torch_rewrites import REWRITES

BY_NAME = REWRITES | LAYERS | ESCAPES
