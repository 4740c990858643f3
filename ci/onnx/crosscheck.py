"""The same factory at the same precision for the same chip, through ExecuTorch and through ONNX Runtime.

The other lane's figures come from its reports: the two live in environments that need not fit each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.onnx.precision import PRECISIONS
from ci.onnx.suite import Program
from provisioning.errors import ToolkitError
from provisioning.findings import Report

STAGES = ("test_lowering", "test_emulator")


@dataclass(frozen=True, slots=True)
class Lane:
    """What a lane says of a program; None where it does not know."""

    cosine: float | None
    sqnr_db: float | None
    size: int | None
    ddr_read: int | None
    ddr_written: int | None
    build_id: str

    def __str__(self) -> str:
        parts = [
            f"cosine {self.cosine:.5f}" if self.cosine is not None else "",
            f"{self.sqnr_db:.1f} dB" if self.sqnr_db is not None else "",
            f"{self.size:,} bytes" if self.size is not None else "",
            f"DDR {self.ddr_read:,} read" if self.ddr_read is not None else "",
            f"{self.ddr_written:,} written" if self.ddr_written is not None else "",
        ]
        return ", ".join(part for part in parts if part) or "nothing known"


Key = tuple[str, str, str, str]


def key_of_program(program: Program) -> Key:
    """Factory, arguments, ExecuTorch's name of the precision, chip."""
    arguments = json.dumps(program.case.arguments, sort_keys=True)
    return (
        program.case.factory or "",
        arguments,
        PRECISIONS[program.run.precision].executorch,
        program.soc,
    )


def executorch_lane(reports: Path, suite: Path) -> dict[Key, Lane]:
    """Every program that both of the other lane's reports, or one of them, know; {} where there are none."""
    from ci.lowering.suite import load_suite

    found = {stage: _programs(reports / f"{stage}.json") for stage in STAGES}
    names = dict.fromkeys(name for rows, _ in found.values() for name in rows)
    try:
        cases = load_suite(suite).cases
    except ToolkitError:
        return {}
    lanes: dict[Key, Lane] = {}
    for name in names:
        rows = [found[stage][0].get(name, {}) for stage in STAGES]
        case = cases.get(str((rows[0] or rows[1]).get("case", "")))
        if case is None:
            continue
        either = rows[0] or rows[1]
        key = (
            case.factory,
            json.dumps(case.arguments, sort_keys=True),
            str(either["scheme"]),
            str(either["soc"]),
        )
        # QAT and other special runs are no match for plain quantization.
        if either["run"] == either["scheme"]:
            lanes[key] = _lane(rows[0], rows[1], found[STAGES[0]][1] or found[STAGES[1]][1])
    return lanes


def markdown(pairs: Sequence[tuple[str, Lane, Lane]]) -> str:
    lines = [
        "| program | lane | cosine | SQNR dB | bytes | DDR read | DDR written |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, onnx, executorch in pairs:
        for title, lane in (("ONNX Runtime", onnx), ("ExecuTorch", executorch)):
            cells = [
                _cell(lane.cosine, ".6f"),
                _cell(lane.sqnr_db, ".1f"),
                _cell(lane.size, ",d"),
                _cell(lane.ddr_read, ",d"),
                _cell(lane.ddr_written, ",d"),
            ]
            lines.append(f"| {name} | {title} (QNN {lane.build_id}) | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _programs(path: Path) -> tuple[dict[str, Mapping[str, Any]], str]:
    try:
        metrics: Mapping[str, Any] = Report.read(path).metrics
    except (OSError, ValueError):
        return {}, ""
    rows = metrics.get("programs")
    return (rows if isinstance(rows, dict) else {}), str(metrics.get("build_id", ""))


def _lane(lowered: Mapping[str, Any], emulated: Mapping[str, Any], build_id: str) -> Lane:
    costs, figures = lowered.get("costs", {}), emulated.get("figures", {})

    def whole(name: str) -> int | None:
        return int(costs[name]) if costs.get(name) is not None else None

    return Lane(
        cosine=figures.get("cosine"),
        sqnr_db=figures.get("sqnr_db"),
        size=whole("pte_bytes"),
        ddr_read=whole("ddr_read"),
        ddr_written=whole("ddr_written"),
        build_id=build_id,
    )
