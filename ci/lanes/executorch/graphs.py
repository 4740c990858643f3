"""In the worker that lowers: a program's model as a Graph, parts of it on the emulator, and what is asked."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from executorch.backends.qualcomm.utils.utils import to_edge_transform_and_lower_to_qnn

from ci.child import doing
from ci.explain.divergence import Divergence
from ci.explain.divergence_report import keep_partial
from ci.explain.graph import FLOAT_MODEL, QUANTIZED_MODEL
from ci.explain.rewriting import Need
from ci.explain.torch_graph import TorchGraph
from ci.explain.torch_repair import RepairedModule
from ci.lanes.executorch import REWRITTEN, SAMPLES
from ci.lanes.executorch.export import exported_case
from ci.lanes.executorch.lower import Patterns, compiler_spec, prepared_model, save_raw
from ci.lanes.executorch.suite import ExecutorchRun, parse_request
from ci.models.arrays import Array
from ci.models.factory import copied, is_quantized
from ci.models.inputs import as_files
from ci.models.user_model import BadFactory
from ci.operators.faults import effect_db, faults_in
from ci.operators.partition.parts import restore_builtins
from ci.runner import Runner
from provisioning.base.files import empty_folder
from provisioning.known_faults import Product


def graph_of(order: dict[str, Any]) -> TorchGraph:
    """The quantized model, or the float one where nothing is quantized, and the samples that are compared."""
    case, run, soc, place = parse_request(order)
    exported = exported_case(case, place)
    samples, batches, _ = exported.chosen(case, run)
    if run.quantizes:
        arguments = (exported, samples[0], batches, run, case.backend, soc, place)
        module, _ = prepared_model(*arguments).quantized()
        return TorchGraph(module, samples, QUANTIZED_MODEL)
    return TorchGraph(exported.program(samples[0]).module(), samples, FLOAT_MODEL)


class EmulatedTrial:
    """Compiles a graph as a run says, and runs it."""

    def __init__(
        self, run: ExecutorchRun, soc: str, samples: Sequence[Any], runner: Runner, folder: Path
    ) -> None:
        self.run, self.spec, self.runner, self.folder = run, compiler_spec(soc, run), runner, folder
        files = ((folder / row.file for row in rows) for rows in save_raw(folder, "input", samples))
        self.inputs = runner.write_inputs(folder / "inputs.txt", files)
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
        nodes = Patterns("cpu_nodes", self.run.cpu_nodes)
        operators = Patterns("cpu_operators", self.run.cpu_operators)
        try:
            edge = to_edge_transform_and_lower_to_qnn(
                graph.module,
                copied(graph.samples[0]),
                self.spec,
                skip_node_id_set=nodes,
                skip_node_op_set=operators,
            )
        finally:
            restore_builtins()
        return bytes(edge.to_executorch().buffer)


def diverge(order: dict[str, Any]) -> dict[str, Any]:
    began, folder = time.monotonic(), Path(order["into"])
    _, run, soc, _ = parse_request(order)
    graph = graph_of(order)
    chip = EmulatedTrial(run, soc, graph.samples, Runner.ordered(order["runner"]), folder)
    suspects = suspects_of(graph, run.precision, soc, order["versions"], order["whole"])
    seconds = order["seconds"] - (time.monotonic() - began)
    keep = partial(keep_partial, folder)
    return Divergence(graph, chip, order["least"], seconds, order["whole"], keep, suspects).search()


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


def script(order: dict[str, Any]) -> dict[str, Any]:
    """One operator of the model, alone."""
    _, run, soc, _ = parse_request(order)
    place = order["operator"], order["sample"], order["before"]
    imports, body = graph_of(order).script(*place, soc, halves=run.precision.startswith("fp16"))
    return {"imports": imports, "body": body}


def rewritten(order: dict[str, Any]) -> dict[str, Any]:
    """Write the model with every rewrite that is needed, matches and is proved, and samples for it."""
    case, run, _, place = parse_request(order)
    exported = exported_case(case, place)
    loaded = exported.loaded
    if is_quantized(loaded.model):
        message = "the model is already quantized, but rewrites need a float model"
        raise BadFactory(message, "name the float model")
    compared, calibrating, used = exported.chosen(case, run)
    if not calibrating and not used.given:
        # A quarter of the files is compared: of all that are drawn, as many as here.
        calibrating = loaded.drawn_to_calibrate(3 * len(compared))
    repaired, into = RepairedModule(loaded.model, compared), Path(order["into"])
    repaired.apply([Need.read(need) for need in order["needs"]])
    if repaired.rewritten:
        (into / SAMPLES).mkdir(parents=True)
        torch.export.save(repaired.exported(), into / REWRITTEN)
        for number, sample in enumerate(as_files(compared, calibrating)):
            torch.save(repaired.fed(sample), into / SAMPLES / f"{number:04}.pt")
    return {"changes": [asdict(change) for change in repaired.changes], "compared": len(compared)}
