"""What was measured of checkpoints that were drawn by chance, each compiled right and with a fault planted,
and what today's limits say of it: limits are tried without another run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.lanes.llm.orders import Distance, PartDistances
from ci.lanes.llm.verdicts import (
    FIGURES,
    Bounds,
    Figure,
    Figures,
    PartRow,
    cause_of,
    culprit,
    figure_problems,
    part_rows,
)
from ci.plain import read
from ci.suite.precision import written_name
from tests.support.planted_decoders import FAULTS

KEPT = Path(__file__).parents[1] / "unit" / "drawn_checkpoints.jsonl"
CHOSEN_BY = (None, 1479896)
"""The seeds of those by which the limits were chosen; those without one are the oldest."""


def drawn() -> list[dict[str, Any]]:
    return list(map(json.loads, KEPT.read_text(encoding="utf-8").splitlines()))


def replayed(line: Mapping[str, Any]) -> list[str]:
    """What `check` says by today's limits of the logits and the parts that a line holds."""
    figures, bounds, rows = _unpacked(line)
    missed = list(figure_problems(figures, bounds))
    found = culprit(rows, figures, bounds)
    return [found, *missed] if found else missed


def cause(line: Mapping[str, Any]) -> str:
    """What it says to be the reason."""
    figures, bounds, rows = _unpacked(line)
    return cause_of(rows, figures, bounds)


def _unpacked(line: Mapping[str, Any]) -> tuple[dict[str, Figures], Bounds, list[PartRow]]:
    """Its figures, limits and parts."""
    rounding, precision = line["rounding"], str(written_name(line["precision"]))
    alone = [
        {kind: Distance(held["db"], "", held["typical"]) for kind, held in kinds.items()}
        for kinds in rounding["parts"]
    ]
    bounds = Bounds(precision, _named(rounding["noise"]), alone, {})
    parts = [read(PartDistances, {"cpu": None, "number": part.get("part"), **part}) for part in line["parts"]]
    return _named(line["figures"]), bounds, part_rows(parts, bounds)


def _named(readers: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Figures]:
    """First choices are given as equal in lines that were drawn before they were counted without ties."""
    return {
        reader: {name: Figure(*pair) for name, pair in zip(FIGURES, pairs, strict=True)}
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
