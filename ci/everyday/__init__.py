"""Commands for one model of either lane: `compile` and `quantize`."""
