"""What QNN's simulator writes is read as time of operators, and a guess is told from what it knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci.artifacts.simulation import COSTS, TRACE, Simulation, read_simulation, timeline
from ci.pipeline.simulated import as_text, simulated_costs
from ci.report.profiles import threads_of

CLOCK = 1000
"""Cycles of a microsecond."""
FG, HVX = 0, 1
PLACES = {"node_softmax": {"line": "net.py:7", "module": "head", "kind": "Softmax"}}


def entry(thread: int, operator: int, name: str, start: int, took: int, *flags: str) -> dict[str, Any]:
    return {
        "ph": "X",
        "tid": thread,
        "name": name,
        "ts": start * CLOCK,
        "dur": took * CLOCK,
        "args": {"id": hex(0x4E00 << 32 | operator), "flags": flags},
    }


ENTRIES = (
    entry(FG, 23, "q::ConvLayer", 0, 4, "uses_hmx"),
    entry(HVX, 43, "q::Softmax", 2, 4, "for_hvx"),
    entry(FG, 43, "default_hvx_spawn (q::Softmax)", 0, 6, "scalar"),
    entry(HVX, 47, "q::Transpose_impl", 6, 4, "for_hvx"),
)


def simulation(folder: Path, *entries: dict[str, Any], guessed: str = "fallback") -> Simulation:
    titles = [
        {"ph": "M", "name": "thread_name", "tid": tid, "args": {"name": name}}
        for tid, name in ((FG, "FG:"), (HVX, "HVX 1:"))
    ]
    body = {
        "traceEvents": [*titles, *(entries or ENTRIES)],
        "Hextimate Configuration": {"soc_type": "SM8750", "sim_core_freq": CLOCK},
    }
    (folder / TRACE).write_text(json.dumps(body))
    (folder / COSTS).write_text(
        f"opid,name,resource,model status,prediction,used cost,features,model_type\n"
        f"{hex(23)},Conv,hmx,exists,9,9,,mlp\n{hex(43)},Softmax,hvx,{guessed},9,9,,mlp\n"
    )
    return read_simulation(folder / TRACE, folder / COSTS)


def test_a_moment_in_which_two_operators_work_is_shared_and_waiting_is_no_work(tmp_path: Path) -> None:
    found = simulation(tmp_path)
    assert found.us == 10 and sum(row.us for row in found.operators) == pytest.approx(found.us)
    assert {row.operator: row.us for row in found.operators} == {23: 3, 43: 3, 47: 4}
    assert found.busy == {"HMX": 4, "HVX": 8, "scalar": 0}


def test_a_change_of_layout_has_the_line_of_the_node_whose_tensor_it_is(tmp_path: Path) -> None:
    names = {23: "node_conv", 43: "node_softmax", 47: "softmax_QuantizeLinear_OutputTranspose"}
    profile = simulated_costs(simulation(tmp_path), "v2.51.0.1", names, PLACES, "(added)")
    lines = {cost.operator: cost.line for cost in profile.costs}
    assert lines == {"node_softmax": "net.py:7", names[47]: "net.py:7", "node_conv": "(added)"}
    assert any(line.split() == ["7.0", "net.py:7"] for line in as_text(profile))


def test_an_operator_whose_cost_qnn_does_not_know_is_a_guess(tmp_path: Path) -> None:
    for known, share in (("fallback", 1), ("exists", 0)):
        found = {row.operator: row.guessed for row in simulation(tmp_path, guessed=known).operators}
        assert (found[43], found[23]) == (share, 0)


def test_the_timeline_has_each_entry_by_the_name_of_its_operator(tmp_path: Path) -> None:
    found = simulation(tmp_path)
    body = timeline(found, {23: "node_conv"})
    shown = [event for event in body["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in shown] == ["node_conv", "Softmax", "Softmax", "Transpose_impl"]
    assert {event["ts"] + event["dur"] for event in shown} >= {4, 6, 10}


def test_the_picture_shows_who_works_when(tmp_path: Path) -> None:
    threads = {thread.name: thread.pieces for thread in threads_of(simulation(tmp_path), {})}
    assert [(piece.unit, piece.label, piece.start) for piece in threads["FG"]] == [("HMX", "ConvLayer", 0)]
    hvx = [(piece.label, round(piece.start), round(piece.width)) for piece in threads["HVX 1"]]
    assert hvx == [("Softmax", 20, 40), ("Transpose_impl", 60, 40)]
