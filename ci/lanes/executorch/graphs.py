"""In the worker that lowers: a program's model as a Graph, parts of it on the emulator, and what is asked."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch

from ci.child import doing
from ci.explain.divergence import Divergence
from ci.explain.divergence_report import keep_partial
from ci.explain.divergence_result import DivergenceResult
from ci.explain.graph import FLOAT_MODEL, QUANTIZED_MODEL
from ci.explain.torch_graph import TorchGraph
from ci.explain.torch_repair import RepairedModule
from ci.lanes.executorch import REWRITTEN, SAMPLES
from ci.lanes.executorch.export import ChipModel
from ci.lanes.executorch.lower import Patterns, lowered_module, prepared_model, save_raw
from ci.lanes.executorch.records import (
    DivergenceRequest,
    ModelRewrite,
    OperatorSource,
    RewriteRequest,
    ScriptRequest,
)
from ci.models.arrays import Array
from ci.models.factory import is_quantized
from ci.models.inputs import as_files
from ci.models.user_model import BadFactory
from ci.operators.faults import effect_db, faults_in
from ci.operators.partition.decisions import restore_builtins
from ci.runner import Runner
from provisioning.base.files import empty_folder
from provisioning.known_faults import Product


def graph_of(chip_model: ChipModel) -> TorchGraph:
    """The quantized model, or the float one where nothing is quantized, and the samples that are compared."""
    if chip_model.run.quantizes:
        module, _ = prepared_model(chip_model).quantized()
        return TorchGraph(module, chip_model.compared, QUANTIZED_MODEL)
    exported = chip_model.exported.program(chip_model.sample)
    return TorchGraph(exported.module(), chip_model.compared, FLOAT_MODEL)


class EmulatedTrial:
    """Compiles a graph as a run says, and runs it."""

    def __init__(self, chip_model: ChipModel, runner: Runner, folder: Path) -> None:
        self.chip_model, self.runner, self.folder = chip_model, runner, folder
        rows = save_raw(folder, "input", chip_model.compared)
        self.inputs = runner.write_inputs(
            folder / "inputs.txt", ((folder / tensor.file for tensor in row) for row in rows)
        )
        self.trials = 0

    def outputs(self, graph: Any, expected: Sequence[Sequence[Array]]) -> list[list[Array]]:
        self.trials += 1
        doing(f"cut {self.trials}")
        program = self.folder / "cut.pte"
        program.write_bytes(self._lowered(graph))
        outputs = empty_folder(self.folder / "outputs")
        command = self.runner.command(program, self.inputs, outputs)
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the runner ended with {done.returncode}")
        return [
            [
                numpy.fromfile(outputs / f"output_{number}_{index}.raw", array.dtype).reshape(array.shape)
                for index, array in enumerate(arrays)
            ]
            for number, arrays in enumerate(expected)
        ]

    def _lowered(self, graph: TorchGraph) -> bytes:
        run = self.chip_model.run
        on_cpu = Patterns("cpu_nodes", run.cpu_nodes), Patterns("cpu_operators", run.cpu_operators)
        part = replace(self.chip_model, compared=graph.samples)
        try:
            edge = lowered_module(part, graph.module, *on_cpu)
        finally:
            restore_builtins()
        return bytes(edge.to_executorch().buffer)


def diverge(chip_model: ChipModel, request: DivergenceRequest) -> DivergenceResult:
    began = time.monotonic()
    graph = graph_of(chip_model)
    chip = EmulatedTrial(chip_model, Runner.ordered(request.runner), request.into)
    precision, soc, whole = chip_model.run.precision, chip_model.soc, request.whole
    suspects = suspects_of(graph, precision, soc, request.versions, whole)
    seconds = request.seconds - (time.monotonic() - began)
    keep = partial(keep_partial, request.into)
    return Divergence(graph, chip, request.least, seconds, whole, keep, suspects).search()


def suspects_of(
    graph: TorchGraph, precision: str, soc: str, versions: Mapping[Product, str], whole: float | None
) -> dict[str, list[str]]:
    """The operators that can have a known fault, with these faults: the first of each fault before the second
    ones, and before others what is measured to lose as much as the program does."""
    ranked: list[tuple[tuple[int, float], str]] = []
    times: Counter[str] = Counter()
    faults: dict[str, list[str]] = {}
    for name in graph.operators:
        for met in faults_in(graph.traits(name), precision, soc, versions, seen_db=whole):
            distance = 0.0 if whole is None else abs(effect_db(met.fault) - whole)
            ranked.append(((times[met.fault.id], distance), name))
            times[met.fault.id] += 1
            faults.setdefault(name, []).append(met.fault.id)
    return {name: faults[name] for _, name in sorted(ranked, key=lambda row: row[0])}


def script(chip_model: ChipModel, request: ScriptRequest) -> OperatorSource:
    """One operator of the model, alone."""
    place = request.operator, request.sample, request.before
    halves = chip_model.run.precision.startswith("fp16")
    return OperatorSource(*graph_of(chip_model).script(*place, chip_model.soc, halves=halves))


def rewritten(chip_model: ChipModel, request: RewriteRequest) -> ModelRewrite:
    """Write the model with every rewrite that is needed, matches and is proved, and samples for it."""
    if is_quantized(chip_model.model):
        message = "the model is already quantized, but rewrites need a float model"
        raise BadFactory(message, "name the float model")
    compared, calibrating = chip_model.compared, chip_model.calibrating
    if not calibrating and not chip_model.used.given:
        # A quarter of the files is compared: of all that are drawn, as many as here.
        calibrating = chip_model.exported.loaded.drawn_to_calibrate(3 * len(compared))
    repaired, into = RepairedModule(chip_model.model, compared), request.into
    repaired.apply(request.needs)
    if repaired.rewritten:
        (into / SAMPLES).mkdir(parents=True)
        torch.export.save(repaired.exported(), into / REWRITTEN)
        for number, sample in enumerate(as_files(compared, calibrating)):
            torch.save(repaired.fed(sample), into / SAMPLES / f"{number:04}.pt")
    return ModelRewrite(tuple(repaired.changes), len(compared))
