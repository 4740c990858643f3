"""The operators of ONNX that are measured: their tests as models, and their cells in the table."""

from __future__ import annotations

import onnx.defs

from ci.lanes.onnx.suite import programs_of
from ci.operators.table import OperatorTable
from ci.suite.accepted import Recorded
from lab.onnx_operators.cells import onnx_of
from lab.onnx_operators.node_tests import SUITE, Chosen, NodeTests, node_tests
from lab.operators.pages import markdown


def test_every_operator_of_the_installed_opset_is_measured_or_left_out_with_a_reason() -> None:
    schemas = [
        schema for schema in onnx.defs.get_all_schemas() if not schema.domain and not schema.deprecated
    ]
    found = node_tests()
    assert {schema.name for schema in schemas} == {*found.operators, *found.left_out}, (
        "nox -s lab -- onnx_operators"
    )
    assert found.opset == onnx.defs.onnx_opset_version()
    assert found.operators.keys().isdisjoint(found.left_out) and all(found.left_out.values())


def test_the_suite_has_each_operator_in_each_precision_and_the_proof_of_a_fault() -> None:
    names = {program.name for program in programs_of(SUITE)}
    operators = [*node_tests().operators, "conv2d_depthwise_1x1_relu"]
    assert names == {f"{name}/{run}/SM8650" for name in operators for run in ("fp16", "8a8w", "16a8w")}


BUILD = "v2.51.0"
BASELINE = {
    "Abs/fp16/SM8650": Recorded(build_id=BUILD, accuracy={"sqnr_db": 74.32, "reference_sqnr_db": 81.0}),
    "Abs/8a8w/SM8650": Recorded(build_id=BUILD, accuracy={"reference_sqnr_db": 999.0}),
    "Abs/16a8w/SM8650": Recorded(build_id=BUILD, accuracy={"sqnr_db": 11.2, "reference_sqnr_db": 999.0}),
    "Log/8a8w/SM8650": Recorded(
        build_id=BUILD, accuracy={"sqnr_db": 73.0, "reference_sqnr_db": 73.0}, in_float=True
    ),
    "Log/16a8w/SM8650": Recorded(build_id=BUILD, accuracy={"reference_sqnr_db": 3.0}),
    "Erf/fp16/SM8650": Recorded(build_id=BUILD, refused=("Erf",)),
    "Pool/8a8w/SM8650": Recorded(build_id=BUILD, refused=("Where",), taken=("Div",)),
    "Det/fp16/SM8650": Recorded(build_id=BUILD, failed="dies"),
    "Det/8a8w/SM8650": Recorded(build_id=BUILD, failed="crash"),
    "Equal/fp16/SM8650": Recorded(build_id=BUILD, accuracy={"agreement": 0.75}),
    "Equal/8a8w/SM8650": Recorded(build_id=BUILD, accuracy={"agreement": 0.5, "reference_agreement": 1.0}),
    "Equal/16a8w/SM8650": Recorded(build_id=BUILD, accuracy={"agreement": 1.0, "reference_agreement": 1.0}),
    "proof_of_a_fault/8a8w/SM8650": Recorded(build_id=BUILD, accuracy={"reference_sqnr_db": 3.0}),
}
CHOSEN = NodeTests.model_validate(
    {
        "schema": 1,
        "onnx": "1",
        "onnxruntime": "1",
        "opset": 28,
        "operators": {
            name: Chosen(test="t", module="m", opset=20)
            for name in ("Abs", "Log", "Erf", "Pool", "Det", "Equal")
        },
        "left_out": {"If": "control flow", "Loop": "control flow"},
    }
)


def onnx_cells() -> OperatorTable:
    return onnx_of(BASELINE, CHOSEN)


def test_each_result_of_the_baseline_is_a_cell() -> None:
    cells = {
        f"{operator} {precision}": str(cell)
        for operator, chips in onnx_cells().cells.items()
        for precision, cell in chips["SM8650"].items()
    }
    assert cells == {
        "Abs fp16": "whole 81 dB",
        "Abs 8a8w": "whole exact",
        "Abs 16a8w": "LOST 11 dB to float",
        "Log 8a8w": "float 73 dB",
        "Log 16a8w": "WRONG 3 dB",
        "Erf fp16": "CPU",
        "Pool 8a8w": "part",
        "Det fp16": "DIES",
        "Det 8a8w": "CRASHES",
        "Equal fp16": "WRONG",
        "Equal 8a8w": "LOST",
        "Equal 16a8w": "whole exact",
    }


def test_the_page_names_what_fails_and_what_is_left_out() -> None:
    text = markdown(OperatorTable(), onnx_cells(), CHOSEN)
    assert "| 16a8w | Abs, Log |" in text and "| fp16 | Det, Equal | Erf |" in text
    assert "- control flow: If, Loop" in text and "proof_of_a_fault" not in text
