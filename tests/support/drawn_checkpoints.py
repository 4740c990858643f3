"""What was measured of checkpoints that were drawn by chance, each compiled right and with a fault planted,
and what today's limits say of it: limits are tried without another run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.lanes.llm.orders import PartDistances
from ci.lanes.llm.verdicts import (
    READER_NAMES,
    WINDOWS,
    Bounds,
    Figure,
    Figures,
    PartRow,
    cause_of,
    culprit,
    figure_problems,
    part_row,
)
from ci.suite.precision import written_name
from tests.support.planted_decoders import FAULTS

KEPT = Path(__file__).parents[1] / "unit" / "drawn_checkpoints.jsonl"
KEPT_FIGURES = (
    "top1",
    "tied_choice",
    "perplexity_ratio",
    "divergence",
    "divergence_50",
    "divergence_99",
)
"""Of which two decide no more."""
CHOSEN_BY = (None, 1479896)
"""The seeds of those by which the limits were chosen; those without one are the oldest."""


def drawn() -> list[dict[str, Any]]:
    return list(map(json.loads, KEPT.read_text(encoding="utf-8").splitlines()))


def replayed(line: Mapping[str, Any]) -> list[str]:
    """What `check` says by today's limits of the logits and the parts that a line holds."""
    figures, bounds, rows = _unpacked(line)
    missed = list(figure_problems(figures, bounds))
    found = culprit(rows)
    return [found, *missed] if found else missed


def cause(line: Mapping[str, Any]) -> str:
    """What it says to be the reason."""
    figures, bounds, rows = _unpacked(line)
    return cause_of(rows, figures, bounds)


def _unpacked(line: Mapping[str, Any]) -> tuple[dict[str, Figures], Bounds, list[PartRow]]:
    """Its figures, limits and parts."""
    rounding, precision = line["rounding"], str(written_name(line["precision"]))
    # Both kinds of graph had been measured apart.
    alone = [kinds["prefill"]["typical"] for kinds in rounding["parts"]]
    noise = _named(rounding["noise"])
    noise |= {WINDOWS: noise.pop("prefill")}
    bounds = Bounds(precision, noise, alone, {})
    parts = [
        PartDistances(
            part.get("part", part.get("number")),
            part["kind"],
            tuple(part["layers"]),
            part["htp"]["typical"],
            part["cpu"]["typical"] if part.get("cpu") else None,
        )
        for part in line["parts"]
    ]
    figures = {name: read for name, read in _named(line["figures"]).items() if name in READER_NAMES}
    return figures, bounds, [part_row(part, bounds) for part in parts]


def _named(readers: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Figures]:
    """First choices are given as equal in lines that were drawn before they were counted without ties."""
    return {
        reader: {name: Figure(*pair) for name, pair in zip(KEPT_FIGURES, pairs, strict=True)}
        for reader, pairs in readers.items()
    }


def layer_named(line: Mapping[str, Any]) -> str:
    """Whether the finding that names layers names one with the fault; nothing where none does."""
    return named_layer("\n".join(replayed(line)), line["fault"], line["layers"])


def named_layer(messages: str, fault: str, layers: int) -> str:
    """`right` or `wrong`, or nothing."""
    found = re.search(r"layers (\d+) to (\d+)", messages)
    if not found:
        return ""
    wrong = {"rows of the head one off": [layers - 1], "GELU in place of SiLU": range(layers)}
    first, last = map(int, found.groups())
    return "right" if any(first <= at <= last for at in wrong.get(fault, [FAULTS[fault].layer])) else "wrong"
