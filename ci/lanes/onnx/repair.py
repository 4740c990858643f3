"""`repair` of ONNX models: the programs of suites, and a model's rewrites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci.lanes.onnx import EXPORTED, EXPORTED_SAMPLES
from ci.lanes.onnx.compile import plan_of
from ci.lanes.onnx.graph import REWRITTEN
from ci.lanes.onnx.product import OnnxModel
from ci.lanes.onnx.suite import OnnxProgram, assignments_of, samples_of
from ci.lanes.onnx.user_program import ExportOne, RewriteOne, plan_of_model, program_of
from ci.pipeline.cached_steps import require_done, run_cached_step
from ci.pipeline.lane import chosen_programs
from ci.pipeline.models import wheels
from ci.pipeline.options import Choice, Compiling, OneModel
from ci.pipeline.rewriting import RewriteChoice, Rewritten, changes_of


def of_suites(model: OneModel, choice: Choice) -> Sequence[OnnxModel]:
    programs = chosen_programs(OnnxModel.lane, choice, model.selection)
    by_code = [row for row in programs if row.case.factory or ":" in row.case.samples]
    exported = _exported(model, by_code)
    return [_of(model, program, exported.get(program.name)) for program in programs]


def _exported(model: OneModel, programs: Sequence[OnnxProgram]) -> Mapping[str, Path]:
    """The folders of models and samples that the suite's code makes, with the packages that it needs."""
    if not programs:
        return {}
    plan = plan_of(programs, model.selection, model.work)
    done = {name: require_done(result) for name, result in run_cached_step(ExportOne(plan), programs).items()}
    return {name: result.folder for name, result in done.items() if result.folder}


def _of(whole: OneModel, program: OnnxProgram, exported: Path | None) -> OnnxModel:
    """MODEL as the case has it."""
    case, selection = program.case, whole.selection
    if exported:
        path, samples = exported / EXPORTED, str(exported / EXPORTED_SAMPLES)
        dimensions: tuple[str, ...] = ()
    else:
        roots = wheels.folders(program.needs.wheels, selection.store)
        path = wheels.located(case.model, program.search_path, roots)
        samples = samples_of(case, program.search_path)
        dimensions = tuple(assignments_of(case.dimensions))
    model = replace(
        whole,
        typed=str(path),
        precision=program.run.kind,
        calibrate=samples or None,
        dimensions=dimensions,
        per_channel=program.run.per_channel or whole.per_channel,
        calibration=program.run.calibration,
        inferences=whole.inferences or case.inferences,
        selection=replace(selection, soc=program.soc, named_socs=(program.soc,)),
    )
    return OnnxModel(model, Compiling(), given=program)


def rewritten(taken: OnnxModel, choice: RewriteChoice) -> Rewritten:
    """The model with the rewrites that answer known faults, each proved on the CPU."""
    program = program_of(taken.model)
    step = RewriteOne(plan_of_model(taken.model, program), wanted=choice)
    result = require_done(run_cached_step(step, [program])[program.name])
    assert result.folder is not None
    model = result.folder / REWRITTEN
    return Rewritten(changes_of(result.facts), model if model.is_file() else None)
