"""The values that the tensors of an ONNX model have for samples, computed on the CPU. Imported only by the
worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx
from onnx import helper

from ci.lanes.onnx import provider
from ci.pipeline.models.arrays import Sample


def values_of(
    model: onnx.ModelProto, samples: Sequence[Sample], into: Path, names: Iterable[str] | None = None
) -> list[Sample]:
    """By name those of inputs, outputs and `names`, or of all tensors. `into` has the model meanwhile."""
    whole, path = onnx.ModelProto(), into / "exposed.onnx"
    whole.CopyFrom(model)
    if names is None:
        names = (name for node in model.graph.node for name in node.output if name)
    known = {value.name for value in (*model.graph.output, *model.graph.input)}
    whole.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(names) if name not in known
    )
    into.mkdir(parents=True, exist_ok=True)
    try:
        onnx.save(whole, str(path))
        outputs = provider.on_cpu(path, samples)
    finally:
        path.unlink(missing_ok=True)
    return [{**sample, **row} for sample, row in zip(samples, outputs, strict=True)]
