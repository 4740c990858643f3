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
from ci.operators.conditions import Traits
from ci.operators.partition import CpuOperator
from ci.operators.table import Inexact, inexact, inexact_onnx, measured, read
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

        def put(name: str = "log", build: str = "x", **chips: Cells) -> None:
            stack.enter_context(own_table(dict.fromkeys(chips, build), {name: chips}))

        yield put


def only(operator: str, scheme: str, soc: str = "SM8650") -> Inexact:
    (found,) = inexact([operator], scheme, soc)
    return found


@pytest.mark.parametrize(
    ("scheme", "good", "better"),
    [
        ("16a4w", ("fp16", "8a8w", "16a16w", "16a8w"), "16a8w"),
        ("16a4w", ("fp16", "8a8w", "16a16w"), "16a16w"),
        ("16a4w", ("fp16", "8a8w"), "8a8w"),
        ("16a4w", ("fp16",), "fp16"),
        ("8a8w", ("fp16", "16a8w"), "16a8w"),
        ("8a4w", ("16a8w", "8a8w"), "8a8w"),
        ("fp16", ("8a8w", "16a8w"), "16a8w"),
    ],
)
def test_the_scheme_to_keep_has_activations_as_wide_if_one_is_good(
    given: Any, scheme: str, good: tuple[str, ...], better: str
) -> None:
    given(SM8650={scheme: {**WHOLE, "others": LOW}, **dict.fromkeys(good, WHOLE)})
    assert only("log", scheme).message.endswith(f"; keep it at {better}")


@pytest.mark.parametrize(
    "cell",
    [
        {**WHOLE, "others": RANK_6},
        {**WHOLE, "others": {"ceil_mode": {"result": "dies"}}},
        {**WHOLE, "result": "part"},
        {**WHOLE, "result": "wrong"},
        {**WHOLE, "loses_db": 30},
    ],
)
def test_no_scheme_that_goes_wrong_itself_is_one_to_keep(given: Any, cell: dict[str, Any]) -> None:
    given(SM8650={"16a4w": {**WHOLE, "others": LOW}, "16a8w": cell, "8a8w": WHOLE})
    assert only("log", "16a4w").message.endswith("; keep it at 8a8w")
    given(SM8650={"16a4w": {**WHOLE, "others": LOW}, "16a8w": cell})
    assert "keep" not in only("log", "16a4w").message


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ({"result": "wrong", "db": 5}, "WRONG 5 dB"),
        ({"result": "lost", "db": 5}, "LOST 5 dB to float"),
        ({**WHOLE, "others": {"ceil_mode": {"result": "wrong"}}}, "whole 50 dB; WRONG: ceil_mode"),
    ],
)
def test_what_goes_wrong_is_named_with_its_figure_and_form(
    given: Any, cell: dict[str, Any], words: str
) -> None:
    given("maxpool3d", SM8650={"fp16": cell})
    found = only("aten.max_pool3d.default", "fp16")
    assert found.message == f"maxpool3d at fp16 on the emulator of SM8650: {words}"
    assert found.command == "nox -s diagnose -- maxpool3d@fp16"


@pytest.mark.parametrize("cell", [{"result": "dies"}, {**WHOLE, "others": {"batch": {"result": "crash"}}}])
def test_a_model_that_compiled_is_not_warned_of_what_does_not_compile(
    given: Any, cell: dict[str, Any]
) -> None:
    given("maxpool3d", SM8650={"fp16": cell})
    assert not [*inexact(["maxpool3d"], "fp16")]
    assert any(word in measured("maxpool3d", "fp16") for word in ("DIES", "CRASHES: batch"))


def test_what_is_good_is_not_named(given: Any) -> None:
    given(SM8650={"8a8w": WHOLE, "16a8w": {**WHOLE, "result": "part", "others": {"a": {"result": "cpu"}}}})
    assert [
        *inexact(["log", "log", "unknown"], "8a8w"),
        *inexact(["log"], "16a8w"),
        *inexact(["log"], "4a4w"),
    ] == []


def test_another_chip_is_named(given: Any) -> None:
    few = {**WHOLE, "cases": 1}
    bad = {**WHOLE, "others": {**LOW, "plain [0.01, 1.0]": {"result": "wrong", "db": 2}}}
    ours = {"16a4w": bad, "8a8w": WHOLE}
    given(
        SM8650=ours, SM8750={"16a4w": {"result": "wrong"}, "8a8w": WHOLE}, SM8350={"16a4w": few, "8a8w": few}
    )
    found = only("log", "16a4w", "SM8750")
    assert found.message == "log at 16a4w on the emulator of SM8750: WRONG; keep it at 8a8w"
    assert found.command == "nox -s diagnose -- log@16a4w"
    # Its plain case is good, and SM8650 has more cases; SM8550 has none.
    for soc in ("SM8350", "SM8550"):
        found = only("log", "16a4w", soc)
        assert "on the emulator of SM8650: whole 50 dB; WRONG -6 dB: across [0.5, 2.5]" in found.message


def test_the_committed_table_says_where_logarithms_lose_accuracy() -> None:
    assert read().cells["log"]["SM8650"]["16a4w"].others
    assert "log at 16a4w on the emulator of SM8650: " in only("aten.log.default", "16a4w").message


def test_audit_names_them_with_the_command(given: Any, tmp_path: Path) -> None:
    given(SM8350={"16a8w": {**WHOLE, "others": LOW}, "8a8w": WHOLE})
    nodes = {"log": Traits("aten.log.default"), "q": Traits("quantized_decomposed.quantize")}
    rows = {"16a8w": explain.audit_row(compiled_as(nodes=nodes), "16a8w", "SM8350")}
    text = "\n".join(as_text(rows))
    assert (
        "log at 16a8w on the emulator of SM8350: whole 50 dB; WRONG -6 dB" in text
        and "keep it at 8a8w" in text
    )
    assert "→ nox -s diagnose -- log@16a8w" in text
    assert [row.operator for row in rows["16a8w"].inexact] == ["aten.log.default"]


@pytest.mark.parametrize(
    ("operator", "shapes", "scheme", "warns"),
    [
        # What ExecuTorch's test "combinations" loses comes of its padding.
        ("aten.max_pool2d.default", ((1, 16, 48, 48), (1, 16, 96, 96)), "fp16", False),
        ("aten.any.dim", ((1,), (7,)), "8a8w", True),
        ("aten.any.dim", ((1,), (16,)), "8a8w", False),
        ("aten.any.dim", ((1, 1), (1, 7)), "8a8w", False),
    ],
)
def test_audit_warns_of_what_was_measured_with_this_nodes_shapes_alone(
    tmp_path: Path, operator: str, shapes: tuple[tuple[int, ...], ...], scheme: str, warns: bool
) -> None:
    compiled = compiled_as(nodes={"node": Traits(operator, shapes=shapes)})
    assert bool(explain.audit_row(compiled, scheme, "SM8650").inexact) is warns


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
        scheme: explain.audit_row(compiled, scheme, "SM8750")
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
    audited = list(as_text({"fp16": explain.audit_row(compiled, "fp16", "SM8750")}))
    for lines in (said, audited[audited.index("on the CPU") + 1 :]):
        kinds = [next(word for word in (":3", ":5", ":8", "→") if word in line) for line in lines]
        assert kinds == [":3", ":5", "→", ":8"]


def test_a_program_that_misses_its_accuracy_blames_no_operator_for_inputs_of_the_table(given: Any) -> None:
    program = next(case for case in programs_of(SHIPPED) if case.thresholds and case.run.precision == "8a8w")
    given(SM8650={"8a8w": {**WHOLE, "others": {**LOW, **RANK_6}}, "16a8w": WHOLE})
    compiled = compiled_as(nodes={"log": Traits("aten.log.default")})
    (found,) = findings_of(program, Result(record=EmulatorRun({"cosine": 0.0, "db": -9.0})), compiled)
    assert "log" not in found.message


ONNX = {
    "LRN": {"fp16": WHOLE, "8a8w": WHOLE, "16a8w": {"result": "dies"}},
    "Log": {
        "fp16": WHOLE,
        "8a8w": {"result": "wrong", "db": 3},
        "16a8w": {**WHOLE, "others": {"other draws": {"result": "wrong"}}},
    },
    "Erf": {"fp16": {"result": "cpu"}},
}


@pytest.fixture
def given_onnx() -> Iterator[None]:
    with own_table(onnx={name: {"SM8650": row} for name, row in ONNX.items()}):
        yield


@pytest.mark.usefixtures("given_onnx")
def test_an_operator_of_onnx_that_fails_is_named_with_the_precision_to_keep_it_at() -> None:
    (found,) = inexact_onnx(["Add", "LRN", "Log", "LRN"], "16a8w")
    assert found.message == "LRN at 16a8w on the emulator of SM8650: DIES; keep it at 8a8w"
    assert found.command == ("nox -s test_onnx -- --suite manifests/suites/onnx_operators.toml -k LRN/16a8w/")
    assert not [*inexact_onnx(["LRN"], "16a8w", compiled=True)]
    (found,) = inexact_onnx(["Log"], "8a8w")
    assert found.message == "Log at 8a8w on the emulator of SM8650: WRONG 3 dB; keep it at fp16"
    assert [*inexact_onnx(["LRN", "Log", "Erf"], "fp16"), *inexact_onnx(["LRN"], "u16s8")] == []
