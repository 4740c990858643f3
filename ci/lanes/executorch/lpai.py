"""Checks of an LPAI program before it is compiled, with torch and the quantized model at hand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ci.explain.torch_graph import figures_in_torch
from ci.lanes.executorch.backends import lpai_library
from ci.lanes.executorch.records import BeforeCompile, InTorch, Unannotated
from ci.models.model_lines import source_of
from ci.operators.partition.decisions import is_quantizer, operator_name
from provisioning.components import KINDS, QNN_SDK

ANNOTATION = "quantization_annotation"
MOVES = ("clone", "contiguous", "alias", "detach")
"""Operators without a rule that export removes before the partitioner runs."""


def before_compile(
    quantized: Any,
    expected: Sequence[Sequence[Tensor]],
    reference: Sequence[Sequence[Tensor]],
    non_finite: bool,
) -> BeforeCompile:
    """The quantized model's accuracy in PyTorch, operators without a rule, and a missing library."""
    library = lpai_library(Path(os.environ[KINDS[QNN_SDK].variable]))
    return BeforeCompile(
        InTorch(*figures_in_torch(expected, reference, non_finite)),
        unannotated(quantized.graph),
        "" if library.is_file() else str(library.relative_to(library.parents[2])),
    )


def unannotated(graph: Any) -> tuple[Unannotated, ...]:
    """Operators that LPAI's annotator left in float: one for each line of the model."""
    operators: dict[tuple[str, str], Unannotated] = {}
    for node in graph.nodes:
        if node.op != "call_function" or is_quantizer(node) or ANNOTATION in node.meta:
            continue
        name = operator_name(node)
        if name.removeprefix("aten.").partition(".")[0] in MOVES:
            continue
        source, code = source_of(node)
        operators.setdefault((name, source), Unannotated(name, source, code))
    return tuple(operators.values())
