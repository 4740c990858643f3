"""The operators of ONNX's opset as cells of the operator table, from the baseline of their suite."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from ci.operators.onnx_tests import SUITE, NodeTests, node_tests
from ci.operators.table import (
    EXACT,
    FAILING,
    NOT_COMPILED,
    WORST_FIRST,
    Case,
    Cell,
    Inexact,
    failure_of,
    in_db,
    place_of,
)
from ci.suite.accuracy import against_nearest, computed_otherwise
from ci.suite.baseline import Recorded, load_baseline
from ci.suite.lost_parts import WRONG_DB
from ci.suite.precision import ONNX_PRECISIONS
from provisioning.base.commands import session
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC


@dataclass(frozen=True, slots=True)
class OnnxOperators:
    """Operators of ONNX's opset, by ONNX's names, compiled by ONNX Runtime."""

    opset: int = 0
    measured: Mapping[str, str] = field(default_factory=dict)
    """What each chip was measured with."""
    cells: Mapping[str, Mapping[str, Mapping[str, Cell]]] = field(default_factory=dict)
    """By operator, chip and precision."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Operators that are not measured, each with the reason."""


@cache
def shipped() -> OnnxOperators:
    """What the committed baseline gives."""
    return onnx_of(load_baseline(SUITE, DEFAULT_PROFILE, "onnx").programs, node_tests())


def onnx_of(programs: Mapping[str, Recorded], chosen: NodeTests) -> OnnxOperators:
    """Programs whose case is no operator are left to the suite."""
    cells: dict[str, dict[str, dict[str, Cell]]] = defaultdict(lambda: defaultdict(dict))
    measured: dict[str, str] = {}
    for program, recorded in programs.items():
        operator, run, soc = program.split("/")
        for precision in ONNX_PRECISIONS:
            if operator in chosen.operators and precision == run:
                cells[operator][soc][precision] = cell_of(recorded)
                measured[soc] = f"onnxruntime-qnn, QNN {recorded.build_id}"
    return OnnxOperators(chosen.opset, measured, cells, chosen.left_out)


OTHER_DRAWS = "other draws"
"""The form of those that gave another word."""


def cell_of(recorded: Recorded) -> Cell:
    """What most draws gave; of results that are as frequent, the worst."""
    draws = [_case(recorded, figures) for figures in recorded.draws or (recorded.accuracy,)]
    counts = Counter(case.result for case in draws)
    result = max(counts, key=lambda name: (counts[name], -WORST_FIRST.index(name)))
    figures = [case.db for case in draws if case.result == result and case.db is not None]
    others = [case for case in draws if case.result != result]
    worst = min(others, key=lambda case: WORST_FIRST.index(case.result), default=None)
    other = {OTHER_DRAWS: worst} if worst else {}
    return Cell(result, min(figures, default=None), cases=len(draws), others=other)


def _case(recorded: Recorded, figures: Mapping[str, float]) -> Case:
    """A draw with these figures. Integers are equal, or there is no figure."""
    if recorded.failed:
        return Case(recorded.failed)
    prefix = against_nearest(figures)
    figure = figures.get(f"{prefix}sqnr_db", EXACT if figures.get(f"{prefix}agreement") == 1 else None)
    shown = None if figure is None else round(min(figure, EXACT), 1)
    if recorded.refused:
        return Case("part" if recorded.taken else "cpu", shown)
    if computed_otherwise(figures):
        return Case("wrong", shown)
    to_float = figures.get("sqnr_db", WRONG_DB)
    if prefix and (to_float < WRONG_DB or figures.get("agreement", 1.0) < 1):
        return Case("lost", round(to_float, 1) if "sqnr_db" in figures else None)
    return Case("float" if recorded.in_float else "whole", shown)


def inexact_onnx(operators: Iterable[str], precision: str, soc: str = DEFAULT_SOC) -> Iterator[Inexact]:
    """Those of these operators of ONNX that fail in ONNX Runtime, with the precision to use instead."""
    few = "" if soc == DEFAULT_SOC else f"{soc} was not measured"
    place = place_of(DEFAULT_SOC, shipped().measured.get(DEFAULT_SOC, ""), few)
    for name in sorted(set(operators)):
        cells = shipped().cells.get(name, {}).get(DEFAULT_SOC, {})
        cell = cells.get(precision)
        if cell is None or cell.result not in FAILING:
            continue
        compiles = cell.result not in NOT_COMPILED
        figure = in_db(cell.db).strip() or "no figure"
        verb = f"is wrong ({figure})" if compiles else failure_of(cell)
        if cell.result == "lost":
            verb = f"is far from float ({figure}) once it is quantized, as seen"
        order = ("16a8w", "8a8w", "fp16") if precision == "fp16" else ("8a8w", "16a8w", "fp16")
        better = next((name for name in order if name in cells and cells[name].good), "")
        instead = f": keep it at {better}" if better else ""
        message = f"{name} at {precision} {verb} on the emulator of {place}{instead}"
        words = ("--suite", "manifests/suites/onnx_operators.toml", "-k", f"{name}/{precision}/")
        yield Inexact(name, message, session("test_onnx", *words), compiles)
