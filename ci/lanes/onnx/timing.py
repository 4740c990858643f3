"""`timing` of an .onnx, or of what it was compiled to."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.artifacts.simulation import COSTS, TRACE, read_simulation
from ci.engine.progress import Line, failed
from ci.engine.work import Result
from ci.lanes.onnx.context import read_context, soc_of
from ci.lanes.onnx.events import (
    NO_LINE,
    SourcePlace,
    costs,
    cpu_times,
    names_of_operators,
    places_of,
    with_lines,
)
from ci.lanes.onnx.graph import is_context, load_graph, source_digest
from ci.lanes.onnx.options import Settings, parse_assignments, settings_of
from ci.lanes.onnx.orders import require_file, say, search_path, step
from ci.lanes.onnx.running import asked
from ci.lanes.onnx.suite import OnnxProgram, command_for_one
from ci.lanes.onnx.user_program import (
    CONTEXT,
    SAMPLES,
    OneModelStep,
    mixed,
    plan_of_model,
    prepared,
    program_of,
)
from ci.pipeline.models.arrays import Sample, saved
from ci.pipeline.models.inputs import drawn, read_inputs
from ci.pipeline.options import OneModel
from ci.pipeline.profile import PROCESSES, OnCpu, ProgramProfile, merged
from ci.pipeline.simulated import SimulatedProfile, simulated_costs
from ci.pipeline.steps import Ask, require_done, run_step
from provisioning.base.commands import leave_out
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.manifest import soc_named


def profiled(
    model: OneModel, files: Sequence[str], source: Path | None
) -> tuple[dict[str, str], ProgramProfile]:
    """What was profiled, and its figures. `files` are its inputs; `source` is what a compiled .onnx was."""
    path = search_path() / model.typed
    require_file(path)
    graph = load_graph(path)
    if is_context(graph):
        return _of_context(model, path, files, source)
    if source:
        raise UsageError(f"--source: {model.typed} has its lines itself", fix=leave_out("--source"))
    program = program_of(model)
    folder = require_done(mixed(model, program)).folder
    assert folder is not None
    context = folder / CONTEXT
    if not context.is_file():
        why = command_for_one("audit", program.case, program.run, program.soc, program.search_path)
        raise CheckFailed(f"{model.typed}: no operator of it runs on HTP", fix=f"{why} says why")
    inputs = read_inputs(files, read_context(context).signature) if files else saved(folder / SAMPLES)[0]
    settings, places = program.run.settings(program.soc), places_of(graph)
    about = {"precision": program.run.kind, "soc": program.soc}
    return about, measured(context, inputs, program.soc, settings, places, model.work.timeout)


@dataclass(frozen=True, kw_only=True)
class SimulateOnnx(OneModelStep):
    """QNN's simulation of the program's chip, as the files that its compiler writes."""

    kind = "onnx-simulate"
    title = "simulations"

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        common, _ = prepared(program, ask, ask.scratch / program.name, drawn=True, verify=False)
        return ask(do="simulate", **common)

    def line(self, program: OnnxProgram, result: Result) -> Line:
        if result.failure:
            return failed(result.failure.kind)
        return Line("passed", f"{result.facts['us']:,.0f} us simulated")


def simulated_profile(model: OneModel) -> SimulatedProfile:
    """What QNN's simulator says of the chip. One run on the emulator gives the names of operators."""
    path, program = search_path() / model.typed, program_of(model)
    require_file(path)
    graph = load_graph(path)
    if is_context(graph):
        message = f"--simulate: {model.typed} is compiled already"
        raise UsageError(message, fix="name the model before compilation")
    step = SimulateOnnx(plan_of_model(model, program))
    result = require_done(run_step(step, step.plan.programs[:1])[step.plan.programs[0].name])
    assert result.folder is not None
    found = read_simulation(result.folder / TRACE, result.folder / COSTS)
    folder = require_done(mixed(model, program)).folder
    assert folder is not None
    with tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary:
        events, settings = Path(temporary) / "events.csv", program.run.settings(program.soc)
        inputs = saved(folder / SAMPLES)[0]
        _run(folder / CONTEXT, inputs, program.soc, settings, events, model.work.timeout)
        names = names_of_operators(events)
    kinds = {node.name: node.op_type for node in graph.graph.node}
    known = places_of(graph).items()
    places = {name: {"line": at.source, "module": at.module, "kind": kinds[name]} for name, at in known}
    return simulated_costs(found, str(result.facts["build_id"]), names, places, NO_LINE)


def _of_context(
    model: OneModel, path: Path, files: Sequence[str], source: Path | None
) -> tuple[dict[str, str], ProgramProfile]:
    for flag, value in {
        "--precision": model.precision,
        "--calibrate": model.calibrate,
        "--dimension": model.dimensions,
        "--per-channel": model.per_channel,
    }.items():
        if value:
            raise UsageError(f"{flag}: {model.typed} is compiled already", fix=leave_out(flag))
    context = read_context(path)
    soc = next(iter(model.selection.named_socs), None) or soc_of(context)
    settings = settings_of(parse_assignments(model.options), soc=soc_named(soc), embed=not context.beside)
    inputs = read_inputs(files, context.signature) if files else drawn(context.signature)
    places: Mapping[str, SourcePlace] = {}
    if source:
        require_file(source)
        if context.record and context.record.source != source_digest(source):
            say(
                f"warning: {source} is not the file that {model.typed} was compiled from, or --dimension"
                " changed it; lines are looked up by the names of nodes"
            )
        places = places_of(load_graph(source))
    return {"soc": soc}, measured(path, inputs, soc, settings, places, model.work.timeout)


def _run(context: Path, inputs: Sample, soc: str, settings: Settings, events: Path, timeout: float) -> None:
    more = {"soc": soc, "settings": settings.as_dict(), "profile": str(events), "cpu": True}
    asked(context, inputs, timeout, do="run", **more)


def measured(
    context: Path,
    inputs: Sample,
    soc: str,
    settings: Settings,
    places: Mapping[str, SourcePlace],
    timeout: float,
) -> ProgramProfile:
    """The least of RUNS inferences in each of PROCESSES processes."""
    profiles, cpu = [], dict[str, OnCpu]()
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary,
        step(f"running it on {soc} in {PROCESSES} processes"),
    ):
        scratch = Path(temporary)
        for number in range(PROCESSES):
            events = scratch / f"{number}.csv"
            _run(context, inputs, soc, settings, events, timeout)
            profiles.append(costs(events))
            for time_ in cpu_times(events.with_suffix(".json"), places):
                known = cpu.setdefault(time_.operator, time_)
                cpu[time_.operator] = min(known, time_, key=lambda row: row.milliseconds)
    merged_costs = merged(profiles)
    return ProgramProfile(
        with_lines(merged_costs, places) if places else merged_costs,
        sorted(cpu.values(), key=lambda operator: -operator.milliseconds),
    )
