"""Compare what a program gave with the outputs of the float model and of the quantized model on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ci.explain.index_operators import choices_of, operators_of_indices
from ci.explain.losses import BeyondHalf, beyond_in_words
from ci.explain.onnx_graph import OnnxGraph
from ci.lanes.onnx.model_file import load_graph
from ci.lanes.onnx.orders import Accuracy
from ci.lanes.onnx.searches import graph_of
from ci.lanes.onnx.task_files import ModelFiles
from ci.models.inputs import Sample
from ci.suite.accuracy import Pair, Unusable, compare, compare_with_slices, each_sample_db
from ci.suite.figures import OF_A_DRAW
from ci.suite.findings import BEYOND_FIX, below_usual
from ci.suite.limits import missed_thresholds
from ci.suite.model_outputs import ChosenValues, ModelOutputs
from ci.suite.suite_file import Thresholds
from ci.suite.task_metric import side_by_side
from provisioning.base.errors import CheckFailed

FIXES = {
    "shape": "pad it in the model to a fixed size, so that HTP gives what the CPU gives",
    "not-finite": "try --precision 16a8w",
    "reference-not-finite": "look for divisions and logarithms in the model, or give inputs"
    " that it is made for: --calibrate DIR",
}
"""Maps the rule of outputs that cannot be compared to what may be done."""

NO_PAIRS: list[Pair] = []


@dataclass(frozen=True)
class Comparison:
    """Holds the outputs that a program's are compared with."""

    exact: ModelOutputs
    """The float model gave these."""
    reference: ModelOutputs
    """The quantized model gave these; in float there are none."""
    non_finite: bool = False
    choosers: Sequence[str] = ()
    """These operators compute indices that are outputs, which are compared by the values that they chose."""

    def accuracy(
        self, outputs: Sequence[Sample], kind: str, beyond: Callable[[], Sequence[BeyondHalf]]
    ) -> Accuracy:
        """Return the worst figures and the slices that are lost. If too much is lost, `beyond` is asked for
        operators that leave fp16."""
        if not self.exact.by_sample:
            return Accuracy()
        pairs, reference = self.exact.pairs(outputs), self.reference.pairs(outputs)
        try:
            figures, slices = compare_with_slices(pairs, reference, non_finite=self.non_finite)
        except Unusable as error:
            words = beyond_in_words(beyond())
            message = f"the outputs cannot be compared: {error}"
            if words:
                raise CheckFailed(f"{message}; {words}", fix=BEYOND_FIX) from error
            raise CheckFailed(message, fix=FIXES.get(error.rule, "")) from error
        is_low = missed_thresholds(Thresholds(), figures, kind) or below_usual(kind, figures)
        return Accuracy(figures, tuple(slices), tuple(beyond()) if is_low else ())

    def each_draw(self, outputs: Sequence[Sample]) -> list[dict[str, float]]:
        """Return, for each sample by itself, the figures by which the operator table judges."""
        by_sample = zip_longest(
            self.exact.pairs_by_sample(outputs), self.reference.pairs_by_sample(outputs), fillvalue=NO_PAIRS
        )
        draws = []
        for pairs, reference in by_sample:
            figures = compare(pairs, reference, non_finite=self.non_finite)
            draws.append({name: figure for name, figure in figures.items() if name in OF_A_DRAW})
        return draws

    def each_db(self, outputs: Sequence[Sample]) -> list[float]:
        """Return the SQNR of each sample against the float model."""
        count = len(self.exact.by_sample)
        return each_sample_db(self.exact.plain_pairs(outputs), count) if count else []

    def figures_of_metric(self, metric: str, outputs: Sequence[Sample]) -> dict[str, float]:
        """Return the figures of the user's own metric."""
        pairs, reference = self.exact.plain_pairs(outputs), self.reference.plain_pairs(outputs)
        return side_by_side(metric, pairs, reference, len(self.exact.by_sample))


def comparison_of(files: ModelFiles, samples: Sequence[Sample], *, non_finite: bool) -> Comparison:
    """Return what a program's outputs are compared with: the float model's outputs and, if there are any, the
    quantized model's, both with the values that indices chose among."""
    exact, reference = files.float_outputs(), files.reference()
    # A large model is read with its weights only if it has indices to explain.
    structure = OnnxGraph(load_graph(files.source), ())
    if not samples or not operators_of_indices(structure):
        return Comparison(ModelOutputs(exact), ModelOutputs(reference), non_finite)
    floats = graph_of(files.source, samples)
    quantized = graph_of(files.model, samples) if reference else None
    names = [output.name for output in floats.model.graph.output]
    chosen: dict[str, ChosenValues] = {}
    chosen_by_quantized: dict[str, ChosenValues] = {}
    choosers = []
    for choice in choices_of(floats, quantized):
        name = names[choice.output]
        chosen[name] = ChosenValues(choice.exact, choice.dim, choice.noise)
        chosen_by_quantized[name] = ChosenValues(choice.quantized, choice.dim, choice.noise)
        choosers.append(f"{floats.nodes[choice.operator].kind} ({choice.operator})")
    quantized_outputs = ModelOutputs(reference, chosen_by_quantized)
    return Comparison(ModelOutputs(exact, chosen), quantized_outputs, non_finite, choosers)
