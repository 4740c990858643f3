"""Small ONNX models, good and bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ci.artifacts.compiled_onnx import COMPATIBILITY

BUILD_ID = "v2.51.0.260929181845"


def model_of(
    nodes: list[Any],
    *,
    shape: tuple[int | str | None, ...] = (1, 3, 8, 8),
    output: tuple[int | str | None, ...] = (1, 4, 8, 8),
    weights: dict[str, Any] | None = None,
    kind: int = TensorProto.FLOAT,
    opset: int = 17,
) -> Any:
    """One input x, one output y."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, output)],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def conv_model(
    shape: tuple[int | str | None, ...] = (1, 3, 8, 8), weights: dict[str, Any] | None = None
) -> Any:
    drawn = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    weights = {"w": drawn} if weights is None else weights
    nodes = [
        helper.make_node("Conv", ["x", *weights], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    return model_of(nodes, shape=shape, output=(shape[0], 4, *shape[2:]), weights=weights)


def root_mean_square() -> Any:
    """The provider computes the reciprocal of a quantized input below 1 wrongly; the CPU is right."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["squares"], name="square"),
        helper.make_node("ReduceMean", ["squares"], ["mean"], name="mean", axes=[-1]),
        helper.make_node("Sqrt", ["mean"], ["root"], name="root"),
        helper.make_node("Reciprocal", ["root"], ["inverse"], name="inverse"),
        helper.make_node("Mul", ["x", "inverse"], ["y"], name="normed"),
    ]
    return model_of(nodes, shape=(4, 16), output=(4, 16))


def write(model: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    return path


def with_external_data(path: Path, location: str = "weights.bin", **entries: str) -> Path:
    """A model whose weights are said to be in `location`; their file is written where that is below it."""
    model = conv_model()
    weights = model.graph.initializer[0]
    content = weights.raw_data
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "length": str(len(content)), **entries}.items():
        weights.external_data.add(key=key, value=value)
    write(model, path)
    if not Path(location).is_absolute() and ".." not in location:
        (path.parent / location).write_bytes(content)
    return path


def context_model(
    folder: Path,
    *,
    build_id: str = BUILD_ID,
    soc: int = 57,
    arch: int = 75,
    embed: bool = False,
    location: str = "model_ctx_qnn.bin",
) -> Path:
    """What the provider writes, with a few bytes for the context."""
    content = b"context " + build_id.encode() + b" of a graph"
    node = helper.make_node(
        "EPContext",
        ["x"],
        ["y"],
        name="context",
        domain="com.microsoft",
        embed_mode=int(embed),
        ep_cache_context=content if embed else location.encode(),
        ep_sdk_version=build_id.encode(),
        main_context=1,
    )
    model = model_of([node])
    model.metadata_props.add(key=COMPATIBILITY, value=f"v2:6:2.51.0:5.51.0:{arch}:{soc}:0:0")
    if not embed and not location.startswith(("/", "..")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / location).write_bytes(content)
    return write(model, folder / "model_ctx.onnx")
