"""The operator table against a script without code of this project, in cells that each night draws anew."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.lanes.upstream.value_cases import ValueCase, cases
from ci.operators.table import PLAIN, Cell, by_name, read
from ci.pipeline.slices import LEAST_DB
from provisioning.environment import HOST_LIBRARIES
from tests.support.sdk import sdk_root

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parents[1] / "support" / "plain_cell.py"

CELLS = 6
OTHER_DRAWS_DB = 6.0
"""How far below the least of a cell's cases the script's own values may be."""

ONE_STEP_DB = {"8a": 40.0, "16": 80.0, "fp": 50.0}
"""What is exact but for a last step now and then, by how a scheme begins."""


@dataclass(frozen=True)
class DrawnCell:
    case: ValueCase
    soc: str
    scheme: str
    cell: Cell


def candidates() -> Iterator[DrawnCell]:
    """What an expression of floats without weights says. The script does not tell whole from float."""
    table = read()
    for case in cases():
        settings = case.settings
        if case.name != PLAIN or case.weights or settings.integers or settings.indices:
            continue
        for soc, row in table.cells.get(case.operator, {}).items():
            for scheme, cell in by_name(row).items():
                if cell.deciding is None and cell.result not in ("float", "bad_test", "no_kernel"):
                    yield DrawnCell(case, soc, scheme, cell)


def agrees(drawn: DrawnCell, word: str, figures: list[float]) -> bool:
    """In word, and in the figure that the cell gives as the least."""
    cell = drawn.cell
    if word != (cell.alone or cell.result):
        return False
    if word != "whole" or cell.sqnr_db is None:
        return True
    least = min(cell.sqnr_db - OTHER_DRAWS_DB, ONE_STEP_DB[drawn.scheme[:2]])
    return figures[len(figures) // 2] >= max(LEAST_DB, least)


def asked_of(drawn: DrawnCell, seed: int) -> str:
    """What the script is asked, with values of its own."""
    low, high, *_ = drawn.case.range
    expression, shape = drawn.case.expression, drawn.case.shape
    values = {"expression": expression, "shape": shape, "low": low, "high": high, "seed": seed}
    return json.dumps({**values, "scheme": drawn.scheme, "soc": drawn.soc})


def answer(asked: str, folder: Path) -> tuple[str, list[float]]:
    """The script's word and figures; a process that ends by a signal says no word."""
    root = sdk_root()
    variables = {"QNN_SDK_ROOT": str(root), "LD_LIBRARY_PATH": str(root / "lib" / HOST_LIBRARIES)}
    done = subprocess.run(
        [sys.executable, SCRIPT, asked],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        cwd=folder,
        check=False,
    )
    if done.returncode:
        return "crash" if done.returncode < 0 else done.stderr[-500:], []
    # QNN may print beside it as the process ends.
    (line,) = re.findall(r'\["[a-z]+", \[.*?\]\]', done.stdout)
    word, figures = json.loads(line)
    return word, figures


@pytest.mark.whole
def test_cells_drawn_by_the_day_agree_with_a_script_without_our_code(tmp_path: Path) -> None:
    seed = dt.datetime.now(dt.timezone.utc).date().toordinal()
    unlike = []
    for drawn in random.Random(seed).sample([*candidates()], CELLS):
        asked = asked_of(drawn, seed)
        word, figures = answer(asked, tmp_path)
        if not agrees(drawn, word, figures):
            unlike.append((drawn.case.operator, str(drawn.cell), word, figures, asked))
    assert unlike == []
