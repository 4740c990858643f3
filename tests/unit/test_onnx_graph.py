from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ci.onnx.graph import (
    external_files,
    fix_dimensions,
    is_context,
    load_graph,
    problems_of,
    signature_of,
    simplify_gathers,
)
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError
from tests.support.onnx_models import context_model, conv_model, model_of, with_external_data, write


def rules(model: Any) -> list[str]:
    return [problem.rule for problem in problems_of(model)]


def test_a_static_float_model_has_no_problem() -> None:
    assert problems_of(conv_model()) == []


def test_the_signature_names_inputs_without_weights() -> None:
    signature = signature_of(conv_model())
    assert [str(tensor) for tensor in signature.inputs] == ["x: float32[1, 3, 8, 8]"]
    assert [str(tensor) for tensor in signature.outputs] == ["y: float32[1, 4, 8, 8]"]


def test_a_named_dimension_is_a_problem_whose_mend_is_a_flag() -> None:
    problem = problems_of(conv_model(("batch", 3, 8, 8)))[0]
    assert (problem.rule, problem.subject) == ("onnx-dynamic-shape", "x")
    assert problem.remedy == "fix it: --dimension batch=1"


def test_the_flag_can_be_typed_whatever_the_name_and_however_often_it_is_used() -> None:
    problem = problems_of(conv_model(("n + 1", "n + 1", 8, 8)))[0]
    assert problem.remedy == "fix it: --dimension 'n + 1=1'"


def test_a_dimension_without_a_name_must_be_fixed_at_export() -> None:
    problem = problems_of(conv_model((None, 3, 8, 8)))[0]
    assert problem.remedy == "export with every size of x fixed"


def test_an_input_of_no_known_shape_must_be_fixed_at_export() -> None:
    model = conv_model()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert problems_of(model)[0].remedy == "export with every size of x fixed"


def test_a_fixed_dimension_is_no_problem_any_more() -> None:
    model = conv_model(("batch", 3, 8, 8))
    fix_dimensions(model, {"batch": 2})
    assert problems_of(model) == []
    assert signature_of(model).outputs[0].shape == (2, 4, 8, 8)


def test_an_unknown_dimension_gets_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        fix_dimensions(conv_model(("batch", 3, 8, 8)), {"bach": 1})
    assert caught.value.remedy == "use one of: batch"


def test_where_no_dimension_has_a_name_none_can_be_fixed() -> None:
    with pytest.raises(UsageError) as caught:
        fix_dimensions(conv_model(), {"batch": 1})
    assert caught.value.remedy == "leave --dimension out"


@pytest.mark.parametrize(
    ("operator", "mend"), [("Loop", "unrolled"), ("Scan", "write its steps"), ("SequenceMap", "its steps")]
)
def test_a_loop_is_named_with_its_mend(operator: str, mend: str) -> None:
    body = helper.make_graph([], "body", [], [])
    problem = problems_of(model_of([helper.make_node(operator, ["x"], ["y"], name="flow", body=body)]))[0]
    assert (problem.rule, problem.subject) == ("onnx-control-flow", "flow")
    assert str(problem) == f"flow: {operator} is control flow, which HTP does not have"
    assert mend in problem.remedy


def if_model(*branches: Any) -> Any:
    """Takes the first branch or the second."""
    node = helper.make_node(
        "If", ["flag"], ["y"], name="flow", then_branch=branches[0], else_branch=branches[1]
    )
    return model_of([node], output=(1, 3, 8, 8), weights={"flag": np.array(True)})


def branch(
    operator: str = "Relu", shape: tuple[int, ...] = (1, 3, 8, 8), outputs: int = 1, **attributes: Any
) -> Any:
    names = [f"{operator}_{number}" for number in range(outputs)]
    nodes = [helper.make_node(operator, ["x"], [name], name=name, **attributes) for name in names]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]
    return helper.make_graph(nodes, operator, [], values)


def test_an_if_of_like_branches_is_no_problem() -> None:
    assert problems_of(if_model(branch(), branch("Sigmoid"))) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (branch("Sigmoid", (1, 3, 64)), "differ in type or shape"),
        (branch("Sigmoid", outputs=2), "expected one output of each, found 2"),
        (branch("Loop", body=helper.make_graph([], "body", [], [])), "Loop is control flow"),
    ],
)
def test_an_if_whose_branches_cannot_stand_for_each_other_is_one(other: Any, said: str) -> None:
    problem = next(one for one in problems_of(if_model(branch(), other)) if one.rule == "onnx-control-flow")
    assert said in problem.message


def test_a_gather_by_one_index_is_a_plain_gather() -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["position", "last"], ["column"]),
        helper.make_node("GatherND", ["table", "column"], ["y"], name="look_up", batch_dims=0),
    ]
    weights = {"table": np.zeros((8, 4), np.float32), "last": np.array([-1])}
    model = model_of(nodes, output=(1, 4), weights=weights)
    simplify_gathers(model)
    found = model.graph.node[1]
    assert (found.op_type, list(found.input), list(found.output)) == ("Gather", ["table", "position"], ["y"])


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("GatherND", ["table", "x"], ["y"])],
        [
            helper.make_node("Neg", ["x"], ["column"]),
            helper.make_node("GatherND", ["table", "column"], ["y"]),
        ],
        [
            helper.make_node("Unsqueeze", ["position", "x"], ["column"]),
            helper.make_node("GatherND", ["table", "column"], ["y"]),
        ],
    ],
    ids=["of an input", "of what another operator makes", "along an axis that is not known"],
)
def test_a_gather_by_anything_else_stays_as_it_is(nodes: list[Any]) -> None:
    model = model_of(nodes, weights={"table": np.zeros((8, 4), np.float32)})
    before = model.SerializeToString()
    simplify_gathers(model)
    assert model.SerializeToString() == before


@pytest.mark.parametrize(("axis", "batch"), [(0, 0), (-1, 1)])
def test_another_gather_stays_as_it_is(axis: int, batch: int) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["position", "axes"], ["column"]),
        helper.make_node("GatherND", ["table", "column"], ["y"], name="look_up", batch_dims=batch),
    ]
    model = model_of(nodes, weights={"table": np.zeros((8, 4), np.float32), "axes": np.array([axis])})
    simplify_gathers(model)
    assert model.graph.node[1].op_type == "GatherND"


def test_an_opset_that_nobody_knows_yet_is_a_problem() -> None:
    assert rules(model_of([helper.make_node("Relu", ["x"], ["y"])], opset=99)) == ["onnx-opset"]


def test_operators_of_another_domain_have_versions_of_their_own() -> None:
    node = helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")
    model = model_of([node], output=(1, 3, 8, 8))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 99))
    assert problems_of(model) == []


def test_a_node_without_a_name_is_named_by_what_it_makes() -> None:
    node = helper.make_node("Loop", ["x"], ["y"], body=helper.make_graph([], "body", [], []))
    assert problems_of(model_of([node]))[0].subject == "the Loop that makes y"


def test_an_output_whose_size_the_data_decides_is_a_problem() -> None:
    node = helper.make_node("NonZero", ["x"], ["y"], name="where")
    model = model_of([node], output=(4, None))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    assert rules(model) == ["onnx-dynamic-shape"]
    assert "HTP pads with -1" in problems_of(model)[0].remedy


def test_one_whose_size_is_fixed_in_the_model_is_not() -> None:
    model = model_of([helper.make_node("NonZero", ["x"], ["y"], name="where")], output=(4, 192))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    assert problems_of(model) == []


def test_one_that_the_provider_never_takes_is() -> None:
    node = helper.make_node("Unique", ["x"], ["y"], name="unique")
    problems = [one for one in problems_of(model_of([node], output=(192,))) if one.subject == "unique"]
    assert [one.rule for one in problems] == ["onnx-dynamic-shape"] and "pads" not in problems[0].remedy


def test_float64_is_a_problem() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    found = problems_of(model_of([node], kind=TensorProto.DOUBLE, output=(1, 3, 8, 8)))
    assert {problem.subject for problem in found if problem.rule == "onnx-type"} == {"x", "y"}


@pytest.mark.parametrize(
    ("kind", "said", "mend"),
    [
        (TensorProto.STRING, "string", "turn text into numbers outside the model"),
        (TensorProto.COMPLEX64, "complex64", "export in float32"),
        (TensorProto.COMPLEX128, "complex128", "export in float32"),
    ],
)
def test_a_type_that_htp_does_not_have_is_told_once_with_its_mend(kind: int, said: str, mend: str) -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"], name="relu")], kind=kind)
    model.graph.value_info.append(model.graph.output[0])
    problems = [problem for problem in problems_of(model) if problem.rule == "onnx-type"]
    assert [str(problem) for problem in problems] == [
        f"{name} is {said}, which HTP does not have" for name in ("x", "y")
    ]
    assert {problem.remedy for problem in problems} == {mend}


def test_weights_of_such_a_type_are_a_problem_too() -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    assert rules(model_of(nodes, weights={"w": np.zeros((1,))})) == ["onnx-type"]


def test_a_type_that_nobody_knows_yet_is_told_by_its_number() -> None:
    model = conv_model()
    model.graph.input[0].type.tensor_type.elem_type = 99
    assert str(signature_of(model).inputs[0]) == "x: type 99[1, 3, 8, 8]"
    model.graph.initializer[0].data_type = 99
    (problem,) = problems_of(model)
    assert problem.rule == "onnx-malformed" and "99" in problem.message


def test_a_model_that_breaks_the_rules_of_onnx_is_a_problem() -> None:
    node = helper.make_node("Conv", ["x", "nowhere"], ["y"], name="conv")
    assert rules(model_of([node])) == ["onnx-malformed"]


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"PK\x03\x04 not this", b"\xff" * 1000])
def test_other_files_are_said_to_be_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(CheckFailed, match="expected an ONNX model"):
        load_graph(path)


@pytest.mark.parametrize(
    ("field", "said"),
    [("", "an empty file"), ("node", "without nodes"), ("opset", "without an operator set")],
)
def test_a_model_of_nothing_is_told_what_it_lacks(tmp_path: Path, field: str, said: str) -> None:
    model = conv_model()
    if field:
        model.ClearField("opset_import") if field == "opset" else model.graph.ClearField(field)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString() if field else b"")
    with pytest.raises(CheckFailed, match=said):
        load_graph(path)


def test_a_directory_is_a_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Is a directory"):
        load_graph(tmp_path)


def test_any_part_of_a_model_is_refused_in_words(tmp_path: Path) -> None:
    whole = write(conv_model(), tmp_path / "model.onnx").read_bytes()
    part = tmp_path / "part.onnx"
    for length in range(0, len(whole), 37):
        part.write_bytes(whole[:length])
        try:
            problems_of(load_graph(part))
        except ToolkitError as error:
            assert str(part) in error.message


def test_a_missing_model_is_a_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_graph(tmp_path / "absent.onnx")


def test_external_data_beside_the_model_is_found(tmp_path: Path) -> None:
    path = with_external_data(tmp_path / "model.onnx")
    assert external_files(load_graph(path), tmp_path) == [tmp_path / "weights.bin"]


def test_a_model_may_have_all_its_data_in_itself(tmp_path: Path) -> None:
    assert external_files(conv_model(), tmp_path) == []


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    path = with_external_data(tmp_path / "model.onnx")
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(CheckFailed, match=r"external data of w: .*weights\.bin is missing"):
        external_files(load_graph(path), tmp_path)


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "a/../../weights.bin"])
def test_external_data_outside_the_models_folder_is_refused(tmp_path: Path, location: str) -> None:
    path = with_external_data(tmp_path / "in" / "model.onnx", location)
    (tmp_path / "weights.bin").write_bytes(b"0" * 1000)
    with pytest.raises(CheckFailed, match="expected a file below"):
        external_files(load_graph(path), tmp_path / "in")


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = with_external_data(tmp_path / "in" / "model.onnx")
    (tmp_path / "in" / "weights.bin").rename(tmp_path / "weights.bin")
    (tmp_path / "in" / "weights.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(CheckFailed, match=r"expected a file below .*, a link to .*/weights\.bin"):
        external_files(load_graph(path), tmp_path / "in")


@pytest.mark.parametrize("location", ["", ".", "a\0b", "a" * 5000, "circle"])
def test_a_name_that_no_external_data_can_have_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "circle").symlink_to("circle")
    model = load_graph(with_external_data(tmp_path / "model.onnx"))
    model.graph.initializer[0].external_data[0].value = location
    with pytest.raises(CheckFailed, match="external data of w: "):
        external_files(model, tmp_path)


def test_an_absolute_name_is_refused_wherever_it_leads(tmp_path: Path) -> None:
    model = load_graph(with_external_data(tmp_path / "model.onnx"))
    model.graph.initializer[0].external_data[0].value = str(tmp_path / "weights.bin")
    with pytest.raises(CheckFailed, match="expected a file below"):
        external_files(model, tmp_path)


@pytest.mark.parametrize("entries", [{"offset": "1"}, {"offset": "-1"}, {"length": "-1"}, {"length": "433"}])
def test_external_data_that_the_file_does_not_have_is_refused(
    tmp_path: Path, entries: dict[str, str]
) -> None:
    path = with_external_data(tmp_path / "model.onnx", **entries)
    with pytest.raises(CheckFailed, match="which has 432"):
        external_files(load_graph(path), tmp_path)


def test_external_data_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = with_external_data(tmp_path / "model.onnx")
    (tmp_path / "weights.bin").write_bytes(b"0" * 10)
    with pytest.raises(CheckFailed, match=r"expected 432 bytes at 0 of .*, which has 10"):
        external_files(load_graph(path), tmp_path)


def test_external_data_at_no_number_is_refused(tmp_path: Path) -> None:
    model = with_external_data(tmp_path / "model.onnx", offset="abc")
    with pytest.raises(CheckFailed, match="expected numbers, found offset 'abc'"):
        external_files(load_graph(model), tmp_path)


def test_external_data_of_a_constant_node_is_no_fault_of_the_model(tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.ones((1, 4, 8, 8), np.float32), "c")
    nodes = [helper.make_node("Constant", [], ["c"], value=value), helper.make_node("Relu", ["c"], ["y"])]
    path = tmp_path / "model.onnx"
    onnx.save(
        model_of(nodes),
        str(path),
        save_as_external_data=True,
        location="c.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    model = load_graph(path)
    assert external_files(model, tmp_path) == [tmp_path / "c.bin"] and problems_of(model) == []


def test_external_data_inside_a_branch_is_looked_at_too(tmp_path: Path) -> None:
    inner = load_graph(with_external_data(tmp_path / "in" / "model.onnx", "../out.bin")).graph
    node = helper.make_node("If", ["x"], ["y"], name="flow", then_branch=inner, else_branch=inner)
    with pytest.raises(CheckFailed, match="expected a file below"):
        external_files(model_of([node]), tmp_path / "in")


def test_a_compiled_model_is_told_from_others(tmp_path: Path) -> None:
    assert is_context(load_graph(context_model(tmp_path)))
    assert not is_context(conv_model())


def test_large_weights_do_not_slow_the_look_down() -> None:
    weights = np.zeros((4, 3, 3, 3), np.float32)
    model = model_of(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])], weights={"w": weights}
    )
    before = model.SerializeToString()
    problems_of(model)
    assert model.SerializeToString() == before
