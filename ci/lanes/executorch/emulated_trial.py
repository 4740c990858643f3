"""Compile a changed model of a run as the run's own, and run it on the emulator."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy

from ci.explain.graph import FLOAT_MODEL, QUANTIZED_MODEL
from ci.explain.torch_graph import TorchGraph
from ci.lanes.executorch.export import ChipModel
from ci.lanes.executorch.lower import lowered_module
from ci.lanes.executorch.quantization import Patterns, prepared_model, save_raw
from ci.models.inputs import Array
from ci.operators.partition_parts import restore_builtins
from ci.suite.runner import Runner, call_runner
from ci.work import doing
from provisioning.base.files import empty_folder


def graph_of(chip_model: ChipModel) -> TorchGraph:
    """Return the quantized model, or the float one if nothing is quantized, and the samples that are
    compared."""
    if chip_model.run.quantizes:
        module, _ = prepared_model(chip_model).quantized()
        return TorchGraph(module, chip_model.compared, QUANTIZED_MODEL)
    exported = chip_model.exported.program(chip_model.sample)
    return TorchGraph(exported.module(), chip_model.compared, FLOAT_MODEL)


class EmulatedTrial:
    """Compiles a graph for the run's chip and precision, and runs it."""

    def __init__(self, chip_model: ChipModel, runner: Runner, folder: Path) -> None:
        self.chip_model, self.runner, self.folder = chip_model, runner, folder
        files = []
        for row in save_raw(folder, "input", chip_model.compared):
            files.append([folder / tensor.file for tensor in row])
        self.inputs = runner.write_inputs(folder / "inputs.txt", files)
        self.trials = 0

    def __call__(self, graph: TorchGraph, reference: Sequence[Sequence[Array]]) -> list[list[Array]]:
        self.trials += 1
        doing(f"cut {self.trials}")
        program = self.folder / "cut.pte"
        program.write_bytes(self._lower(graph))
        outputs = empty_folder(self.folder / "outputs")
        command = self.runner.command(program, self.inputs, outputs)
        if error := call_runner(command, self.folder / "run.log", os.environ):
            raise RuntimeError(error)
        rows: list[list[Array]] = []
        for number, arrays in enumerate(reference):
            rows.append([])
            for index, array in enumerate(arrays):
                output = numpy.fromfile(outputs / f"output_{number}_{index}.raw", array.dtype)
                rows[-1].append(output.reshape(array.shape))
        return rows

    def _lower(self, graph: TorchGraph) -> bytes:
        run = self.chip_model.run
        on_cpu = Patterns("cpu_nodes", run.cpu_nodes)
        part = replace(self.chip_model, compared=graph.samples)
        try:
            edge = lowered_module(part, graph.module, on_cpu)
        finally:
            restore_builtins()
        return bytes(edge.to_executorch().buffer)
