"""In the worker: how near a program's outputs are to the float model's and to the quantized one's on the CPU.

Outputs that are indices of ArgMax, ArgMin or TopK are compared with the values that these chose among."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import onnx

from ci.explain.losses import BeyondHalf, beyond_in_words
from ci.explain.onnx_graph import values_of
from ci.lanes.onnx import provider
from ci.lanes.onnx.records import Accuracy
from ci.lanes.onnx.samples import ModelFiles
from ci.models.arrays import Array, Sample
from ci.suite.accuracy import (
    OF_A_DRAW,
    Pair,
    Unusable,
    compare,
    compared,
    each_sample_db,
    missed,
    pair_of_choice,
    side_by_side,
    tie_noise,
)
from ci.suite.findings import BEYOND_FIX, below_usual
from ci.suite.programs import Thresholds
from provisioning.base.errors import CheckFailed

CHOOSERS = {"ArgMax": 0, "ArgMin": 0, "TopK": -1}
"""By operator: its usual axis."""
SAME_VALUES = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
FIXES = {
    "shape": "pad it in the model to a fixed size, so that HTP gives what the CPU gives",
    "not-finite": "try --precision 16a8w",
    "reference-not-finite": "look for divisions and logarithms in the model, or give inputs"
    " that it is made for: --calibrate DIR",
}


@dataclass(frozen=True)
class Choices:
    """By output and inference, what the indices chose among."""

    values: Mapping[str, Sequence[Array]]
    axes: Mapping[str, int]
    noise: Mapping[str, float]


NO_CHOICES = Choices({}, {}, {})


@dataclass(frozen=True)
class Comparison:
    """The outputs that a program's are compared with; those of the quantized model are none in float."""

    expected: Sequence[Sample]
    reference: Sequence[Sample]
    non_finite: bool
    floats: Choices = NO_CHOICES
    quantized: Choices = NO_CHOICES
    choosers: Sequence[str] = ()
    """Operators whose indices are outputs."""

    def near(
        self, outputs: Sequence[Sample], kind: str, beyond: Callable[[], Sequence[BeyondHalf]]
    ) -> Accuracy:
        """The worst figures, the slices that are lost, and, where too much is, what `beyond` gives."""
        if not self.expected:
            return Accuracy()
        pairs = _pairs(self.expected, outputs, self.floats), _pairs(self.reference, outputs, self.quantized)
        try:
            figures, slices = compared(*pairs, non_finite=self.non_finite)
        except Unusable as error:
            words = beyond_in_words(beyond())
            message = "; ".join(filter(None, [f"the outputs cannot be compared: {error}", words]))
            raise CheckFailed(message, fix=BEYOND_FIX if words else FIXES.get(error.rule, "")) from error
        low = missed(Thresholds(), figures, kind) or below_usual(kind, figures)
        return Accuracy(figures, tuple(slices), tuple(beyond()) if low else ())

    def each_draw(self, outputs: Sequence[Sample]) -> list[dict[str, float]]:
        """The figures of each sample by itself that a word of the operator table is made from."""
        floats = _pairs_by_sample(self.expected, outputs, self.floats)
        quantized = _pairs_by_sample(self.reference, outputs, self.quantized)
        both = zip_longest(floats, quantized, fillvalue=())
        every = (compare(*pairs, non_finite=self.non_finite) for pairs in both)
        return [{name: figure for name, figure in row.items() if name in OF_A_DRAW} for row in every]

    def each_db(self, outputs: Sequence[Sample]) -> list[float]:
        count = len(self.expected)
        return each_sample_db(_pairs(self.expected, outputs, NO_CHOICES), count) if count else []

    def measured_by(self, metric: str, outputs: Sequence[Sample]) -> dict[str, float]:
        """The figures of the user's own metric."""
        pairs, against = (_pairs(wanted, outputs, NO_CHOICES) for wanted in (self.expected, self.reference))
        return side_by_side(metric, pairs, against, len(self.expected))


def comparison_of(
    files: ModelFiles,
    samples: Sequence[Sample],
    expected: Sequence[Sample],
    reference: Sequence[Sample],
    into: Path,
    *,
    non_finite: bool,
) -> Comparison:
    """With what indices choose among, in the float model and in the quantized one if it has outputs."""
    floats = _choosers(files.source)
    others = _choosers(files.model) if reference else floats
    names = [name for name in floats if name in others]
    if not names or not samples:
        return Comparison(expected, reference, non_finite)
    wanted = _chosen_among(files.source, floats, names, samples, into)
    found = _chosen_among(files.model, others, names, samples, into) if reference else {}
    axes = {name: _axis(floats[name]) % wanted[name][0].ndim for name in names}
    noise = {name: tie_noise(wanted[name], found.get(name, ()), axes[name]) for name in names}
    choosers = [f"{floats[name].op_type} ({floats[name].name})" for name in names]
    both = Choices(wanted, axes, noise), Choices(found, axes, noise)
    return Comparison(expected, reference, non_finite, *both, choosers)


def _choosers(path: Path) -> dict[str, onnx.NodeProto]:
    """The operators that give indices as outputs, by output."""
    model = onnx.load(str(path), load_external_data=False)
    maker = {name: node for node in model.graph.node for name in node.output}
    found = {}
    for output in model.graph.output:
        node, tensor = maker.get(output.name), output.name
        while node is not None and node.op_type in SAME_VALUES:
            tensor = node.input[0]
            node = maker.get(tensor)
        # TopK's first output are the values.
        if node is not None and node.op_type in CHOOSERS and tensor == node.output[-1]:
            found[output.name] = node
    return found


def _axis(node: onnx.NodeProto) -> int:
    return next((int(row.i) for row in node.attribute if row.name == "axis"), CHOOSERS[node.op_type])


def _chosen_among(
    path: Path,
    choosers: Mapping[str, onnx.NodeProto],
    names: Sequence[str],
    samples: Sequence[Sample],
    into: Path,
) -> dict[str, list[Array]]:
    operands = {name: str(choosers[name].input[0]) for name in names}
    rows = values_of(onnx.load(str(path)), samples, into, provider, operands.values())
    return {name: [row[tensor] for row in rows] for name, tensor in operands.items()}


def _pairs(expected: Sequence[Sample], outputs: Sequence[Sample], among: Choices) -> Iterator[Pair]:
    return chain.from_iterable(_pairs_by_sample(expected, outputs, among))


def _pairs_by_sample(
    expected: Sequence[Sample], outputs: Sequence[Sample], among: Choices
) -> Iterator[Iterator[Pair]]:
    """None if nothing is expected."""
    both = zip(expected, outputs, strict=True) if expected else ()
    return (_pairs_of(number, wanted, found, among) for number, (wanted, found) in enumerate(both))


def _pairs_of(number: int, wanted: Sample, found: Sample, among: Choices) -> Iterator[Pair]:
    for name in wanted:
        title, arrays = f"output {name} of sample {number}", (wanted[name], found[name])
        if name in among.values and arrays[0].shape == arrays[1].shape:
            values, dim, noise = among.values[name][number], among.axes[name], among.noise[name]
            yield pair_of_choice(title, *arrays, name, values, dim=dim, noise=noise)
        else:
            yield Pair(title, *arrays, name)
