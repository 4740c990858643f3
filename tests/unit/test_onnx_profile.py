"""Shares of operators, lines and modules on the emulator, and what changed between two profiles."""

from __future__ import annotations

from pathlib import Path

from ci.onnx.events import costs
from ci.suites.profile import Cost, Measured, difference, document, read_document

HEADER = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier\n"


def events(folder: Path, *rows: str) -> Path:
    path = folder / "profile.csv"
    path.write_text(HEADER + "".join(f"0,NODE,{row}\n" for row in rows))
    return path


def row(cycles: int, name: str) -> str:
    return f"{cycles},CYCLES,BACKEND,SUB-EVENT,{name} (cycles)"


def test_an_operator_costs_the_least_of_its_runs_and_the_sum_of_its_parts(tmp_path: Path) -> None:
    path = events(
        tmp_path,
        row(10, "conv:OpId_23"),
        row(900, "mm:OpId_31"),
        row(30, "conv:OpId_24"),
        row(828, "Input OpId_2"),
        row(70, "conv:OpId_23"),
        row(60, "mm:OpId_31"),
        row(50, "conv:OpId_24"),
        row(0, "fused:OpId_40"),
        "broken",
    )
    assert costs(path) == [Cost("mm", 60, 0.6), Cost("conv", 40, 0.4)]


def test_a_difference_that_noise_explains_is_none_whatever_number_the_provider_gave(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    before = [
        Cost("conv_token_1", 46, 0.46, 0.4, 0.7),
        Cost("mm", 44, 0.44, 0.4, 0.5),
        Cost("add", 5, 0.05, 0.05, 0.05),
        Cost("gone", 10, 0.1, 0.1, 0.1),
    ]
    path.write_text(document(Measured(before), {"soc": "SM8750"}))
    now = [
        Cost("conv_token_8", 67, 0.67, 0.45, 0.7),
        Cost("mm", 13, 0.13, 0.1, 0.2),
        Cost("add", 5, 0.06, 0.06, 0.06),
        Cost("new", 20, 0.2, 0.2, 0.2),
    ]
    changes = difference(now, read_document(path))
    assert [(one.operator, one.before, one.now, one.repeats) for one in changes] == [
        ("mm", 0.44, 0.13, False),
        ("new", None, 0.2, False),
        ("gone", 0.1, None, False),
        ("conv", 0.46, 0.67, True),
        ("add", 0.05, 0.06, True),
    ]
