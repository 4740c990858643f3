"""Write, beside a program's expected outputs, the values that outputs of indices chose among."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch.fx import GraphModule

from ci.explain.index_operators import IndexChoice, choices_of
from ci.explain.torch_graph import TorchGraph
from ci.lanes.executorch import CHOSEN
from ci.lanes.executorch.export import ChipModel
from ci.lanes.executorch.quantization import ComputedModel, save_raw
from ci.models.inputs import Array
from ci.models.model_lines import OperatorAt
from ci.suite.tensor_files import ChosenAmong, Inferences

INTEGERS = ("int64", "int32")
"""An output of indices has one of these types."""


@dataclass(frozen=True)
class ExpectedOutputs:
    """Holds the outputs that a program's are compared with, as files of one folder."""

    exact: Inferences
    """The float model computed these."""
    reference: Inferences
    """The quantized model computed these; a float program has none."""
    choosers: tuple[OperatorAt, ...] = ()
    """These operators compute indices that are outputs."""


def save_expected(chip_model: ChipModel, computed: ComputedModel, into: Path) -> ExpectedOutputs:
    """Write the expected outputs, and the values that their indices chose among."""
    exact = save_raw(into, "float", chip_model.float_outputs)
    reference = save_raw(into, "quantized", computed.reference) if chip_model.run.quantizes else ()
    if all(output.dtype not in INTEGERS for output in exact[0]):
        return ExpectedOutputs(exact, reference)
    samples = chip_model.compared
    floats = TorchGraph(chip_model.exported.program(chip_model.sample).module(), samples)
    quantized = None
    if reference and isinstance(computed.module, GraphModule):
        quantized = TorchGraph(computed.module, samples)
    choosers = []
    for choice in choices_of(floats, quantized):
        # Indices into integers are compared as they are.
        if choice.exact[0].dtype.kind != "f":
            continue
        choosers.append(floats.operator_at(choice.operator))
        exact = _add_choice(exact, choice, choice.exact, into, "float")
        if reference:
            reference = _add_choice(reference, choice, choice.quantized, into, "quantized")
    return ExpectedOutputs(exact, reference, tuple(choosers))


def _add_choice(
    inferences: Inferences, choice: IndexChoice, values: Sequence[Array], into: Path, kind: str
) -> Inferences:
    """Write the values, an array for each inference, and name their files at the output that chose among
    them."""
    rows = []
    for number, (outputs, array) in enumerate(zip(inferences, values, strict=True)):
        path = into / f"{kind}_{number}_{choice.output}{CHOSEN}"
        array.tofile(path)
        among = ChosenAmong(path.name, "float32", array.shape, choice.dim, choice.noise)
        row = list(outputs)
        row[choice.output] = replace(row[choice.output], choice=among)
        rows.append(tuple(row))
    return tuple(rows)
