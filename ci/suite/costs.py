"""The names of costs, which the page shows without the packages that check a baseline."""

from __future__ import annotations

TITLES = {
    "ddr_read": "DDR read",
    "ddr_written": "DDR written",
    "ddr_spilled": "spilled",
    "ddr_filled": "filled",
    "pte_bytes": ".pte",
    "context_bytes": "context",
    "cpu_seconds": "compiling",
}


def cost_rule(name: str) -> str:
    return f"cost-{name.replace('_', '-')}"
