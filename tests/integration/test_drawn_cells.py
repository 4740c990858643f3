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
from pathlib import Path
from typing import Any

import pytest

from ci.operators.table import IN_CHAIN, Case, Cell, read
from ci.suite.lost_parts import WRONG_DB
from lab.operators import PLAIN
from lab.operators.cells import ALONE
from lab.operators.tried import LAYERS_LOSE
from lab.operators.value_cases import CHAIN, ValueCase, cases, chains
from provisioning.base.settings import ROOT
from provisioning.stage_variables import HOST_LIBRARIES
from tests.support.sdk import sdk_root

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

SCRIPT = "tests.support.plain_cell"

CELLS = {"alone": 10, "chain": 8}
"""How many are drawn of each kind."""

BELOW_DB = 3.0
"""How far below the least figure of a cell the median of the script's draws may be: its weights and scales
are others, and of 130 cells alone none was worse by 3."""

CHAIN_BELOW_DB = 6.0
"""Of 70 cells in a chain two were worse by 5: their layers are others too."""

ONE_STEP_DB = {"8a": 40.0, "16": 80.0, "fp": 50.0}
"""What is exact but for a last step now and then, by how a scheme begins."""

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
    """The least that the script's figure may be; infinite if the table gives none."""
    asked: Mapping[str, Any]

    def unlike(self, word: str, figures: list[float]) -> bool:
        """In word, or in the median of its figures."""
        if word not in self.words:
            return True
        return word in COMPARED and statistics.median(figures) < self.least_db


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
            for scheme, cell in row.items():
                said = _in_chain(cell, scheme) if case.chain else _alone(cell)
                if said and not (case.weights and "block" in scheme):
                    yield _of_executorch(case, soc, scheme, *said)


UNTOLD = {"float", "bad_test", "no_kernel"}


def _alone(cell: Cell) -> tuple[set[str], float | None] | None:
    """Only where all usual cases gave the same."""
    usual = cell.others.get(ALONE, Case(cell.result))
    plain = [case.result for form, case in cell.others.items() if form.startswith(PLAIN)]
    words: set[str] = {usual.result, *plain}
    tests = [form for form in cell.others if " " not in form and form != ALONE]
    if tests or cell.form.startswith("test_") or not UNTOLD.isdisjoint(words):
        return None
    return words, None if ALONE in cell.others else cell.db


def _in_chain(cell: Cell, scheme: str) -> tuple[set[str], float | None] | None:
    """Only where the chain has a word of its own: of the others the table has no figure."""
    chain = cell.others.get(IN_CHAIN) or (Case(cell.result, cell.db) if ALONE in cell.others else None)
    if chain is None or chain.result in UNTOLD:
        return None
    words: set[str] = {chain.result}
    if "cpu" in words:
        words.add("part")
    if scheme.endswith(LAYERS_LOSE):
        words.add("lost")
    return words, chain.db


def _of_executorch(
    case: ValueCase, soc: str, scheme: str, words: set[str], figure: float | None
) -> DrawnCell:
    low, high, *_ = case.range
    layers = ("conv" if case.settings.shapes == "image" else "linear") if case.chain else ""
    asked = {"expression": case.expression, "shape": case.shape, "low": low, "high": high, "layers": layers}
    return DrawnCell(
        CHAIN if case.chain else "alone",
        f"{case.operator}/{scheme}/{soc}",
        frozenset(words),
        _least(figure, scheme, CHAIN_BELOW_DB if case.chain else BELOW_DB),
        {**asked, "scheme": scheme, "soc": soc},
    )


def _least(figure: float | None, scheme: str, below: float = BELOW_DB) -> float:
    return -math.inf if figure is None else max(WRONG_DB, min(figure - below, ONE_STEP_DB[scheme[:2]]))


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
    done = subprocess.run(
        [sys.executable, "-m", SCRIPT, json.dumps([{**cell.asked, "seed": seed} for cell in drawn])],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        cwd=folder,
        check=True,
    )
    # QNN may print beside it.
    said = re.findall(r'\["[a-z]+", \[.*?\]\]', done.stdout)
    for cell, line in zip(drawn, said, strict=True):
        word, figures = json.loads(line)
        yield cell, word, figures


@pytest.mark.parametrize(("median", "unlike"), [(46.9, True), (47.1, False), (81, False)])
def test_a_figure_below_that_of_a_cell_is_told(median: float, unlike: bool) -> None:
    cell = DrawnCell("alone", "exp/fp16/SM8650", frozenset({"whole"}), _least(50, "fp16"), {})
    assert cell.unlike("whole", [0, 0, median, 200, 200]) is unlike
    assert cell.unlike("part", [72])


@pytest.mark.whole
def test_cells_drawn_by_the_day_agree_with_scripts_without_our_code(tmp_path: Path) -> None:
    seed = dt.datetime.now(dt.timezone.utc).date().toordinal()
    said = answers(drawn_by(seed), seed, tmp_path)
    unlike = [(cell, word, figures) for cell, word, figures in said if cell.unlike(word, figures)]
    assert unlike == []
