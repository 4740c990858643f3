"""MODEL of a command line as a program like those of a suite, and the steps of its commands."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.engine.jobs import Job
from ci.engine.memo import Memo
from ci.engine.progress import Line, failed
from ci.engine.work import Failure, Result, empty_folder, line_of
from ci.engine.workers.parent import WorkerDied, WorkerSpec
from ci.lanes.onnx.compile import (
    SECONDS_PREPARE,
    WORKER_MEMORY,
    OnnxPlan,
    cwd,
    environment,
    explained_end,
    key,
    plan_of,
    require_installed,
    setup_of,
)
from ci.lanes.onnx.options import parse_assignments, settings_of
from ci.lanes.onnx.orders import dimensions_of, precision_of, say, search_path
from ci.lanes.onnx.samples import MOST
from ci.lanes.onnx.suite import OnnxCase, OnnxProgram, OnnxRun
from ci.pipeline.models.own_packages import OwnPackages
from ci.pipeline.models.user_model import user_model
from ci.pipeline.options import OneModel
from ci.pipeline.steps import Ask, Asker, Step, run_step
from ci.pipeline.suite import NO_SUITE
from provisioning.base.findings import Metric
from provisioning.manifest import soc_named

SAMPLES, CONTEXT = "samples.npz", "model_ctx.onnx"


def program_of(model: OneModel, *, with_options: bool = True) -> OnnxProgram:
    """The program for the first chip, with or without the command line's --option."""
    options, selection = parse_assignments(model.options) if with_options else {}, model.selection
    for chip in selection.socs:
        # Before the suite's own check, whose message would name a field.
        settings_of(options, soc=soc_named(chip), embed=True)
    named = user_model(model.typed, search_path())
    assert named.file is not None
    dimensions = dimensions_of(model.dimensions)
    require_installed()
    run = OnnxRun(
        precision=precision_of(named.file, model.precision),
        socs=(selection.soc,),
        per_channel=model.per_channel,
        calibration=MOST,
        options=dict(options),
    )
    case = OnnxCase(model=str(named.file), dimensions=dimensions, samples=model.calibrate or "", run=(run,))
    return OnnxProgram(search_path() / NO_SUITE, named.name, case, run, selection.soc)


@dataclass(frozen=True)
class OneModelStep(Step[OnnxProgram]):
    """A step of a command for one model."""

    keeps_files = True
    own_packages = False
    title = "programs"

    plan: OnnxPlan

    def environment(self, own: OwnPackages) -> Mapping[str, str]:
        return environment()

    def worker(self, own: OwnPackages, threads: int, count: int) -> WorkerSpec:
        return setup_of(self.plan.logs, threads=threads, timeout=self.plan.work.timeout, forks=True)

    def key(self, program: OnnxProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        return key(program, memo.roots, environ)

    def cost(self, program: OnnxProgram) -> Job:
        return Job(program.name, SECONDS_PREPARE, WORKER_MEMORY)

    def line(self, program: OnnxProgram, result: Result) -> Line:
        # The command shows the error itself.
        return failed(result.failure.kind) if result.failure else line_of(result)

    def ended(self, program: OnnxProgram, gone: WorkerDied, log: Path) -> Failure:
        return explained_end(gone, log)


def prepared(
    program: OnnxProgram, ask: Asker, scratch: Path, *, name: str = "", **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Have the model checked and quantized. Returns what further requests about it have, and the facts.

    `more` is for the first request; with `name`, the quantized model is a file of the user's."""
    folders = {part: str(empty_folder(scratch / part)) for part in ("prepared", "quantized")}
    common = {**program.order, "cwd": cwd(), **folders}
    facts = ask(do="prepare", **common, into=folders["prepared"], **more)
    common["source"] = common["model"] = facts["model"]
    facts |= ask(do="quantize", **common, into=folders["quantized"], name=name)
    return {**common, "model": facts["model"]}, facts


def warn_of(facts: Mapping[str, Any]) -> None:
    for constant in facts["constant"]:
        say(f"warning: {constant} has one value throughout the samples, which gives no range for it")


def plan_of_model(model: OneModel, program: OnnxProgram) -> OnnxPlan:
    """For all chips of the command line."""
    programs = [replace(program, soc=soc) for soc in model.selection.socs]
    return plan_of(programs, model.selection, model.work)


@dataclass(frozen=True)
class CompileMixed(OneModelStep):
    """Compiling for HTP what it takes; the other nodes are beside the contexts."""

    kind = "onnx-mixed"

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        scratch = ask.scratch / program.soc
        common, facts = prepared(program, ask, scratch, drawn=True)
        mixed = ask(do="mixed", **common)
        shutil.copyfile(scratch / "prepared" / SAMPLES, ask.into / SAMPLES)
        return {**mixed, "constant": facts["constant"]}


def mixed(model: OneModel, program: OnnxProgram) -> Result:
    """Facts, and the folder of the contexts; or why there are none."""
    plan = plan_of_model(model, program)
    result = run_step(CompileMixed(plan), plan.programs[:1])[plan.programs[0].name]
    if not result.failure:
        warn_of(result.facts)
    return result
