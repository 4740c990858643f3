"""The record of what earlier builds gave: it grows with each new build, and names only what differs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from ci.operators.history import (
    HISTORY,
    Cells,
    History,
    MeasuredBefore,
    differing,
    extended,
    load,
    plain,
    with_earlier,
)
from ci.operators.table import OperatorTable
from ci.site import operators

OLD, NEW, NEWEST = "QNN v2.47.0", "QNN v2.49.40", "QNN v2.51.0"


def table(measured: str, **results: str) -> OperatorTable:
    cells = {name: {"SM8650": {"8a8w": {"result": word, "sqnr_db": 40.2}}} for name, word in results.items()}
    onnx = {"opset": 24, "measured": {"SM8650": "onnxruntime-qnn"}, "cells": {}}
    document = {"schema": 1, "measured": {"SM8650": measured}, "upstream": {}, "cells": cells, "onnx": onnx}
    return OperatorTable.model_validate(document)


def grown() -> tuple[OperatorTable, History]:
    tables = [
        table(OLD, log="cpu", abs="whole"),
        table(NEW, log="whole", abs="whole"),
        table(NEWEST, log="dies"),
    ]
    history = History()
    for old, new in pairwise(tables):
        history = extended(history, old, new)
    return tables[-1], history


def test_each_new_build_adds_a_record_of_what_the_one_before_gave_otherwise() -> None:
    _, history = grown()
    assert [record.measured for record in history.records] == [NEW, OLD]
    newer, older = history.records
    assert {name: str(chips["SM8650"]["8a8w"]) for name, chips in newer.cells.items()} == {
        "log": "whole 40 dB",
        "abs": "whole 40 dB",
    }
    assert {*older.cells} == {"log"} and str(older.cells["log"]["SM8650"]["8a8w"]) == "CPU 40 dB"


def test_the_same_build_measured_again_adds_nothing() -> None:
    one, other = table(NEW, log="cpu"), table(NEW, log="whole")
    assert extended(History(), one, other) == History()


def cells_of(**results: str) -> Cells:
    return plain(table(OLD, **results).cells)


def shown(record: MeasuredBefore) -> dict[str, str]:
    return {name: chips["SM8650"]["8a8w"].result for name, chips in record.cells.items()}


@pytest.mark.parametrize("order", [(NEW, OLD), (OLD, NEW), (OLD, NEW, OLD)])
def test_builds_that_are_measured_later_take_their_place_by_age(order: tuple[str, ...]) -> None:
    gave = {
        OLD: cells_of(log="cpu", abs="cpu", exp="whole"),
        NEW: cells_of(log="whole", abs="cpu", exp="whole"),
    }
    now = cells_of(log="whole", abs="whole", exp="whole")
    history = History(records=(MeasuredBefore(lane="onnx", measured=OLD, cells={}),))
    for build in order:
        history = with_earlier(history, "executorch", build, gave[build], now, now)
    records = history.of("executorch")
    assert [record.measured for record in records] == [NEW, OLD]
    assert [*map(shown, records)] == [{"abs": "cpu"}, {"log": "cpu"}]
    assert len(history.of("onnx")) == 1


def test_an_operator_that_came_back_to_the_result_of_now_is_told_again() -> None:
    now = cells_of(log="whole")
    history = with_earlier(History(), "onnx", NEW, cells_of(log="dies"), now, now)
    history = with_earlier(history, "onnx", OLD, cells_of(log="whole"), now, now)
    assert [*map(shown, history.of("onnx"))] == [{"log": "dies"}, {"log": "whole"}]


def test_what_an_update_of_pins_kept_stays_where_the_plain_case_gives_another_word() -> None:
    """The table's word is of all cases, the earlier build's of the plain one alone."""
    kept = MeasuredBefore(lane="onnx", measured=NEW, cells=differing(cells_of(log="dies"), {}))
    plain_now = cells_of(log="dies")
    history = with_earlier(
        History(records=(kept,)), "onnx", OLD, cells_of(log="dies"), plain_now, cells_of(log="whole")
    )
    assert [*map(shown, history.of("onnx"))] == [{"log": "dies"}, {"log": "whole"}]


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    _, history = grown()
    file = tmp_path / "history.json"
    file.write_text(history.as_json(), encoding="utf-8")
    assert load(file) == history
    assert load(tmp_path / "none") == History()
    assert load(HISTORY).as_json() == HISTORY.read_text(encoding="utf-8")


def test_the_page_of_an_operator_has_its_builds_and_the_grid_says_where_they_differ() -> None:
    newest, history = grown()
    (page,) = operators.pages(newest, history)
    assert page.history == {NEW: "whole 40 dB at 8a8w on SM8650", OLD: "CPU 40 dB at 8a8w on SM8650"}
    (cell,) = page.grid[0].cells
    assert cell is not None and cell.changed and operators.CHANGED in cell.results.split()
    (page,) = operators.pages(newest, History())
    (cell,) = page.grid[0].cells
    assert cell is not None and not cell.changed
