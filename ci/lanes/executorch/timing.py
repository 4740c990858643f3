"""`timing` of a PyTorch model or a .pte, from ExecuTorch's event trace."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.artifacts.bounds import Malformed
from ci.artifacts.simulation import COSTS, TRACE, Simulation, read_simulation
from ci.artifacts.trace import events_of
from ci.engine.closed import closed
from ci.lanes.executorch import PROGRAM
from ci.lanes.executorch.compile import ExecutorchPlan, Lower, compile_programs
from ci.lanes.executorch.running import inputs_of_program, write_raw
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.lanes.executorch.user_program import plan_of_model, program_of, require_done
from ci.pipeline.installed import ready_environment
from ci.pipeline.options import OneModel
from ci.pipeline.profile import NODE, PROCESSES, RUNS, OnCpu, ProgramProfile, costs_of, located, merged
from ci.pipeline.runner import Runner, call_runner, ready_runner
from ci.pipeline.simulated import SimulatedProfile, simulated_costs
from ci.pipeline.steps import Ask, run_step
from provisioning.base.command_line import Parser
from provisioning.base.commands import leave_out
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.progress import at_work

CYCLES = " (cycles)"
DETAILED = 2
"""The profile level with cycles of each operator. It is set at run time, however the program was compiled."""
NATIVE_CALL = "native_call_"
ADDED, THE_MODEL = "(added by the compiler)", "(the model itself)"


def profiled(
    model: OneModel, files: Sequence[str], _source: Path | None = None
) -> tuple[dict[str, str], ProgramProfile]:
    """What was profiled, and its figures. `files` are inputs of a .pte."""
    path, selection, timeout = Parser.user_folder() / model.typed, model.selection, model.work.timeout
    wanted = None if path.suffix == ".pte" else program_of(model)
    _require_fitting(model, path, files)
    runner = ready_runner(os.environ, selection.reports)
    qnn_environment = ready_environment(selection, os.environ)
    about, facts = dict[str, str](), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="qnn-ci-profile-") as scratch:
        folder = Path(scratch)
        if wanted is None:
            program, inputs = path, list(write_raw(inputs_of_program(path, files), folder))
        else:
            plan = plan_of_model(model, "timing", [wanted])
            result = require_done(wanted, plan, compile_programs(plan))
            assert result.folder is not None
            program, facts = result.folder / PROGRAM, dict(result.facts)
            inputs = [result.folder / row["file"] for row in facts["inputs"][0]]
            about = {"precision": wanted.run.precision, "soc": selection.soc}
        profiler = Profiler(runner, closed(qnn_environment.merged(os.environ)), timeout)
        return about, profiler.measured(program, inputs, facts, folder)


@dataclass(frozen=True)
class Simulate(Lower):
    """QNN's simulation of the program's chip, as the files that its compiler writes while lowering."""

    kind = "simulation"

    def work(self, program: ExecutorchProgram, ask: Ask) -> Mapping[str, Any]:
        return ask(**program.order, simulate=True)


def simulations(plan: ExecutorchPlan) -> dict[str, Simulation]:
    """By program; each is a compile of its own."""
    results, found = run_step(Simulate(plan), plan.programs), {}
    for program in plan.programs:
        folder = require_done(program, plan, results).folder
        assert folder is not None
        found[program.name] = read_simulation(folder / TRACE, folder / COSTS)
    return found


def simulated_profile(model: OneModel) -> SimulatedProfile:
    """What QNN's simulator says of the chip. One run on the emulator gives the names of operators."""
    if model.typed.endswith(".pte"):
        message = f"--simulate: {model.typed} is compiled already"
        raise UsageError(message, fix="name the model before compilation")
    program = program_of(model)
    plan = plan_of_model(model, "timing", [program])
    simulation = simulations(plan)[program.name]
    compiled = require_done(program, plan, compile_programs(plan))
    assert compiled.folder is not None
    inputs = [compiled.folder / row["file"] for row in compiled.facts["inputs"][0]]
    runner = ready_runner(os.environ, model.selection.reports)
    environment = closed(ready_environment(model.selection, os.environ).merged(os.environ))
    profiler = Profiler(runner, environment, model.work.timeout)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-profile-") as scratch:
        listed = runner.write_inputs(Path(scratch, "inputs.txt"), [inputs])
        cycles, _, _ = profiler.costs(compiled.folder / PROGRAM, listed, Path(scratch, "events.etdp"))
    names = {int(match["number"]): match["name"] for name in cycles if (match := NODE.fullmatch(name))}
    return simulated_costs(simulation, plan.basis.build_id, names, _places(compiled.facts), ADDED)


def _places(facts: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """By the name of a node, where its author wrote it."""
    return {
        name: {"line": node["line"] or ADDED, "module": node["module"] or THE_MODEL, "kind": node["operator"]}
        for name, node in facts.get("nodes", {}).items()
    }


def _require_fitting(model: OneModel, path: Path, files: Sequence[str]) -> None:
    """Before anything is built."""
    if path.suffix != ".pte":
        if files:
            message = "--input is for a .pte or an .onnx; the model here brings its own inputs"
            raise UsageError(message, fix=leave_out("--input", ", or give samples with --calibrate"))
        return
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file", fix="name a .pte that is there")
    for flag, value in (("--precision", model.precision), ("--calibrate", model.calibrate)):
        if value:
            raise UsageError(f"{flag}: {model.typed} is compiled already", fix=leave_out(flag))


@dataclass(frozen=True)
class Profiler:
    runner: Runner
    environment: Mapping[str, str]
    timeout: float

    def measured(
        self, program: Path, inputs: Sequence[Path], facts: Mapping[str, Any], folder: Path
    ) -> ProgramProfile:
        """The least of RUNS inferences in each of PROCESSES processes; `facts` have the source lines."""
        listed = self.runner.write_inputs(folder / "inputs.txt", [inputs])
        profiles, calls, whole = [], list[list[float]](), list[float]()
        for number in range(PROCESSES):
            trace = folder / f"{number}.etdp"
            with at_work(f"profiling {program.name}, process {number + 1} of {PROCESSES}"):
                more = ("--iteration", str(RUNS))
                found = self.costs(program, listed, trace, *more)
            cycles, native, total = found
            profiles.append(costs_of(cycles))
            calls.append([least for _, least in native])
            names = [name for name, _ in native]
            whole.append(total)
        places = _places(facts)
        costs = located(merged(profiles), places, ADDED) if places else merged(profiles)
        least = [min(layer) for layer in zip(*calls, strict=True)]
        on_cpu = facts.get("left", ())
        lines = (
            [operator["source"] for operator in on_cpu] if len(on_cpu) == len(names) else [""] * len(names)
        )
        inference = min(whole) or 1.0
        rows = zip(names, least, lines, strict=True)
        cpu = [OnCpu(name, time / 1e6, time / inference, line) for name, time, line in rows]
        return ProgramProfile(costs, sorted(cpu, key=lambda operator: -operator.milliseconds))

    def costs(
        self, program: Path, listed: Path, trace: Path, *more: str
    ) -> tuple[dict[str, list[int]], list[tuple[str, float]], float]:
        """Cycles of every delegated part; in nanoseconds the CPU's operators, and the whole inference."""
        environment = {**self.environment, "OMP_NUM_THREADS": "1"}
        flags = ("--profile_level", str(DETAILED), *more)
        command = self.runner.command(program, listed, trace.with_suffix(""), *flags, trace=trace)
        call_runner(command, program, trace.with_suffix(".log"), environment, self.timeout)
        cycles: dict[str, list[int]] = defaultdict(list)
        native: list[tuple[str, float]] = []
        whole = 0.0
        try:
            events = events_of(trace)
        except Malformed as error:
            raise CheckFailed(f"{trace}: {error}", fix="run it again") from error
        for event in events:
            if event.delegated and event.name.endswith(CYCLES):
                cycles[event.name] += event.took
            elif event.name.startswith(NATIVE_CALL):
                native.append((event.name.removeprefix(NATIVE_CALL), float(min(event.took))))
            elif event.name == "Method::execute":
                whole = float(min(event.took))
        return cycles, native, whole
