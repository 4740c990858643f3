"""Collect all rewrites of places in a PyTorch model's graph, by their names in manifests/fixes.toml."""

from __future__ import annotations

from ci.explain.torch_escapes import ESCAPES
from ci.explain.torch_layers import LAYERS
from ci.explain.torch_lookups import LOOKUPS
from ci.explain.torch_pads import PADS
from ci.explain.torch_pools import POOLS
from ci.explain.torch_recurrent import RECURRENT
from ci.explain.torch_rewrites import REWRITES
from ci.explain.torch_styles import STYLES

BY_NAME = REWRITES | LAYERS | PADS | POOLS | RECURRENT | STYLES | ESCAPES | LOOKUPS
