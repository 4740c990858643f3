"""What audit, diagnose and test_emulator say of operators that go wrong in a scheme, from the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ci.explain.audit import document, text_lines
from ci.lanes.executorch import explain
from ci.lanes.executorch.findings import findings_of, suspected_on_cpu
from ci.lanes.executorch.orders import EmulatorRun
from ci.lanes.executorch.product import describe_cpu_operators
from ci.lanes.executorch.suite import SHIPPED, programs_of
from ci.operators import CpuOperator, Traits, table
from ci.operators.table import OperatorTable, key_of, lines_of, read, rows_by_key
from ci.work.outcome import Result
from provisioning.known_faults import NO_FIX
from tests.support.lowering import compiled_as

WHOLE = {"result": "whole", "db": 50, "cases": 9}
LOW = {"across [0.5, 2.5]": {"result": "wrong", "db": -6}}
RANK_6 = {"shape 1x2x1x3x7x5": {"result": "dies"}}

Cells = Mapping[str, Mapping[str, Any]]


@pytest.mark.parametrize(
    ("operator", "row"),
    [
        # Its own name counts before a row that has it among its names.
        ("aten.conv2d.default", "conv2d"),
        ("aten.concat.default", "cat"),
        # Two rows have it, and neither is its own.
        ("aten.convolution.default", None),
    ],
)
def test_an_operator_has_the_row_of_its_name_else_the_only_one(operator: str, row: str | None) -> None:
    assert rows_by_key(["conv2d", "conv2d_1x1", "cat"]).get(key_of(operator)) == row


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the tables: the rows of an operator by chip, and those of ONNX's."""

    def put(name: str = "log", onnx: Mapping[str, Any] = {}, **chips: Cells) -> None:
        rows = {"measured": dict.fromkeys(chips, "x"), "cells": {name: chips}}
        own = OperatorTable.model_validate(rows, strict=False)
        own_onnx = OperatorTable.model_validate({"cells": onnx}, strict=False)
        monkeypatch.setattr(table, "shipped_table", lambda: own)
        monkeypatch.setattr(table, "shipped_rows", lambda: rows_by_key(own.cells))
        monkeypatch.setattr(table, "shipped_onnx", lambda: own_onnx)

    return put


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ({"result": "dies"}, "DIES"),
        ({"result": "wrong", "db": 5}, "WRONG 5 dB"),
        ({"result": "lost", "db": 5}, "LOST 5 dB to float"),
        ({**WHOLE, "others": {"batch": {"result": "crash"}}}, "whole 50 dB; CRASHES: batch"),
        ({**WHOLE, "others": LOW}, "whole 50 dB; WRONG -6 dB: across [0.5, 2.5]"),
    ],
)
def test_diagnose_says_what_was_measured_of_an_operator_with_its_figure_and_form(
    given: Any, cell: dict[str, Any], words: str
) -> None:
    given("maxpool3d", SM8650={"fp16": cell}, onnx={"MaxPool": {"SM8650": {"fp16": cell}}})
    for name, row in (("aten.max_pool3d.default", "maxpool3d"), ("MaxPool", "MaxPool")):
        assert [*lines_of(name, "fp16")] == [f"{row} at fp16 on the emulator of SM8650: {words}"]
    assert not [*lines_of("maxpool3d", "8a8w"), *lines_of("unknown", "fp16")]


def test_the_committed_table_says_where_logarithms_lose_accuracy() -> None:
    assert read().cells["log"]["SM8650"]["16a4w"].others
    (line,) = lines_of("aten.log.default", "16a4w")
    assert "log at 16a4w on the emulator of SM8650: " in line


@pytest.mark.parametrize(
    ("code", "suspected"), [("F.cosine_similarity(x, self.marks)", True), ("x.clamp(y)", False)]
)
def test_a_program_that_breaks_names_the_operator_on_the_cpu_that_has_a_fix(
    code: str, suspected: bool
) -> None:
    row = CpuOperator("aten.clamp.Tensor", "", "net.py:17", code, "clamp", "refused", kernel=True)
    message, fix = suspected_on_cpu([replace(row, code="x.clamp(z)", source="net.py:3"), row])
    assert ("net.py:17" in message) is suspected and (fix != NO_FIX) is suspected


def test_an_operator_on_the_cpu_says_what_its_line_should_be_and_so_does_an_answer() -> None:
    code = "y = torch.cumprod(torch.exp(x), 1)"
    row = CpuOperator("aten.cumprod.default", "", "net.py:7", code, "cumprod", "refused", kernel=False)
    edit = row.fix.edit
    assert edit and (edit.file, edit.line, edit.old) == ("net.py", 7, "torch.cumprod(torch.exp(x), 1)")
    (answered,) = document({"fp16": explain.audit_row(compiled_as(left=[row]))})["fp16"]["cpu"]
    assert answered["operator"] == row.operator and edit.new in answered["suggestion"]


def test_a_fix_of_several_lines_is_said_once_behind_the_last() -> None:
    places = [
        ("net.py:3", "repeat_interleave(x, 1, dim=0)"),
        ("net.py:8", "x"),
        ("net.py:5", "repeat_interleave(y, 1, 0)"),
    ]
    left = [
        CpuOperator("aten.view_copy.default", "", place, code, f"view_{place}", "refused", kernel=True)
        for place, code in places
    ]
    compiled = compiled_as(left=left)
    said = list(describe_cpu_operators(compiled))
    audited = list(text_lines({"fp16": explain.audit_row(compiled)}))
    for lines in (said, audited[audited.index("on the CPU") + 1 :]):
        kinds = [next(word for word in (":3", ":5", ":8", "→") if word in line) for line in lines]
        assert kinds == [":3", ":5", "→", ":8"]


def test_a_program_that_misses_its_accuracy_blames_no_operator_for_inputs_of_the_table(given: Any) -> None:
    program = next(case for case in programs_of(SHIPPED) if case.thresholds and case.run.precision == "8a8w")
    given(SM8650={"8a8w": {**WHOLE, "others": {**LOW, **RANK_6}}, "16a8w": WHOLE})
    compiled = compiled_as(nodes={"log": Traits("aten.log.default")})
    (found,) = findings_of(program, Result(record=EmulatorRun({"cosine": 0.0, "db": -9.0})), compiled)
    assert "log" not in found.message
