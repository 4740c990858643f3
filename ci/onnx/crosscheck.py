"""The same factory at the same precision for the same chip, through ExecuTorch and through ONNX Runtime.

The other lane's figures come from its reports, and where there is none, from its baseline: the two live in
environments that need not fit each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.executorch.suite import SUITES
from ci.onnx.precision import PRECISIONS
from ci.onnx.suite import Program
from ci.suites.baseline import baseline_path, load_baseline
from provisioning.base.findings import Report

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
    agreed: bool = False
    """From the baseline, not of this run."""


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


def executorch_lane(reports: Path, suite: Path, profile: str) -> dict[Key, Lane]:
    """Every program of the other lane's suite that was ever measured."""
    found = {stage: _programs(reports / f"{stage}.json") for stage in STAGES}
    build_id = found[STAGES[0]][1] or found[STAGES[1]][1]
    baseline = load_baseline(baseline_path(suite, profile))
    lanes: dict[Key, Lane] = {}
    for program in SUITES.programs_of(suite):
        # QAT and other special runs are no match for plain quantization.
        if program.run.name != program.run.scheme:
            continue
        rows = [found[stage][0].get(program.name, {}) for stage in STAGES]
        agreed = baseline.of(program.name)
        arguments = json.dumps(program.case.arguments, sort_keys=True)
        key = (program.case.factory, arguments, program.run.scheme, program.soc)
        if any(rows):
            costs, figures = rows[0].get("costs", {}), rows[1].get("figures", {})
            lanes[key] = _lane(costs, figures, build_id)
        elif agreed is not None:
            lanes[key] = replace(_lane(agreed.model_dump(), agreed.accuracy, agreed.build_id), agreed=True)
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
            whose = f"{title}, baseline" if lane.agreed else title
            lines.append(f"| {name} | {whose} (QNN {lane.build_id}) | {' | '.join(cells)} |")
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


def _lane(costs: Mapping[str, Any], figures: Mapping[str, Any], build_id: str) -> Lane:
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
