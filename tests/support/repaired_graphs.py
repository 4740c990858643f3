"""A small ONNX model for each rewrite, as text."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser

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
