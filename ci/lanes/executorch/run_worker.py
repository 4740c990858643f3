"""The processes here run programs on the emulator and compare their outputs."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ci.lanes.executorch.orders import (
    ComparedOutputs,
    EmulatorRun,
    RunRequest,
)
from ci.suite.runner import Runner, call_runner
from ci.suite.task_metric import MetricFigures, MetricRequest, error_of_metric
from ci.work import Meter, blame, doing, read, reporting, to_json

INPUTS, LOG, OUTPUTS = "input_list.txt", "run.log", "outputs"


def prepare() -> None:
    for name in ("numpy", "ci.suite.lost_parts", "ci.diagnose.logs"):
        importlib.import_module(name)


def _run(order: Mapping[str, object]) -> EmulatorRun:
    from ci.suite.accuracy import Unusable, compare_with_slices, each_sample_db
    from ci.suite.tensor_files import read_pairs

    request, folder = read(RunRequest, order), Path(str(order["into"]))
    of, compiled = request.compared, Path(request.compiled.path)
    outputs = folder / OUTPUTS
    outputs.mkdir()
    files = []
    for inference in of.inputs:
        files.append([compiled / row.file for row in inference])
    runner = Runner.ordered(request.runner)
    inputs = runner.write_inputs(folder / INPUTS, files)
    command = runner.command(Path(request.program.path), inputs, outputs)
    start = time.monotonic()
    doing("run")
    # The runner finds its own libraries; this process needs none of the SDK's.
    error = call_runner(command, folder / LOG, {**os.environ, "OMP_NUM_THREADS": "1"})
    seconds = time.monotonic() - start
    if error:
        return EmulatorRun(rule="run", message=error, seconds=seconds)
    try:
        both = (read_pairs(outputs, compiled, rows) for rows in (of.expected, of.reference))
        figures, slices = compare_with_slices(*both, non_finite=of.non_finite)
        each_db = each_sample_db(read_pairs(outputs, compiled, of.expected, choices=False), len(of.inputs))
    except Unusable as unusable:
        blame(unusable, order)
        return EmulatorRun(rule=unusable.rule, message=str(unusable), seconds=seconds)
    return EmulatorRun(figures, tuple(slices), tuple(each_db), seconds=seconds)


def run_program(order: Mapping[str, object]) -> dict[str, object]:
    meter = Meter()
    return to_json(replace(_run(order), cpu_seconds=meter.read().cpu_seconds))


def _figures(order: Mapping[str, object]) -> dict[str, object]:
    from ci.suite.task_metric import side_by_side
    from ci.suite.tensor_files import read_pairs

    request, outputs = read(MetricRequest, order), read(ComparedOutputs, order)
    os.chdir(request.working_folder)
    float_pairs, quantized_pairs = (
        read_pairs(request.outputs, Path(outputs.compiled.path), rows, choices=False)
        for rows in (outputs.compared.expected, outputs.compared.reference)
    )
    figures = side_by_side(request.function, float_pairs, quantized_pairs, len(outputs.compared.expected))
    return to_json(MetricFigures(figures))


metric_of = reporting(_figures, error_of_metric)
