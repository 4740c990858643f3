"""The operators of ONNX's opset in the operator table and on its pages, from the baseline of their suite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ci.operators.onnx_tests import SUITE, NodeTests, node_tests
from ci.operators.table import EXACT, MEANINGS, Cell, OnnxOperators, Result
from ci.pipeline.accuracy import against_nearest, computed_otherwise
from ci.pipeline.baseline import Recorded, load_baseline
from ci.pipeline.precision import ONNX_PRECISIONS, OnnxPrecision
from ci.pipeline.slices import LEAST_DB

HEAD = """\
## Operators of ONNX, through ONNX Runtime

The operators of ONNX's opset {opset}, compiled by ONNX Runtime's QNN provider for {chips} alone. Each is
one case: a node test of the package onnx ([which one][tests]). Other ranges and shapes are not tried, as they
are above. Axes, shapes and weights are constants of the model. It runs with the test's own data, and with
others drawn between its smallest and largest value. The figure is the least signal-to-noise ratio of the
outputs, against the quantized model on the CPU; in fp16 against the float model. LOST stands where quantizing
itself leaves less than {least:g} dB: HTP computes what the quantized model says, which is not what the float
model says. Integers and booleans are equal, `exact`, or WRONG.

Here an operator that only passes values on, such as MaxPool, is quantized although it stands alone; in your
model it is quantized if what makes its input is. Some of them HTP runs in fp16 all the same, such as Flatten
and Reshape: their figure is how far fp16 is from the quantized model.

[tests]: ../manifests/upstream/operators/onnx_tests.json

```console
$ qnn-ci test_onnx --suite manifests/suites/onnx_operators.toml -k Softmax/
$ qnn-ci test_onnx --suite manifests/suites/onnx_operators.toml --accept   # then nox -s generate
```
"""


def committed(profile: str) -> OnnxOperators:
    """What the committed baseline gives."""
    return onnx_of(load_baseline(SUITE, profile, "onnx").programs, node_tests())


def onnx_of(programs: Mapping[str, Recorded], chosen: NodeTests) -> OnnxOperators:
    """Programs whose case is no operator are left to the suite."""
    cells: dict[str, dict[str, dict[OnnxPrecision, Cell]]] = defaultdict(lambda: defaultdict(dict))
    measured: dict[str, str] = {}
    for program, recorded in programs.items():
        operator, run, soc = program.split("/")
        for precision in ONNX_PRECISIONS:
            if operator in chosen.operators and precision == run:
                cells[operator][soc][precision] = cell_of(recorded)
                measured[soc] = f"onnxruntime-qnn, QNN {recorded.build_id}"
    return OnnxOperators.model_validate(
        {"opset": chosen.opset, "measured": measured, "cells": cells, "left_out": chosen.left_out}
    )


def cell_of(recorded: Recorded) -> Cell:
    figures = recorded.accuracy
    to_float, prefix = figures.get("sqnr_db"), against_nearest(figures)
    # Integers are equal, or they are wrong.
    figure = figures.get(f"{prefix}sqnr_db", EXACT if figures.get(f"{prefix}agreement") == 1 else None)
    result: Result = "float" if recorded.in_float else "whole"
    if recorded.failed:
        result = recorded.failed
    elif recorded.refused:
        result = "part" if recorded.taken else "cpu"
    elif computed_otherwise(figures):
        result = "wrong"
    elif prefix and to_float is not None and to_float < LEAST_DB:
        result = "lost"
    return Cell(
        result=result,
        sqnr_db=_shown(figure),
        float_db=_shown(to_float) if result == "lost" else None,
        equal_to_float=figures.get("agreement", 1.0) if result != "wrong" else 1.0,
        cpu=recorded.refused,
    )


def _shown(figure: float | None) -> float | None:
    return None if figure is None else round(min(figure, EXACT), 1)


def markdown(onnx: OnnxOperators) -> Iterator[str]:
    """The section of docs/operators.md."""
    yield ""
    yield HEAD.format(opset=onnx.opset, chips=" and ".join(onnx.measured), least=LEAST_DB)
    for soc, versions in onnx.measured.items():
        count = sum(soc in chips for chips in onnx.cells.values())
        yield f"{soc}: {count} operators, measured with {versions}. Cells by result:"
        yield from (
            "",
            f"| result | {' | '.join(ONNX_PRECISIONS)} |",
            f"| --- |{' ---: |' * len(ONNX_PRECISIONS)}",
        )
        for result, (word, _) in MEANINGS.items():
            counts = [
                sum(
                    chips[soc][name].result == result
                    for chips in onnx.cells.values()
                    if name in chips.get(soc, {})
                )
                for name in ONNX_PRECISIONS
            ]
            if any(counts):
                yield f"| {word} | {' | '.join(map(str, counts))} |"
        yield from (
            "",
            f"| operator | {' | '.join(ONNX_PRECISIONS)} |",
            f"| --- |{' --- |' * len(ONNX_PRECISIONS)}",
        )
        for operator, chips in onnx.cells.items():
            if row := chips.get(soc):
                yield f"| {operator} | {' | '.join(str(row.get(name, '')) for name in ONNX_PRECISIONS)} |"
        yield ""
    yield "Not measured:"
    yield ""
    reasons: dict[str, list[str]] = defaultdict(list)
    for operator, reason in onnx.left_out.items():
        reasons[reason].append(operator)
    yield from (f"- {reason}: {', '.join(names)}" for reason, names in sorted(reasons.items()))
