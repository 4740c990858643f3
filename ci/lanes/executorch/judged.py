"""The samples of a PyTorch model's program, and what it gave on the emulator, in the form of all lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.lanes.executorch import PROGRAM
from ci.lanes.executorch.orders import ChipProgram
from ci.lanes.executorch.run_worker import OUTPUTS
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.models.inputs import Array, Sample
from ci.suite.judged_samples import JudgedSamples, SampleFacts, digest_of_files
from ci.suite.model_outputs import ChosenValues, ModelOutputs
from ci.suite.tensor_files import Inferences, TensorFile, load_tensor, output_file


def samples_of(
    program: ExecutorchProgram, compiled: ChipProgram, folder: Path, emulation: Path, build_id: str
) -> JudgedSamples:
    """Read the samples. `folder` has the compiled program with its inputs and expected outputs, `emulation`
    has its outputs on the emulator. A .pte's inputs and outputs have numbers and no names."""
    return JudgedSamples(
        facts=SampleFacts(
            program=digest_of_files([folder / PROGRAM]),
            soc=program.soc,
            build_id=build_id,
            kind=program.run.kind,
            non_finite=program.case.non_finite,
        ),
        inputs=[_sample(folder, row) for row in compiled.inputs],
        exact=_outputs(folder, compiled.expected),
        reference=_outputs(folder, compiled.reference),
        emulated=list(_emulated(emulation / OUTPUTS, compiled.expected)),
    )


def _sample(folder: Path, tensors: Sequence[TensorFile]) -> Sample:
    return {str(index): load_tensor(folder / tensor.file, tensor) for index, tensor in enumerate(tensors)}


def _outputs(folder: Path, inferences: Inferences) -> ModelOutputs:
    values: dict[str, list[Array]] = {}
    chosen: dict[str, ChosenValues] = {}
    for row in inferences:
        for index, tensor in enumerate(row):
            if choice := tensor.choice:
                values.setdefault(str(index), []).append(load_tensor(folder / choice.file, choice))
                chosen[str(index)] = ChosenValues(values[str(index)], choice.dim, choice.noise)
    return ModelOutputs([_sample(folder, row) for row in inferences], chosen)


def _emulated(folder: Path, expected: Inferences) -> Iterator[Sample]:
    for number, row in enumerate(expected):
        yield {
            str(index): load_tensor(folder / output_file(number, index), tensor)
            for index, tensor in enumerate(row)
        }
