"""Commands for one model of either lane: `compile`, `quantize`, `audit`, `divergence`."""
