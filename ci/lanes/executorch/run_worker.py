"""What the processes do that run programs on the emulator and compare."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ci.child import Meter, blame, doing, places_of, reporting
from ci.lanes.executorch.orders import (
    ComparedOutputs,
    EmulatorRun,
    RunRequest,
)
from ci.outcome import tail
from ci.plain import as_json, read
from ci.runner import LINE_OF_ERROR, Runner
from ci.suite.accuracy import MetricFigures, MetricRequest, error_of_metric
from ci.trouble import InTrouble, how_it_ended, of_ending

TAIL = 4000
INPUTS, LOG, METRICS, OUTPUTS = "input_list.txt", "run.log", "metrics.json", "outputs"


def prepare() -> None:
    for name in ("numpy", "ci.suite.lost_parts", "ci.diagnose.explain"):
        importlib.import_module(name)


def _measured(order: Mapping[str, object]) -> EmulatorRun:
    """Raises InTrouble."""
    from ci.suite.accuracy import Unusable, compared, each_sample_db, in_files

    request, folder = read(RunRequest, order), Path(str(order["into"]))
    of, compiled = request.compared, Path(request.compiled)
    outputs = folder / OUTPUTS
    outputs.mkdir()
    listed = ((compiled / row.file for row in inference) for inference in of.inputs)
    runner = Runner.ordered(request.runner)
    inputs = runner.write_inputs(folder / INPUTS, listed)
    command = runner.command(Path(request.program), inputs, outputs, figures=folder / METRICS)
    began = time.monotonic()
    doing("run")
    with (folder / LOG).open("wb") as log:
        # The runner finds its own libraries; this process needs none of the SDK's.
        code = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        ).returncode
    seconds = time.monotonic() - began
    if code:
        message = _message(code, folder / LOG)
        if trouble := of_ending("runner", code, message, places_of(order)):
            raise InTrouble(trouble)
        return EmulatorRun(rule="run", message=message, seconds=seconds)
    try:
        both = (in_files(outputs, compiled, rows) for rows in (of.expected, of.reference))
        figures, slices = compared(*both, non_finite=of.non_finite)
        each_db = each_sample_db(in_files(outputs, compiled, of.expected, chosen=False), len(of.inputs))
        times = _times(runner, folder / METRICS)
    except Unusable as error:
        blame(error, order)
        return EmulatorRun(rule=error.rule, message=str(error), seconds=seconds)
    return EmulatorRun(figures, tuple(slices), tuple(each_db), times, seconds=seconds)


def measured(order: Mapping[str, object]) -> dict[str, object]:
    meter = Meter()
    return as_json(replace(_measured(order), cpu_seconds=meter.read().cpu_seconds))


def _figures(order: Mapping[str, object]) -> dict[str, object]:
    from ci.suite.accuracy import in_files, side_by_side

    request, wanted = read(MetricRequest, order), read(ComparedOutputs, order)
    os.chdir(request.working_folder)
    pairs, against = (
        in_files(request.outputs, Path(wanted.compiled), rows, chosen=False)
        for rows in (wanted.expected, wanted.reference)
    )
    figures = side_by_side(request.function, pairs, against, len(wanted.expected))
    return as_json(MetricFigures(figures))


metric_of = reporting(_figures, error_of_metric)


def _message(code: int, log: Path) -> str:
    from ci.diagnose.explain import nearest

    text = tail(log, TAIL)
    # The runner indents the runtime's own message, which says why, below its error.
    errors = re.findall(LINE_OF_ERROR + r"(?:\n {4}.*)?", text, re.MULTILINE | re.IGNORECASE)
    known = nearest(text)
    return (
        f"the runner {how_it_ended(code)}"
        + (": " + ": ".join(map(str.strip, errors[-1].splitlines())) if errors else "")
        + (f". {known}" if known else "")
    )


def _times(runner: Runner, path: Path) -> dict[str, float]:
    from ci.suite.accuracy import Unusable

    try:
        return runner.measured(path)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Unusable("missing", f"the runner wrote no times to {path.name}: {error!r}") from error
