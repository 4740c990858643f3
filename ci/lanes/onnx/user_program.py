"""MODEL of a command line as a program like those of a suite, and the steps of its commands."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ci.cached_steps import Step, require_done
from ci.lanes.onnx import FORMS
from ci.lanes.onnx.compile import (
    REPEATS,
    OnnxPlan,
    estimated,
    onnx_step,
    passes_suite,
    plan_of,
    require_installed,
    suite_options,
    suite_samples,
)
from ci.lanes.onnx.graph import Size, load_graph
from ci.lanes.onnx.options import files_of, parse_assignments, settings_of
from ci.lanes.onnx.records import (
    DRAWN,
    NOTHING,
    CommandAnswer,
    CompileOptions,
    Preparing,
    ProgramFacts,
    TakenModel,
)
from ci.lanes.onnx.samples import OUTPUTS
from ci.lanes.onnx.suite import OnnxCase, OnnxProgram, OnnxRun
from ci.one_model.model import OneModel
from ci.outcome import Result, error_follows, line_of
from ci.plain import read
from ci.progress import Line
from ci.results import CachedResults, Key
from ci.suite.precision import precision_named
from ci.suite.programs import NO_SUITE
from ci.suite.stage import run_cached_step
from ci.suite.suite_file import precision_file_of
from provisioning.base.command_line import Parser
from provisioning.base.errors import UsageError
from provisioning.base.findings import Metric
from provisioning.manifest import soc_named

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


def program_of(model: OneModel, suite: Path | None = None, *, with_options: bool = True) -> OnnxProgram:
    """For the first chip, with or without the command line's --option; in `suite`, if one is to have it."""
    options, selection = parse_assignments(model.options) if with_options else {}, model.selection
    for chip in selection.socs:
        # Before the suite's own check, whose message would name a field.
        settings_of(options, soc=soc_named(chip), embed=True)
    named = model.file
    assert named.file is not None
    dimensions = dimensions_of(model.dimensions)
    require_installed()
    file = precision_file_of(model.precision_file, "onnx")
    precision = precision_of(named.file, file.precision if file else model.precision)
    samples, place = model.calibrate or "", str(named.file)
    if suite:
        place, folder = os.path.relpath(place, suite.parent), Parser.user_folder() / samples
        samples = os.path.relpath(folder, suite.parent) if samples and folder.is_dir() else samples
    run = OnnxRun(
        precision=precision,
        socs=(selection.soc,),
        per_channel=model.per_channel,
        options=dict(options),
        nodes=file.nodes if file else {},
        calibration=model.calibration if precision_named(precision).quantized else None,
    )
    case = OnnxCase(
        model=place, dimensions=dimensions, samples=samples, inferences=model.inferences, run=(run,)
    )
    return OnnxProgram(suite or Parser.user_folder() / NO_SUITE, named.name, case, run, selection.soc)


@dataclass(frozen=True)
class Answered(TakenModel, Generic[T]):
    answer: T
    folder: Path | None
    """Of the files that are its result."""


def command_step(
    plan: OnnxPlan,
    kind: str,
    task: str,
    *,
    asked: DataclassInstance = NOTHING,
    prepared: Preparing = DRAWN,
    title: str = "programs",
    rest: str = "",
    keeps_files: bool = False,
) -> Step:
    """What a command for one model asks of the worker. A search may end before it is done, and goes on the
    next time: `rest` is the name of what there was no time for."""

    def accepts(program: OnnxProgram, result: Result) -> bool:
        assert isinstance(result.record, CommandAnswer)
        return not (rest and result.record.answer[rest])

    return onnx_step(
        plan,
        kind,
        task,
        options=lambda program: asked,
        preparing=lambda program: prepared,
        title=title,
        reply=CommandAnswer,
        accepts=accepts,
        line=_line,
        keeps_files=keeps_files,
    )


def _line(program: OnnxProgram, result: Result) -> Line:
    # The command shows the error itself.
    return error_follows(result.failure) if result.failure else line_of(result)


def answered(step: Step, reply: type[T]) -> Answered[T]:
    """Of the plan's first program. Raises why there is no answer."""
    program: Any = step.plan.programs[0]
    return answer_in(run_cached_step(step, [program])[program.name], reply)


def answer_in(result: Result, reply: type[T]) -> Answered[T]:
    facts = require_done(result).record
    assert isinstance(facts, CommandAnswer)
    answer = read(reply, facts.answer)
    return Answered(answer, result.folder, prepared=facts.prepared, quantized=facts.quantized)


def precision_of(model: Path, precision: str | None) -> str:
    """The precision that the user named; else a quantized model stays as it is, and others get fp16."""
    if precision:
        return precision_named(precision).name
    require_installed()
    operators = {node.op_type for node in load_graph(model).graph.node}
    return "qdq" if "QuantizeLinear" in operators else "fp16"


def dimensions_of(assignments: Sequence[str]) -> dict[str, Size]:
    sizes: dict[str, Size] = {}
    for assignment in assignments:
        match = re.fullmatch(r"([^=]+)=([1-9]\d*(?:,[1-9]\d*)*)", assignment)
        if not match:
            message = f"--dimension {assignment}: expected NAME=N with N from 1 on, or all sizes of an input"
            raise UsageError(message, fix="--dimension batch=1, or --dimension x=1,3,64,64")
        numbers = tuple(map(int, match[2].split(",")))
        name, size = match[1], numbers if len(numbers) > 1 else numbers[0]
        if sizes.setdefault(name, size) != size:
            raise UsageError(f"--dimension {name} is both {sizes[name]} and {size}", fix="give it once")
    return sizes


def constant_inputs(constant: Sequence[str]) -> Iterator[str]:
    for name in constant:
        yield f"{name} has one value throughout the samples, which gives no range for it"


def warn_of(constant: Sequence[str]) -> None:
    for warning in constant_inputs(constant):
        sys.stderr.write(f"warning: {warning}\n")


def plan_of_model(model: OneModel, program: OnnxProgram) -> OnnxPlan:
    """For all chips of the command line."""
    programs = [replace(program, soc=soc) for soc in model.selection.socs]
    return plan_of(programs, model.selection, model.work)


def compiling_one(plan: OnnxPlan, model: OneModel) -> Step:
    """The contexts as files. A suite that is to have the model has the command's options in its run."""
    in_suite, own = plan.programs[0].suite.name != NO_SUITE, parse_assignments(model.options)

    def accepts(program: OnnxProgram, result: Result) -> bool:
        """A stage's own result has no files of these names."""
        files = written(plan, model, program, result.folder) if result.folder else []
        whole = any(path.suffix == ".onnx" for path in files)
        if program.case.metric and result.folder:
            whole = whole and (result.folder / OUTPUTS).is_file()
        return whole and (not in_suite or passes_suite(plan, program, result, new_baseline=True))

    def options(program: OnnxProgram) -> CompileOptions:
        keeps_outputs = program.case.metric is not None
        options = replace(
            suite_options(program), stem=_stem(plan, model, program), keeps_outputs=keeps_outputs
        )
        if in_suite:
            return replace(options, chips=(program.soc,))
        return replace(
            options,
            forms=(FORMS[model.embed],),
            settings=settings_of(own, soc=soc_named(program.soc), embed=model.embed),
            chips=chips_of(model, program),
            estimates=estimated(program),
        )

    def known_by(results: CachedResults) -> Key:
        files: list[Metric] = [results.digest(path) for path in files_of(own)]
        return {"files of the command's options": files}

    drawn = Preparing(drawn=True, compares=model.verify)
    return onnx_step(
        plan,
        "onnx",
        "compiled",
        options=options,
        preparing=suite_samples if in_suite else lambda program: drawn,
        known_by=known_by,
        reply=ProgramFacts,
        accepts=accepts,
        line=_line,
        keeps_files=True,
        repeats=REPEATS,
    )


def chips_of(model: OneModel, program: OnnxProgram) -> tuple[str, ...]:
    """Those of one flexible context."""
    return tuple(dict.fromkeys([program.soc, *model.and_socs]))


def _stem(plan: OnnxPlan, model: OneModel, program: OnnxProgram) -> str:
    kind = f"-{program.run.kind}" if model.several_precisions else ""
    soc = f"-{program.soc}" if len({other.soc for other in plan.programs}) > 1 else ""
    return f"{Path(program.case.model).stem}{kind}{soc}_ctx"


def written(plan: OnnxPlan, model: OneModel, program: OnnxProgram, folder: Path) -> list[Path]:
    """What the user gets of a result."""
    return sorted((folder / FORMS[model.embed]).glob(f"{_stem(plan, model, program)}*"))
