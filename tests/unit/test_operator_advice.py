"""What audit, diagnose and test_emulator say of operators that go wrong in a scheme, from the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.artifacts.compiler_log import OF_INTEGERS, REFUSES
from ci.explain.audit import AuditRow, as_text, with_precisions
from ci.lanes.executorch import explain
from ci.lanes.executorch.findings import findings_of, suspected_on_cpu
from ci.lanes.executorch.orders import EmulatorRun
from ci.lanes.executorch.product import on_cpu_in_words
from ci.lanes.executorch.suite import SHIPPED, programs_of
from ci.operators.nodes import CpuOperator, Traits
from ci.operators.table import measured, read
from ci.outcome import Result
from provisioning.known_faults import NO_FIX
from tests.support.lowering import compiled_as
from tests.support.own_table import own_table

WHOLE = {"result": "whole", "db": 50, "cases": 9}
LOW = {"across [0.5, 2.5]": {"result": "wrong", "db": -6}}
RANK_6 = {"shape 1x2x1x3x7x5": {"result": "dies"}}

Cells = Mapping[str, Mapping[str, Any]]


@pytest.fixture
def given() -> Iterator[Any]:
    """Sets the table: the rows of an operator by chip, and the build that measured each."""
    with ExitStack() as stack:

        def put(name: str = "log", onnx: Mapping[str, Any] | None = None, **chips: Cells) -> None:
            stack.enter_context(own_table(dict.fromkeys(chips, "x"), {name: chips}, onnx))

        yield put


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
        assert [*measured(name, "fp16")] == [f"{row} at fp16 on the emulator of SM8650: {words}"]
    assert not [*measured("maxpool3d", "8a8w"), *measured("unknown", "fp16")]


def test_the_committed_table_says_where_logarithms_lose_accuracy() -> None:
    assert read().cells["log"]["SM8650"]["16a4w"].others
    (line,) = measured("aten.log.default", "16a4w")
    assert "log at 16a4w on the emulator of SM8650: " in line


TYPES = f"{REFUSES}: Tensor 0 and 0 have mismatching datatypes"


@pytest.mark.parametrize(
    ("reason", "left_at_16_bits", "suggested"),
    [
        (TYPES, False, True),
        # There the chip takes one of two, and the table alone says that it takes both.
        (TYPES, True, False),
        (f"{REFUSES}: [4294967295] has incorrect Rank 6", False, False),
        (f"{TYPES}; {OF_INTEGERS}", False, False),
    ],
)
def test_audit_suggests_a_precision_only_where_it_saw_the_chip_take_all_of_the_operator(
    given: Any, tmp_path: Path, reason: str, left_at_16_bits: bool, suggested: bool
) -> None:
    given("exp", SM8750=dict.fromkeys(("8a8w", "16a8w"), WHOLE))
    on_cpu = CpuOperator("aten.exp.default", "", "", "", "exp", reason, kernel=True)
    nodes = {"exp": Traits("aten.exp.default")}
    rows = {
        scheme: explain.audit_row(compiled)
        for scheme, compiled in (
            ("8a8w", compiled_as(left=[on_cpu])),
            ("16a8w", compiled_as(left=[on_cpu] * left_at_16_bits, nodes=nodes)),
        )
    }
    row = with_precisions(rows, "SM8750")["8a8w"]
    assert isinstance(row, AuditRow)
    (left,) = row.cpu
    assert ("16a8w" in left.suggestion) is suggested


@pytest.mark.parametrize(
    ("code", "suspected"), [("F.cosine_similarity(x, self.marks)", True), ("x.clamp(y)", False)]
)
def test_a_program_that_breaks_names_the_operator_on_the_cpu_that_has_a_fix(
    code: str, suspected: bool
) -> None:
    row = CpuOperator("aten.clamp.Tensor", "", "net.py:17", code, "clamp", "refused", kernel=True)
    message, fix = suspected_on_cpu([replace(row, code="x.clamp(z)", source="net.py:3"), row])
    assert ("net.py:17" in message) is suspected and (fix != NO_FIX) is suspected


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
    said = list(on_cpu_in_words(compiled))
    audited = list(as_text({"fp16": explain.audit_row(compiled)}))
    for lines in (said, audited[audited.index("on the CPU") + 1 :]):
        kinds = [next(word for word in (":3", ":5", ":8", "→") if word in line) for line in lines]
        assert kinds == [":3", ":5", "→", ":8"]


def test_a_program_that_misses_its_accuracy_blames_no_operator_for_inputs_of_the_table(given: Any) -> None:
    program = next(case for case in programs_of(SHIPPED) if case.thresholds and case.run.precision == "8a8w")
    given(SM8650={"8a8w": {**WHOLE, "others": {**LOW, **RANK_6}}, "16a8w": WHOLE})
    compiled = compiled_as(nodes={"log": Traits("aten.log.default")})
    (found,) = findings_of(program, Result(record=EmulatorRun({"cosine": 0.0, "db": -9.0})), compiled)
    assert "log" not in found.message
