"""What of an .onnx is known before anything is compiled."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ci.explain.divergence import DivergenceLimits
from ci.explain.onnx_graph import OnnxGraph, make_plain
from ci.lanes.onnx import provider
from ci.lanes.onnx.model_file import (
    all_in_float,
    external_files,
    fix_dimensions,
    load_graph,
    problems_of,
    signature_of,
    simplify_gathers,
)
from ci.lanes.onnx.product import dimensions_of
from ci.lanes.onnx.searches import beyond_half, diverge
from ci.lanes.onnx.task_files import SAMPLES, ModelFiles
from ci.models.inputs import save
from ci.suite.onnx_runtime import run_on_cpu
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError
from tests.support.onnx_models import conv_model, model_of, with_external_data, write
from tests.support.onnx_suites import order_of


def relu(**model: Any) -> Any:
    return model_of([helper.make_node("Relu", ["x"], ["y"], name="relu")], **model)


class TestProblems:
    @pytest.mark.parametrize(
        ("model", "rule", "subject", "fix"),
        [
            (conv_model(("batch", 3, 8, 8)), "onnx-dynamic-shape", "x", "--dimension batch=1"),
            (relu(kind=TensorProto.DOUBLE), "onnx-type", "x", "export in float32"),
            (
                model_of([helper.make_node("Mul", ["x", "w"], ["y"])], weights={"w": np.zeros((1,))}),
                "onnx-type", "w", "export in float32",
            ),
            (
                model_of([
                    helper.make_node("RandomNormalLike", ["x"], ["noise"], name="noise"),
                    helper.make_node("Add", ["x", "noise"], ["y"]),
                ]),
                "onnx-random", "noise", "make them an input",
            ),
        ],
    )  # fmt: skip
    def test_each_is_named_with_what_to_do(self, model: Any, rule: str, subject: str, fix: str) -> None:
        problems = problems_of(model)
        assert (problems[0].rule, problems[0].subject) == (rule, subject)
        assert fix in problems[0].fix

    def test_what_htp_takes_has_none(self) -> None:
        model = conv_model()
        before = model.SerializeToString()
        assert problems_of(model) == []
        assert model.SerializeToString() == before


class TestPlain:
    def test_each_node_gets_a_name_so_that_verdicts_of_two_are_two(self) -> None:
        nodes = [helper.make_node("Erf", ["x"], ["a"]), helper.make_node("Erf", ["a"], ["y"])]
        model = model_of(nodes)
        assert make_plain(model) and [node.name for node in model.graph.node] == ["a", "y"]
        assert not make_plain(model)

    def test_a_weight_that_is_an_input_too_is_none_afterwards(self) -> None:
        model = conv_model((1, 3, 8, 8))
        weight = model.graph.initializer[0]
        model.graph.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
        model.ir_version = 3
        assert make_plain(model) and [value.name for value in model.graph.input] == ["x"]
        onnx.checker.check_model(model)

    @pytest.mark.parametrize(
        ("attribute", "value"),
        [
            ({"value": numpy_helper.from_array(np.array([2, 3]))}, [2, 3]),
            ({"value_float": 0.5}, 0.5),
            ({"value_floats": [0.5, 1.5]}, [0.5, 1.5]),
            ({"value_int": 7}, 7),
            ({"value_ints": [2, 3]}, [2, 3]),
        ],
    )
    def test_a_constant_node_becomes_a_weight(self, attribute: dict[str, Any], value: Any) -> None:
        nodes = [
            helper.make_node("Constant", [], ["w"], name="w", **attribute),
            helper.make_node("Mul", ["x", "w"], ["y"], name="mul"),
        ]
        model = model_of(nodes)
        assert make_plain(model) and [node.name for node in model.graph.node] == ["mul"]
        (weight,) = model.graph.initializer
        array = numpy_helper.to_array(weight)
        assert (weight.name, array.tolist(), array.shape) == ("w", value, np.shape(value))
        assert array.dtype in (np.int64, np.float32)
        assert not make_plain(model)

    def test_a_rewritten_model_has_the_values_of_external_data_and_keeps_them_beside_it(
        self, tmp_path: Path
    ) -> None:
        from ci.lanes.onnx.preparation import look

        path = with_external_data(tmp_path / "model.onnx")
        model = onnx.load(str(path), load_external_data=False)
        value = numpy_helper.from_array(np.ones((1, 4, 1, 1), np.float32))
        model.graph.node[1].output[0] = "r"
        model.graph.node.add().CopyFrom(helper.make_node("Constant", [], ["one"], value=value))
        model.graph.node.add().CopyFrom(helper.make_node("Mul", ["r", "one"], ["y"]))
        expected = numpy_helper.to_array(model.graph.initializer[0], str(tmp_path))
        write(model, path)
        (tmp_path / "into").mkdir()
        rewritten = look(path, {}, tmp_path / "into")
        assert rewritten != path
        weights = {tensor.name: tensor for tensor in onnx.load(str(rewritten)).graph.initializer}
        assert np.array_equal(numpy_helper.to_array(weights["w"]), expected) and "one" in weights
        whole = onnx.load(str(rewritten), load_external_data=False)
        assert all(node.op_type != "Constant" for node in whole.graph.node)


class TestDimensions:
    def test_a_fixed_one_is_no_problem_any_more(self) -> None:
        model = conv_model(("batch", 3, 8, 8))
        fix_dimensions(model, {"batch": 2})
        assert problems_of(model) == []
        assert signature_of(model).outputs[0].shape == (2, 4, 8, 8)

    @pytest.mark.parametrize(
        "shape",
        [("batch", 3, 8, 8), (None, 3, "?", "?"), ("n", 3, "h", "h"), ("n", 3, None, "w"), (None,)],
    )
    def test_the_printed_flags_fix_every_size(self, shape: tuple[int | str | None, ...]) -> None:
        model = conv_model((*shape, 8, 8, 8)[:4]) if len(shape) > 1 else relu(shape=shape, output=shape)
        (problem,) = problems_of(model)
        words = shlex.split(problem.fix.removeprefix("fix it: "))
        assert words[::2] == ["--dimension"] * (len(words) // 2)
        fix_dimensions(model, dimensions_of(words[1::2]))
        assert problems_of(model) == []

    def test_all_sizes_of_an_input_are_fixed_with_the_names_that_occur_elsewhere(self) -> None:
        model = conv_model(("batch", 3, "?", None))
        fix_dimensions(model, dimensions_of(["x=2,3,64,32"]))
        assert signature_of(model).inputs[0].shape == (2, 3, 64, 32)
        assert signature_of(model).outputs[0].shape[0] == 2

    @pytest.mark.parametrize("wrong", ["x=2,3,8", "x=2,4,8,8", "z=1,3,8,8", "z=1"])
    def test_sizes_that_the_model_cannot_have_are_refused(self, wrong: str) -> None:
        with pytest.raises(UsageError):
            fix_dimensions(conv_model(("batch", 3, 8, 8)), dimensions_of([wrong]))


class TestGather:
    def simplified(self, nodes: list[Any], **weights: Any) -> Any:
        model = model_of(nodes, weights={"table": np.zeros((8, 4), np.float32), **weights})
        simplify_gathers(model)
        return model.graph.node[-1]

    def column(self, axes: str, batch: int = 0) -> list[Any]:
        return [
            helper.make_node("Unsqueeze", ["position", axes], ["column"]),
            helper.make_node("GatherND", ["table", "column"], ["y"], batch_dims=batch),
        ]

    def test_by_one_index_is_a_plain_gather(self) -> None:
        node = self.simplified(self.column("last"), last=np.array([-1]))
        assert (node.op_type, list(node.input), list(node.output)) == ("Gather", ["table", "position"], ["y"])

    @pytest.mark.parametrize(("axes", "axis", "batch"), [("last", 0, 0), ("last", -1, 1), ("x", -1, 0)])
    def test_by_anything_else_stays_as_it_is(self, axes: str, axis: int, batch: int) -> None:
        assert self.simplified(self.column(axes, batch), last=np.array([axis])).op_type == "GatherND"
        assert self.simplified([helper.make_node("GatherND", ["table", "x"], ["y"])]).op_type == "GatherND"


class TestDamage:
    def test_any_part_of_a_model_is_refused_in_words(self, tmp_path: Path) -> None:
        whole = write(conv_model(), tmp_path / "model.onnx").read_bytes()
        part = tmp_path / "part.onnx"
        for length in range(0, len(whole), 37):
            part.write_bytes(whole[:length])
            try:
                problems_of(load_graph(part))
            except ToolkitError as error:
                assert str(part) in error.message


class TestExternalData:
    def test_beside_the_model_is_found_also_of_a_constant_node(self, tmp_path: Path) -> None:
        path = with_external_data(tmp_path / "model.onnx")
        assert external_files(load_graph(path), tmp_path) == [tmp_path / "weights.bin"]
        assert external_files(conv_model(), tmp_path) == []
        value = numpy_helper.from_array(np.ones((1, 4, 8, 8), np.float32), "c")
        nodes = [helper.make_node("Constant", [], ["c"], value=value), helper.make_node("Relu", ["c"], ["y"])]
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

    @pytest.mark.parametrize(
        "location", ["../weights.bin", "/etc/passwd", "a/../../weights.bin", "link.bin", "absolute"]
    )
    def test_outside_the_models_folder_is_refused(self, tmp_path: Path, location: str) -> None:
        (tmp_path / "weights.bin").write_bytes(b"0" * 1000)
        path = with_external_data(tmp_path / "in" / "model.onnx")
        (tmp_path / "in/link.bin").symlink_to(tmp_path / "weights.bin")
        model = load_graph(path)
        name = str(tmp_path / "in/weights.bin") if location == "absolute" else location
        model.graph.initializer[0].external_data[0].value = name
        with pytest.raises(CheckFailed):
            external_files(model, tmp_path / "in")

    def test_inside_a_branch_is_looked_at_too(self, tmp_path: Path) -> None:
        inner = load_graph(with_external_data(tmp_path / "in" / "model.onnx", "../out.bin")).graph
        node = helper.make_node("If", ["x"], ["y"], name="flow", then_branch=inner, else_branch=inner)
        with pytest.raises(CheckFailed):
            external_files(model_of([node]), tmp_path / "in")

    @pytest.mark.parametrize(
        "entries", [{"offset": "1"}, {"offset": "-1"}, {"length": "-1"}, {"length": "433"}, {"offset": "abc"}]
    )
    def test_that_the_file_does_not_have_is_refused(self, tmp_path: Path, entries: dict[str, str]) -> None:
        path = with_external_data(tmp_path / "model.onnx", **entries)
        with pytest.raises(CheckFailed):
            external_files(load_graph(path), tmp_path)


def test_what_leaves_fp16_is_named_once_where_it_begins_and_a_mask_of_any_size_is_meant(
    tmp_path: Path,
) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "large"], ["far"], name="far"),
        helper.make_node("Relu", ["far"], ["after"], name="after"),
        helper.make_node("Add", ["after", "mask"], ["masked"], name="masked"),
        helper.make_node("Softmax", ["masked"], ["y"], name="softmax"),
    ]
    weights = {"large": np.array([300.0], "f4"), "mask": np.array([-3e38], "f4")}
    write(model_of(nodes, output=(1, 3, 8, 8), weights=weights), tmp_path / "net.onnx")
    samples = [{"x": np.full((1, 3, 8, 8), value, "f4")} for value in (1.0, 1000.0)]
    (found,) = beyond_half(tmp_path / "net.onnx", samples)
    assert (found.node, found.largest) == ("far", 300_000)
    assert not beyond_half(tmp_path / "net.onnx", samples[:1])


def test_a_weight_beyond_fp16_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "large"], ["y"], name="far")]
    model = model_of(nodes, output=(1, 3, 8, 8), weights={"large": np.array([1e6], "f4")})
    write(model, tmp_path / "net.onnx")

    (found,) = beyond_half(tmp_path / "net.onnx", [{"x": np.full((1, 3, 8, 8), 1e-3, "f4")}])

    assert (found.operator, found.largest) == ("large", 1e6)


@pytest.mark.parametrize("quantized", [False, True])
def test_what_squares_a_wrong_sum_is_wrong_and_the_sum_is_at_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantized: bool
) -> None:
    end = "steps" if quantized else "sum"
    nodes = [
        helper.make_node("Add", ["x", "one"], ["sum"], name="add"),
        helper.make_node("QuantizeLinear", ["sum", "scale", "zero"], ["whole"], name="quantize"),
        helper.make_node("DequantizeLinear", ["whole", "scale", "zero"], ["steps"], name="dequantize"),
        helper.make_node("Mul", [end, end], ["y"], name="square"),
    ]
    weights = {"one": np.float32(1), "scale": np.float32(0.125), "zero": np.uint8(0)}
    kept = nodes if quantized else [nodes[0], nodes[3]]
    model = model_of(kept, weights={name: np.asarray(value) for name, value in weights.items()})
    write(model, tmp_path / "net.onnx")

    def wrong_sum(program: Any, _precision: Any, _soc: Any, _settings: Any, fed: Any) -> Any:
        changed = onnx.load(str(program)) if isinstance(program, Path) else program
        for weight in changed.graph.initializer:
            if weight.name == "one":
                weight.CopyFrom(numpy_helper.from_array(np.asarray(np.float32(1.5)), "one"))
        return run_on_cpu(changed, fed)

    monkeypatch.setattr(provider, "outputs_on_htp", wrong_sum)
    samples = [{"x": np.full((1, 3, 8, 8), 2.0, "f4")}]
    path = tmp_path / "net.onnx"
    save(tmp_path / SAMPLES, samples)
    order = order_of(tmp_path, "8a8w" if quantized else "fp16", {"model": str(path)})
    limits = DivergenceLimits(60.0, 1e9, None)
    found = diverge(order, ModelFiles(tmp_path, path, path, tmp_path), limits, lambda result: None)
    assert found.first and (found.first.node, found.first.share) == ("add", 1.0)
    assert found.sqnr_db < found.cuts["add"]


def test_one_part_of_a_result_is_replaced_and_the_other_is_computed() -> None:
    halves = helper.make_node("Split", ["x"], ["a", "b"], name="halves", axis=1)
    model = model_of([halves, helper.make_node("Sub", ["a", "b"], ["y"])], shape=(1, 4), output=(1, 2))
    graph = OnnxGraph(model, [{"x": np.array([[5, 7, 1, 2]], "f4")}])
    ((found,),) = graph.outputs({"halves:0": [np.array([[10, 20]], "f4")]})
    assert found.tolist() == [[9, 18]]


def test_a_model_with_floats_of_which_nothing_is_quantized_is_all_in_float() -> None:
    assert all_in_float(relu())
    quantize = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])
    assert not all_in_float(model_of([quantize]))
    shape = helper.make_tensor_value_info("x", TensorProto.INT32, [2])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["x"])], "integers", [shape], [shape])
    assert not all_in_float(helper.make_model(graph))
