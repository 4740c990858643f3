"""The operators of ONNX's opset in the operator table and on its pages, from the baseline of their suite."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ci.operators.onnx_tests import SUITE, NodeTests, node_tests
from ci.operators.table import DRAWS, EXACT, MEANINGS, Cell, OnnxOperators, Result
from ci.pipeline.accuracy import against_nearest, computed_otherwise
from ci.pipeline.baseline import Recorded, load_baseline
from ci.pipeline.precision import ONNX_PRECISIONS, OnnxPrecision
from ci.pipeline.slices import LEAST_DB

HEAD = """\
## Operators of ONNX, through ONNX Runtime

The operators of ONNX's opset {opset}, compiled by ONNX Runtime's QNN provider for {chips} alone. Each is
one case: a node test of the package onnx ([which one][tests]). Other ranges and shapes are not tried, as they
are above. Axes, shapes and weights are constants of the model. It runs with {draws} draws: the test's own
data, and others between its smallest and largest value. The figure is the median of their signal-to-noise
ratios, and in parentheses the least and the greatest, against the quantized model on the CPU; in fp16 against
the float model. It is compiled once, and other scales can give another figure: a Softmax at 16a8w gives 56 to
79 dB. LOST stands where quantizing
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
                measured[soc] = measured_with(recorded.build_id)
    return OnnxOperators.model_validate(
        {"opset": chosen.opset, "measured": measured, "cells": cells, "left_out": chosen.left_out}
    )


def measured_with(build_id: str) -> str:
    """By QNN's build, which each release of the provider has its own of."""
    return f"onnxruntime-qnn, QNN {build_id}"


def cell_of(recorded: Recorded) -> Cell:
    """What most draws gave; of results that are as frequent, the worst."""
    draws = recorded.draws or (recorded.accuracy,)
    counts = Counter(_result(recorded, figures) for figures in draws)
    result = max(counts, key=lambda name: (counts[name], [*MEANINGS].index(name)))
    alike = [figures for figures in draws if _result(recorded, figures) == result]
    against = [figure for figures in draws if (figure := _against_nearest(figures)) is not None]
    to_float = [figures["sqnr_db"] for figures in alike if "sqnr_db" in figures]
    return Cell(
        result=result,
        sqnr_db=_median(against),
        range_db=(_shown(min(against)), _shown(max(against))) if recorded.draws and against else None,
        float_db=_median(to_float) if result == "lost" else None,
        draws=counts if len(counts) > 1 else {},
        equal_to_float=recorded.accuracy.get("agreement", 1.0) if result != "wrong" else 1.0,
        cpu=recorded.refused,
    )


def _result(recorded: Recorded, figures: Mapping[str, float]) -> Result:
    """Of a draw with these figures."""
    if recorded.failed:
        return recorded.failed
    if recorded.refused:
        return "part" if recorded.taken else "cpu"
    if computed_otherwise(figures):
        return "wrong"
    if against_nearest(figures) and figures.get("sqnr_db", LEAST_DB) < LEAST_DB:
        return "lost"
    return "float" if recorded.in_float else "whole"


def _against_nearest(figures: Mapping[str, float]) -> float | None:
    """Integers are equal, or there is no figure."""
    prefix = against_nearest(figures)
    return figures.get(f"{prefix}sqnr_db", EXACT if figures.get(f"{prefix}agreement") == 1 else None)


def _median(figures: Sequence[float]) -> float | None:
    return _shown(statistics.median(figures)) if figures else None


def _shown(figure: float) -> float:
    return round(min(figure, EXACT), 1)


def markdown(onnx: OnnxOperators) -> Iterator[str]:
    """The section of docs/operators.md."""
    yield ""
    yield HEAD.format(opset=onnx.opset, chips=" and ".join(onnx.measured), least=LEAST_DB, draws=DRAWS)
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
