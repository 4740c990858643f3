"""The operator table against scripts without code of this project, in cells that each night draws anew."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from ci.lanes.upstream.operator_cells import LAYERS_LOSE
from ci.lanes.upstream.value_cases import CHAIN, ValueCase, cases, chains
from ci.operators.onnx_tests import node_tests
from ci.operators.table import PLAIN, CaseResult, Cell, by_name, read
from ci.pipeline.slices import LEAST_DB
from provisioning.base.settings import ROOT
from provisioning.environment import HOST_LIBRARIES
from provisioning.manifest import soc_named
from tests.support.sdk import sdk_root

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

ATEN, ONNX = "tests.support.plain_cell", "tests.support.plain_onnx_cell"

CELLS = {"alone": 10, "chain": 8, "onnx": 6}
"""How many are drawn of each kind."""

BELOW_DB, ABOVE_DB = 3.0, 9.0
"""How far below and above a cell's range the median of the script's draws may be. Of ten draws of one kind
the median of five lies outside the range of the others in a sixth of all cases: below, that is not by twice
the noise. The script's weights and scales are others too: of 130 cells alone some were better by up to 6 dB,
and none was worse by 3."""

CHAIN_BELOW_DB = 6.0
"""Of 70 cells in a chain two were worse by 5: their layers are others too."""

ONE_DRAW_DB = 6.0
"""How far below a figure of one draw it may be, which has no range."""

ONE_STEP_DB = {"8a": 40.0, "16": 80.0, "fp": 50.0}
"""What is exact but for a last step now and then, by how a scheme begins."""

FEW_STEPS_DB = {"8a": 110.0, "16": 80.0, "fp": 110.0}
"""From here on a figure is of a few such steps or of none, and other scales have others."""

COMPARED = ("whole", "part")
"""Words whose figures are compared."""


@dataclass(frozen=True)
class DrawnCell:
    kind: str
    """How it was measured: one of CELLS."""
    subject: str
    """`log/16a8w/SM8650`."""
    words: frozenset[str]
    """What the script may say."""
    least_db: float
    most_db: float
    """Between these the script's figure has to be; infinite if the table gives none."""
    script: str
    asked: Mapping[str, Any]

    def unlike(self, word: str, figures: list[float]) -> bool:
        """In word, or in the median of its figures."""
        if word not in self.words:
            return True
        return word in COMPARED and not self.least_db <= statistics.median(figures) <= self.most_db


def candidates() -> Iterator[DrawnCell]:
    """The scripts do not tell whole from float, and take inputs of floats alone."""
    table = read()
    for case in (*cases(), *chains()):
        settings = case.settings
        if (
            case.name not in (PLAIN, CHAIN)
            or settings.integers
            or settings.indices
            or "ResultOf" in case.expression
        ):
            continue
        for soc, row in table.cells.get(case.operator, {}).items():
            for scheme, cell in by_name(row).items():
                said = _in_chain(cell, scheme) if case.chain else _alone(cell)
                if said and not (case.weights and "block" in scheme):
                    yield _of_executorch(case, soc, scheme, *said)
    for operator, chosen in node_tests().operators.items():
        for soc, cells in table.onnx.cells.get(operator, {}).items():
            for precision, cell in cells.items():
                if cell.result not in ("float", "part"):
                    yield DrawnCell(
                        "onnx",
                        f"{operator}/{precision}/{soc}",
                        frozenset({cell.result, *cell.draws}),
                        *_bounds(cell, precision),
                        ONNX,
                        {
                            **chosen.model_dump(),
                            "precision": precision,
                            "chip": soc_named(soc).id,
                            "arch": soc_named(soc).arch,
                        },
                    )


UNTOLD = {"float", "bad_test", "no_kernel"}


def _alone(cell: Cell) -> tuple[set[str], CaseResult | None] | None:
    """Only where all usual cases gave the same."""
    words: set[str] = {cell.alone or cell.result} | (set() if cell.of_chain else {*cell.draws})
    if cell.deciding or cell.newer or not UNTOLD.isdisjoint(words):
        return None
    return words, None if cell.of_chain else cell


def _in_chain(cell: Cell, scheme: str) -> tuple[set[str], CaseResult | None] | None:
    chain = cell.chain
    if chain is None or not UNTOLD.isdisjoint({chain.result, *chain.draws}):
        return None
    words: set[str] = {chain.result, *chain.draws}
    if "cpu" in words:
        words.add("part")
    if scheme.endswith(LAYERS_LOSE):
        words.add("lost")
    return words, chain


def _of_executorch(
    case: ValueCase, soc: str, scheme: str, words: set[str], found: CaseResult | None
) -> DrawnCell:
    low, high, *_ = case.range
    layers = ("conv" if case.settings.shapes == "image" else "linear") if case.chain else ""
    asked = {"expression": case.expression, "shape": case.shape, "low": low, "high": high, "layers": layers}
    return DrawnCell(
        CHAIN if case.chain else "alone",
        f"{case.operator}/{scheme}/{soc}",
        frozenset(words),
        *_bounds(found, scheme, CHAIN_BELOW_DB if case.chain else BELOW_DB),
        ATEN,
        {**asked, "scheme": scheme, "soc": soc},
    )


def _bounds(found: CaseResult | None, scheme: str, below: float = BELOW_DB) -> tuple[float, float]:
    if found is None or found.sqnr_db is None:
        return -math.inf, math.inf
    exact = ONE_STEP_DB[scheme[:2]]
    if found.range_db is None:
        return max(LEAST_DB, min(found.sqnr_db - ONE_DRAW_DB, exact)), math.inf
    least, most = found.range_db
    if most > FEW_STEPS_DB[scheme[:2]]:
        return min(least - below, exact), math.inf
    return least - below, most + ABOVE_DB


def drawn_by(seed: int) -> list[DrawnCell]:
    """Half of them of the cells that are not whole, which are few."""
    every, generator = [*candidates()], random.Random(seed)
    return [
        cell
        for kind, count in CELLS.items()
        for whole in (True, False)
        for cell in generator.sample(
            [cell for cell in every if cell.kind == kind and ("whole" in cell.words) is whole], count // 2
        )
    ]


def answers(
    drawn: Sequence[DrawnCell], seed: int, folder: Path
) -> Iterator[tuple[DrawnCell, str, list[float]]]:
    """What the scripts say, with values of their own: a word and figures."""
    root = sdk_root()
    variables = {"QNN_SDK_ROOT": str(root), "LD_LIBRARY_PATH": str(root / "lib" / HOST_LIBRARIES)}
    for script, cells in groupby(drawn, lambda cell: cell.script):
        asked = [*cells]
        done = subprocess.run(
            [sys.executable, "-m", script, json.dumps([{**cell.asked, "seed": seed} for cell in asked])],
            capture_output=True,
            text=True,
            # ONNX Runtime's provider brings its own QNN.
            env={**os.environ, "PYTHONPATH": str(ROOT), **(variables if script == ATEN else {})},
            cwd=folder,
            check=True,
        )
        # QNN may print beside it.
        said = re.findall(r'\["[a-z]+", \[.*?\]\]', done.stdout)
        for cell, line in zip(asked, said, strict=True):
            word, figures = json.loads(line)
            yield cell, word, figures


@pytest.mark.parametrize(
    ("median", "unlike"), [(66.9, True), (67.1, False), (72, False), (81.9, False), (82.1, True)]
)
def test_a_figure_outside_of_a_cells_range_is_told(median: float, unlike: bool) -> None:
    found = CaseResult(result="whole", sqnr_db=72, range_db=(70, 73))
    cell = DrawnCell("alone", "exp/fp16/SM8650", frozenset({"whole"}), *_bounds(found, "fp16"), ATEN, {})
    assert cell.unlike("whole", [0, 0, median, 200, 200]) is unlike
    assert cell.unlike("part", [72])


@pytest.mark.whole
def test_cells_drawn_by_the_day_agree_with_scripts_without_our_code(tmp_path: Path) -> None:
    seed = dt.datetime.now(dt.timezone.utc).date().toordinal()
    said = answers(drawn_by(seed), seed, tmp_path)
    unlike = [(cell, word, figures) for cell, word, figures in said if cell.unlike(word, figures)]
    assert unlike == []
