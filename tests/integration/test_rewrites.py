"""Every rewrite of a graph: it matches, gives the same on the CPU, and is refused where it is broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser

from ci.explain import onnx_rewriting, torch_rewriting
from ci.explain.onnx_rewrites import REWRITES
from ci.explain.onnx_rewriting import OnnxMatch, Writer
from ci.explain.proof import NotTheSame
from ci.explain.rewriting import Need, needs_of
from ci.explain.torch_all_rewrites import BY_NAME
from provisioning.known_faults import load_faults, load_fixes, words_of
from tests.support.repaired_nets import NETS, Net, weight_normed

pytestmark = pytest.mark.filterwarnings("ignore")

OTHER_FORMS = pytest.mark.long("dozens of nets, which other forms of a rewrite's operators are in")
MADE = [
    pytest.param(name, number, marks=OTHER_FORMS if number else ())
    for name, makers in NETS.items()
    for number in range(len(makers))
]


def need(name: str) -> Need:
    return Need.of(name, [fix for fix in load_fixes() if fix.rewrite == name])


def _larger(value: Any) -> Any:
    return value * 1.01 if value.is_floating_point() else value + 1


def _turned(value: Any) -> Any:
    return value.flip(max(axis for axis, size in enumerate(value.shape) if size > 1))


def _broken(write: Callable[..., Any], spoil: Callable[[Any], Any]) -> Callable[..., Any]:
    def written(*tensors: Any) -> Any:
        result = write(*tensors)
        if not isinstance(result, tuple):
            return spoil(result)
        # An output that nobody reads is None.
        used = next(number for number, value in enumerate(result) if value is not None)
        return tuple(spoil(value) if number == used else value for number, value in enumerate(result))

    return written


def test_a_model_that_returns_what_max_returns_is_rewritten_and_can_be_saved(tmp_path: Path) -> None:
    model, x = Net(lambda x: x.max(-1)), torch.randn(2, 3)
    repaired = torch_rewriting.RepairedModule(model.eval(), [(x,)], BY_NAME)
    repaired.apply([need("amax-and-argmax")])
    assert [change.refused for change in repaired.changes] == [""]
    torch.export.save(repaired.exported(), tmp_path / "rewritten.pt2")
    values, indices = torch.export.load(tmp_path / "rewritten.pt2").module()(x)
    assert torch.equal(values, x.amax(-1)) and torch.equal(indices, x.argmax(-1))


@pytest.mark.parametrize(("name", "number"), MADE)
def test_a_rewrite_is_proved_and_with_a_wrong_constant_or_axis_refused(name: str, number: int) -> None:
    torch.manual_seed(0)
    model, sample = NETS[name][number]()
    with torch.no_grad():
        repaired = torch_rewriting.RepairedModule(model.eval(), [sample, sample], BY_NAME)
        matches = [match for find in BY_NAME[name] for match in find(repaired)]
        assert matches
        for match in matches:
            for spoil in (_larger, _turned):
                with pytest.raises(NotTheSame):
                    repaired.replacement(replace(match, write=_broken(match.write, spoil)), need(name))
        own = str(repaired.module.graph).count("detach_.default")
        repaired.apply([need(name)])
        assert [change.refused for change in repaired.changes] == [""] * len(matches)
        assert repaired.changes[0].source.startswith("tests/support/repaired_nets.py:")
        # ExecuTorch does not lower it.
        assert str(repaired.module.graph).count("detach_.default") <= own
        assert not [match for find in BY_NAME[name] for match in find(repaired)]


@pytest.mark.parametrize(
    "empty", [torch.zeros_like, lambda x: x.new_zeros(1, 4), lambda x: torch.zeros(1, 4)]
)
@pytest.mark.parametrize("view", [lambda z: z[:, 0], lambda z: z.split(1, -1)[0][:, 0]])
def test_what_an_input_is_written_into_is_no_constant(
    empty: Callable[[torch.Tensor], torch.Tensor], view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def fills(x: torch.Tensor) -> torch.Tensor:
        z = empty(x)
        view(z).copy_(x[:, 0])
        return z * 2 + x

    sample = (torch.rand(1, 4),)
    with torch.no_grad():
        model = torch_rewriting.RepairedModule(Net(fills).eval(), [sample, sample], BY_NAME)
        found = list(BY_NAME["constants-folded"][0](model))
    assert not found


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_words_for_an_embedding_bag_compute_the_same_in_each_of_its_modes(mode: str) -> None:
    method = re.search(rf"\.(\w+)\(1\) for mode {mode}\b", words_of("embedding-bag-on-cpu"))
    assert method
    bag, ids = torch.nn.EmbeddingBag(10, 4, mode=mode), torch.tensor([[1, 2, 3], [4, 5, 9]])
    rows = torch.nn.Embedding.from_pretrained(bag.weight)(ids)
    torch.testing.assert_close(getattr(rows, method[1])(1), bag(ids))


HEAD = '<ir_version: 10, opset_import: ["" : 23]>\n'
IMAGE, ROW = "float[1,4,6,6]", "float[2,6]"

TEXTS = {
    "division-by-root": f"""g ({ROW} x, {ROW} v) => ({ROW} y) {{
        r = Sqrt(v) q = Reciprocal(r) y = Mul(x, q) }}""",
    "norm-as-scale-and-shift": f"""g ({IMAGE} x) => ({IMAGE} y)
        <float[4] s = {{1, 0.5, 2, 1}}, float[4] b = {{0.5, 0.1, 0.2, 0.3}},
         float[4] m = {{0.1, 0.2, 0.3, 0.4}}, float[4] v = {{1, 2, 0.5, 0.1}}> {{
        c = Conv(x, w) n = BatchNormalization(c, s, b, m, v)
        p = Relu(n) y = BatchNormalization<epsilon = 0.001>(p, s, b, m, v) }}""",
    "gelu-for-erf": f"""g ({ROW} x) => ({ROW} y)
        <float two = {{1.41421356}}, float one = {{1}}, float half = {{0.5}}> {{
        d = Div(x, two) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half) }}""",
    "depthwise-as-product": f"""g ({IMAGE} x) => ({IMAGE} y)
        <float[4,1,1,1] w = {{1, 2, -3, 0.5}}, float[4] b = {{1, 0, 0.5, 2}}> {{
        y = Conv<group = 4>(x, w, b) }}""",
    "fewer-dimensions": """g (float[1,8,8,3] x) => (float[4,16,3] y)
        <int64[6] first = {1, 2, 4, 2, 4, 3}, int64[3] last = {4, 16, 3}> {
        a = Reshape(x, first) t = Transpose<perm = [0, 1, 3, 2, 4, 5]>(a) y = Reshape(t, last) }""",
    "recurrent-cell-by-cell": """g (float[4,1,3] x) => (float[4,2,1,2] y, float[2,1,2] h) {
        y, h = GRU<hidden_size = 2, linear_before_reset = 1, direction = "bidirectional">(x, w, r, b) }""",
    "matmul-for-einsum": """g (float[1,5,2,4] x, float[1,3,2,4] u) => (float[1,2,5,3] y, float[5,3] z, a) {
        y = Einsum<equation = "bihd,bjhd->bhij">(x, u) z = Einsum<equation = "bihd, bjhd -> ij">(x, u)
        a = Einsum<equation = "bihd,de->bihe">(x, w) }""",
    "constants-folded": f"""g ({IMAGE} x) => ({IMAGE} y) {{
        c = Constant<value = bool[1] {{1}}>() s = Squeeze(c)
        t = If(s) <then_branch = one () => ({IMAGE} p) {{ p = Relu(x) }},
          else_branch = two () => (float[1,36,4] o) {{
            z = Constant<value = int64[3] {{1, 36, 4}}>() o = Reshape(x, z) }}>
        y = Neg(t) }}""",
}


WEIGHTS: dict[str, dict[str, tuple[int, ...]]] = {
    "norm-as-scale-and-shift": {"w": (4, 4, 1, 1)},
    "recurrent-cell-by-cell": {"w": (2, 6, 3), "r": (2, 6, 2), "b": (2, 12)},
    "matmul-for-einsum": {"w": (4, 3)},
}
"""Those that are drawn."""


def model_of(name: str) -> onnx.ModelProto:
    model, generator = parser.parse_model(HEAD + TEXTS[name]), np.random.default_rng(1)
    for weight, shape in WEIGHTS.get(name, {}).items():
        values = generator.normal(size=shape).astype("f4")
        model.graph.initializer.append(numpy_helper.from_array(values, weight))
    return model


def sample_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(2)
    sizes = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }
    return {
        name: (abs(array) if name == "v" else array)
        for name, shape in sizes.items()
        for array in [drawn.normal(size=shape).astype("f4")]
    }


@pytest.mark.parametrize("name", [name for name in TEXTS if name != onnx_rewriting.FOLDED])
def test_a_rewrite_of_an_onnx_is_proved_and_with_a_wrong_constant_or_axis_refused(
    name: str,
) -> None:
    model = model_of(name)
    sample = sample_of(model)
    repaired = onnx_rewriting.RepairedOnnx(model, [sample, sample], REWRITES)
    repaired.apply([])
    matches = list(REWRITES[name](repaired))

    def larger(put: Writer, result: str) -> str:
        return put("Mul", result, put.constant(1.01))

    def turned(put: Writer, result: str) -> str:
        ends = [put.constant([end], np.int64) for end in (-1, -(2**31), -1, -1)]
        return put("Slice", result, *ends)

    for match, spoil in product(matches, (larger, turned)):

        def broken(
            put: Writer, match: OnnxMatch = match, spoil: Callable[[Writer, str], str] = spoil
        ) -> list[str]:
            first, *rest = match.write(put)
            return [spoil(put, first), *rest]

        values = repaired.values(match.operands)
        with pytest.raises(NotTheSame):
            repaired.replacement(replace(match, write=broken), need(name), values)
    repaired.apply([need(name)])
    assert matches and [change.refused for change in repaired.changes] == [""] * len(matches)
    assert not list(REWRITES[name](repaired))


RECURRENT = {
    "an LSTM in both directions, from a state": """g (float[4,1,3] x, float[2,1,2] s, float[2,1,2] m)
        => (float[4,2,1,2] y, float[2,1,2] h, float[2,1,2] c) {
        y, h, c = LSTM<hidden_size = 2, direction = "bidirectional">(x, w, r, b, , s, m) }""",
    "an LSTM from zeros, without a bias": """g (float[4,1,3] x) => (float[4,1,1,2] y) {
        y = LSTM<hidden_size = 2>(x, w, r) }""",
    "a GRU that reads backwards": """g (float[4,1,3] x) => (float[4,1,1,2] y, float[1,1,2] h) {
        y, h = GRU<hidden_size = 2, linear_before_reset = 1, direction = "reverse">(x, w, r) }""",
}


@pytest.mark.parametrize("text", RECURRENT.values(), ids=RECURRENT.keys())
def test_a_recurrent_layer_of_an_onnx_is_proved_to_be_its_cells(text: str) -> None:
    model, generator = parser.parse_model(HEAD + text), np.random.default_rng(1)
    gates = 8 if "LSTM" in text else 6
    ways = 2 if "bidirectional" in text else 1
    sizes = {"w": (ways, gates, 3), "r": (ways, gates, 2), "b": (ways, 2 * gates)}
    for weight, shape in sizes.items():
        values = generator.normal(size=shape).astype("f4")
        model.graph.initializer.append(numpy_helper.from_array(values, weight))
    repaired = onnx_rewriting.RepairedOnnx(model, [sample_of(model)], REWRITES)
    repaired.apply([need("recurrent-cell-by-cell")])
    assert [change.refused for change in repaired.changes] == [""]
    assert not {"LSTM", "GRU"} & {node.op_type for node in repaired.model.graph.node}


def test_an_if_with_a_constant_condition_leaves_one_branch() -> None:
    model = model_of(onnx_rewriting.FOLDED)
    sample = sample_of(model)
    repaired = onnx_rewriting.RepairedOnnx(model, [sample], REWRITES)
    repaired.apply([need(onnx_rewriting.FOLDED)])
    assert [change.refused for change in repaired.changes] == [""]
    assert [node.op_type for node in repaired.model.graph.node] == ["Relu", "Neg"]


def test_a_weight_that_is_computed_in_each_run_becomes_a_constant() -> None:
    with torch.no_grad():
        model, sample = weight_normed()
        repaired = torch_rewriting.RepairedModule(model, [sample, sample], BY_NAME)
        repaired.apply([need(torch_rewriting.WEIGHTS)])
    assert "remove_parametrizations" in repaired.changes[0].words and repaired.rewritten
    assert "weight_norm" not in repaired.module.code


def test_a_constant_weight_that_is_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def larger(model: torch.nn.Module) -> torch.nn.Module:
        model = computed(model)
        for weight in model.parameters():
            weight.mul_(1.01)
        return model

    computed = torch_rewriting.copy_with_constant_weights
    monkeypatch.setattr(torch_rewriting, "copy_with_constant_weights", larger)
    with torch.no_grad():
        model, sample = weight_normed()
        repaired = torch_rewriting.RepairedModule(model, [sample, sample], BY_NAME)
        repaired.apply([need(torch_rewriting.WEIGHTS)])
    assert repaired.changes and all(change.refused for change in repaired.changes)


def test_a_model_that_is_folded_to_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(model: onnx.ModelProto) -> onnx.ModelProto:
        folded = optimize(model)
        next(node for node in folded.graph.node if node.op_type == "Neg").op_type = "Abs"
        return folded

    optimize = onnx_rewriting.optimize
    monkeypatch.setattr(onnx_rewriting, "optimize", other)
    model = model_of(onnx_rewriting.FOLDED)
    repaired = onnx_rewriting.RepairedOnnx(model, [sample_of(model)], REWRITES)
    repaired.apply([need(onnx_rewriting.FOLDED)])
    assert repaired.changes and all(change.refused for change in repaired.changes)


def test_a_build_without_the_fault_needs_no_rewrite_and_is_told_so() -> None:
    asked = ("bias-used-twice",)
    for version, withheld in (("1.5.1", False), ("9.0", True)):
        (found,) = needs_of("8a8w", "executorch", {"executorch": version, "qnn": "2.49.40"}, asked)
        assert bool(found.withheld) is withheld
    assert not needs_of("fp16", "executorch", {"executorch": "1.5.1", "qnn": "2.49.40"}, asked)
    with torch.no_grad():
        model, sample = NETS["bias-for-each-call"][0]()
        repaired = torch_rewriting.RepairedModule(model, [sample, sample], BY_NAME)
        repaired.apply([replace(need("bias-for-each-call"), withheld="not needed")])
    assert not repaired.rewritten and [change.refused for change in repaired.changes] == ["not needed"]


def test_each_row_of_the_table_names_a_rewrite_that_is_there_and_each_fault_has_a_row() -> None:
    there = {*BY_NAME, torch_rewriting.WEIGHTS, *REWRITES}
    named = {fix.rewrite for fix in load_fixes() if fix.rewrite}
    assert named == there | {onnx_rewriting.FOLDED}
    assert {fault.id for fault in load_faults()} <= {fix.rule for fix in load_fixes()}
    assert {*NETS, torch_rewriting.WEIGHTS, *TEXTS} == named
