"""Shares of operators on the emulator."""

from __future__ import annotations

from pathlib import Path

from ci.lanes.onnx.events import costs
from ci.pipeline.profile import OperatorCost

HEADER = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier\n"
EVENTS = [
    (10, "conv:OpId_23"),
    (900, "mm:OpId_31"),
    (30, "conv:OpId_24"),
    (828, "Input OpId_2"),
    (70, "conv:OpId_23"),
    (60, "mm:OpId_31"),
    (50, "conv:OpId_24"),
    (0, "fused:OpId_40"),
]
"""Two runs of three nodes."""


def test_an_operator_costs_the_least_of_its_runs_and_the_sum_of_its_parts(tmp_path: Path) -> None:
    rows = [f"0,NODE,{cycles},CYCLES,BACKEND,SUB-EVENT,{name} (cycles)\n" for cycles, name in EVENTS]
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + "".join(rows) + "0,NODE,broken\n")
    assert costs(path) == [OperatorCost("mm", 60, 0.6), OperatorCost("conv", 40, 0.4)]
