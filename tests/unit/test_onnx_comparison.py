"""An ONNX program's indices are compared by the values that they chose among."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ci.lanes.onnx.comparison import comparison_of
from ci.lanes.onnx.task_files import EXPECTED, SAMPLES, ModelFiles
from ci.models.inputs import save

VALUES = np.array([[3.0, 1.0, 3.0], [1.0, 2.0, 0.0]], "f4")


def files_in(folder: Path) -> ModelFiles:
    """Write a model that adds a weight of zeros, in a file of its own, and gives the place of the largest
    value in each row."""
    nodes = [
        helper.make_node("Add", ["x", "zeros"], ["values"], name="adds"),
        helper.make_node("ArgMax", ["values"], ["y"], name="chooses", axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, VALUES.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [2])],
        [helper.make_tensor("zeros", TensorProto.FLOAT, [3], np.zeros(3, "f4").tobytes(), raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = folder / "net.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    save(folder / SAMPLES, [{"x": VALUES}])
    save(folder / EXPECTED, [{"y": np.array([0, 1])}])
    return ModelFiles(folder, path, path, folder)


@pytest.mark.parametrize(("indices", "agreement"), [([2, 1], 1.0), ([1, 1], 0.5)])
def test_an_index_of_an_equal_value_is_as_good(tmp_path: Path, indices: list[int], agreement: float) -> None:
    files = files_in(tmp_path)

    comparison = comparison_of(files, files.samples(), non_finite=False)
    figures = comparison.accuracy([{"y": np.array(indices)}], "fp16", tuple).figures

    assert figures == {"agreement": 0.5, "choice_agreement": agreement}
    assert comparison.choosers == ["ArgMax (chooses)"]
