"""Show what a program chooses inside, and compare it with models that choose the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ci.explain.inner_choices import Choosing, InnerChoice, flips_of, same_choices
from ci.explain.torch_graph import TorchGraph
from ci.lanes.executorch.emulated_trial import EmulatedTrial, graph_of
from ci.lanes.executorch.export import ChipModel
from ci.lanes.executorch.orders import ChoicesRequest, JudgedChoices, SecondComparison
from ci.suite.accuracy import Pair, compare_with_slices, each_sample_db
from ci.suite.runner import Runner
from ci.suite.tensor_files import Inferences, read_pairs


def judge_choices(chip_model: ChipModel, request: ChoicesRequest) -> JudgedChoices:
    """Find how often the program chooses otherwise than the float model. If rounding explains it, compare the
    program with models that choose as it does."""
    exported = chip_model.exported.program(chip_model.sample).module()
    floats = TorchGraph(exported, chip_model.compared)
    compiled = graph_of(chip_model) if chip_model.run.quantizes else floats
    pairs = same_choices(floats, compiled)
    shown = _choices_of_program(chip_model, compiled, [choice for _, choice in pairs], request)
    exact = Choosing(
        floats,
        [choice for choice, _ in pairs],
        {choice.node: shown.chosen[other.node] for choice, other in pairs},
    )
    quantized = shown if chip_model.run.quantizes else None
    flips = tuple(flips_of(exact, quantized))
    if any(row.unexplained for row in flips):
        return JudgedChoices(flips, None)
    return JudgedChoices(flips, _compare(request, exact, quantized))


def _choices_of_program(
    chip_model: ChipModel, graph: TorchGraph, choices: list[InnerChoice], request: ChoicesRequest
) -> Choosing:
    """Return what a program chooses that also returns its choices. Where its rounding differs from that of
    the judged program, the outputs show it."""
    shown = graph.showing([choice.node for choice in choices])
    rows = EmulatedTrial(chip_model, Runner.ordered(request.runner), request.into)(shown, shown.exact)
    first = len(rows[0]) - len(choices)
    chosen = {}
    for place, choice in enumerate(choices, first):
        chosen[choice.node] = [row[place] for row in rows]
    return Choosing(graph, choices, chosen)


def _compare(request: ChoicesRequest, exact: Choosing, quantized: Choosing | None) -> SecondComparison:
    def pairs(model: Choosing | None, inferences: Inferences, *, choices: bool = True) -> Iterator[Pair]:
        if model is not None:
            outputs, compiled = Path(request.outputs.path), Path(request.compiled.path)
            expected = model.graph.outputs(model.chosen)
            yield from read_pairs(outputs, compiled, inferences, choices=choices, expected=expected)

    files = request.compared
    against = pairs(exact, files.expected), pairs(quantized, files.reference)
    figures, slices = compare_with_slices(*against, non_finite=files.non_finite)
    each_db = each_sample_db(pairs(exact, files.expected, choices=False), len(files.inputs))
    return SecondComparison(figures, tuple(slices), tuple(each_db))
