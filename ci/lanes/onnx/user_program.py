"""MODEL of a command line as a program like those of a suite, and the steps of its commands."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.engine.progress import Line, failed
from ci.engine.work import Result, empty_folder, line_of
from ci.lanes.onnx.compile import CompileOnnx, OnnxPlan, cwd, plan_of, require_installed
from ci.lanes.onnx.options import parse_assignments, settings_of
from ci.lanes.onnx.orders import dimensions_of, precision_of, say, search_path
from ci.lanes.onnx.samples import MOST
from ci.lanes.onnx.suite import OnnxCase, OnnxProgram, OnnxRun
from ci.pipeline.models.user_model import user_model
from ci.pipeline.options import OneModel
from ci.pipeline.precision import precision_named
from ci.pipeline.precision_file import precision_file_of
from ci.pipeline.steps import Ask, Asker, run_step
from ci.pipeline.suite import NO_SUITE
from provisioning.base.rendering.text import plural
from provisioning.manifest import soc_named

SAMPLES, CONTEXT = "samples.npz", "model_ctx.onnx"


def program_of(model: OneModel, suite: Path | None = None, *, with_options: bool = True) -> OnnxProgram:
    """The program for the first chip, with or without the command line's --option; in `suite`, if one is to
    have it."""
    options, selection = parse_assignments(model.options) if with_options else {}, model.selection
    for chip in selection.socs:
        # Before the suite's own check, whose message would name a field.
        settings_of(options, soc=soc_named(chip), embed=True)
    named = user_model(model.typed, search_path())
    assert named.file is not None
    dimensions = dimensions_of(model.dimensions)
    require_installed()
    file = precision_file_of(model, "onnx")
    precision, samples, place = (
        precision_of(named.file, file.precision if file else model.precision),
        model.calibrate or "",
        str(named.file),
    )
    if suite:
        place, folder = os.path.relpath(place, suite.parent), search_path() / samples
        samples = os.path.relpath(folder, suite.parent) if samples and folder.is_dir() else samples
    calibrated = samples and precision_named(precision).quantized
    more: dict[str, Any] = {"calibration": MOST} if calibrated else {}
    run = OnnxRun(
        precision=precision,
        socs=(selection.soc,),
        per_channel=model.per_channel,
        options=dict(options),
        nodes=file.nodes if file else {},
        **more,
    )
    case = OnnxCase(model=place, dimensions=dimensions, samples=samples, run=(run,))
    return OnnxProgram(suite or search_path() / NO_SUITE, named.name, case, run, selection.soc)


@dataclass(frozen=True)
class OneModelStep(CompileOnnx):
    """A step of a command for one model, as the suites' own step is done."""

    keeps_files = True
    shows_cached = False

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        return True

    def line(self, program: OnnxProgram, result: Result) -> Line:
        # The command shows the error itself.
        return failed(result.failure.kind) if result.failure else line_of(result)


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


def constant_inputs(facts: Mapping[str, Any]) -> Iterator[str]:
    for constant in facts["constant"]:
        yield f"{constant} has one value throughout the samples, which gives no range for it"


def of_samples(facts: Mapping[str, Any]) -> str:
    """What figures are about."""
    compared = facts["compared"]
    return f"{plural(compared, 'sample')} held back" if compared else "made-up inputs"


def warn_of(facts: Mapping[str, Any]) -> None:
    for warning in constant_inputs(facts):
        say(f"warning: {warning}")


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
