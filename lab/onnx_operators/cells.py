"""The operators of ONNX's opset as cells of a table, from the baseline of their suite."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from ci.operators.table import EXACT, WORST_FIRST, Case, Cell, OperatorTable
from ci.suite.accepted import Recorded, load_baseline
from ci.suite.figures import against_nearest
from ci.suite.limits import computed_otherwise
from ci.suite.lost_parts import WRONG_DB
from ci.suite.precision import ONNX_PRECISIONS
from lab.onnx_operators.node_tests import SUITE, NodeTests, node_tests
from lab.operators.table_file import to_json
from provisioning.base.settings import DEFAULT_PROFILE


def text() -> str:
    """manifests/onnx_operators.json."""
    return to_json(measured_table())


def measured_table() -> OperatorTable:
    """What the committed baseline gives."""
    return onnx_of(load_baseline(SUITE, DEFAULT_PROFILE, "onnx").programs, node_tests())


def onnx_of(programs: Mapping[str, Recorded], chosen: NodeTests) -> OperatorTable:
    """Programs whose case is no operator are left to the suite."""
    cells: dict[str, dict[str, dict[str, Cell]]] = defaultdict(lambda: defaultdict(dict))
    measured: dict[str, str] = {}
    for program, recorded in programs.items():
        operator, run, soc = program.split("/")
        for precision in ONNX_PRECISIONS:
            if operator in chosen.operators and precision == run:
                cells[operator][soc][precision] = cell_of(recorded)
                if recorded.build_id:
                    # A process that died says none.
                    measured[soc] = f"onnxruntime-qnn, QNN {recorded.build_id}"
    return OperatorTable(measured=measured, cells=cells)


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
