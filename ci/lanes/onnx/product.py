"""What the commands for one model do with an .onnx: `compile`, `quantize`, `forecast` and `run`.

Each is a step in a worker (`command_step`), and what becomes of it are files and words for the user
(`product_of`). The functions are parts of the lane's record (`lane.py`)."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ci.artifacts.compiled_onnx import CONTEXT_OPERATOR
from ci.artifacts.records import record_path
from ci.lanes.onnx.findings import causes_of
from ci.lanes.onnx.model_file import (
    Size,
    fix_dimensions,
    is_context,
    load_graph,
    nodes_beside_context,
    open_inputs,
    read_context,
    signature_of,
    soc_of,
)
from ci.lanes.onnx.model_options import OnnxOptions
from ci.lanes.onnx.options import NO_SETTINGS, Settings, parse_assignments, settings_of
from ci.lanes.onnx.orders import (
    CONTEXT,
    DRAWN,
    Chips,
    CommandAnswer,
    CompiledContext,
    CompileOptions,
    FileName,
    OnnxRunRequest,
    Preparing,
    ProgramFacts,
    RunReply,
    TakenModel,
    facts_in,
)
from ci.lanes.onnx.stage import COMPILED
from ci.lanes.onnx.steps import WORKER, OnnxPlan, add_metrics, home_of, onnx_step, plan_of, require_installed
from ci.lanes.onnx.suite import SUITES, OnnxCase, OnnxProgram, OnnxRun
from ci.lanes.onnx.task_files import JUDGED
from ci.models.inputs import GraphSignature, Sample, draw_sample, load_samples, read_inputs, save
from ci.one_model.forecast import Forecasted, QnnEstimates, forecast, load_fit, load_forecasts
from ci.one_model.model import OneModel
from ci.one_model.named_files import require_program
from ci.one_model.output import Ran
from ci.one_model.packages import needs_of_model
from ci.one_model.product import Outcome, Product, require_fp16
from ci.suite.figures import against_in_words, describe_figures
from ci.suite.findings import Evidence, not_in_fp16, verdict_of_one_model
from ci.suite.judged_samples import SUFFIX
from ci.suite.precision import precision_named, refuse_floats
from ci.suite.precision_file import precision_file_of
from ci.suite.programs import NO_SUITE
from ci.suite.running import run_cached_step
from ci.suite.stage import Results
from ci.work import NOTHING, Nothing, Result, Step, asking, read, require_done, to_json
from provisioning.base.commands import Fix, join_fixes, leave_out, session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file
from provisioning.base.parser import Parser
from provisioning.base.progress import show_working
from provisioning.base.rendering import plural
from provisioning.manifest import soc_named

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


T = TypeVar("T")


def program_of(model: OneModel, suite: Path | None = None) -> OnnxProgram:
    """Return a program for the first chip; it is in `suite` if one is named."""
    options, selection = model.own(OnnxOptions), model.selection
    settings = parse_assignments(options.settings)
    for chip in selection.socs:
        # Before the suite's own check, whose message would name a field.
        settings_of(settings, soc=soc_named(chip), embed=options.embed)
    user_model = model.file
    assert user_model.file is not None
    dimensions = dimensions_of(options.dimensions)
    require_installed()
    file = precision_file_of(options.precision_file, "onnx")
    precision = precision_of(user_model.file, file.precision if file else model.precision)
    samples, place = options.calibrate or "", str(user_model.file)
    if suite:
        place, folder = os.path.relpath(place, suite.parent), Parser.user_folder() / samples
        samples = os.path.relpath(folder, suite.parent) if samples and folder.is_dir() else samples
    run = OnnxRun(
        precision=precision,
        socs=(selection.soc,),
        per_channel=options.per_channel,
        options=dict(settings),
        nodes=file.nodes if file else {},
        calibration=options.calibration if precision_named(precision).quantized else None,
    )
    case = OnnxCase(
        model=place, dimensions=dimensions, samples=samples, inferences=options.inferences, run=(run,)
    )
    place_of_suite = suite or Parser.user_folder() / NO_SUITE
    needs = needs_of_model(model, SUITES, suite)
    return OnnxProgram(place_of_suite, user_model.name, case, run, selection.soc, needs=needs)


@dataclass(frozen=True)
class Answered(TakenModel, Generic[T]):
    answer: T
    folder: Path | None
    """The files of the result are here."""


def command_step(
    plan: OnnxPlan,
    kind: str,
    task: str,
    *,
    request: DataclassInstance = NOTHING,
    prepared: Preparing = DRAWN,
    title: str = "programs",
    is_done: Callable[[Mapping[str, object]], bool] = lambda reply: True,
    keeps_files: bool = False,
) -> Step[OnnxProgram]:
    """Return a step that asks the worker for one model. A search may end before it is done, and continues the
    next time: its reply is kept only if `is_done` says so."""

    def is_worth_keeping(program: OnnxProgram, result: Result) -> bool:
        assert isinstance(result.record, CommandAnswer)
        return is_done(result.record.answer)

    return onnx_step(
        plan,
        kind,
        task,
        options=lambda program: request,
        preparing=lambda program: prepared,
        title=title,
        reply=CommandAnswer,
        keeps=is_worth_keeping,
        keeps_files=keeps_files,
    )


def answer_of(step: Step[OnnxProgram], reply: type[T]) -> Answered[T]:
    """Run the step and return the answer for the plan's first program. Raises an error that says why there is
    none."""
    program: Any = step.plan.programs[0]
    return answer_in(run_cached_step(step, [program])[program.name], reply)


def answer_in(result: Result, reply: type[T]) -> Answered[T]:
    facts = require_done(result).record
    assert isinstance(facts, CommandAnswer)
    answer = read(reply, facts.answer)
    return Answered(answer, result.folder, prepared=facts.prepared, quantized=facts.quantized)


def precision_of(model: Path, precision: str | None) -> str:
    """Return the precision that the user named; otherwise a quantized model stays as it is, and others get
    fp16."""
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


def plan_of_model(model: OneModel, program: OnnxProgram) -> OnnxPlan:
    """Return a plan with a program for each chip of the command line."""
    programs = [replace(program, soc=soc) for soc in model.selection.socs]
    return plan_of(programs, model.selection, model.work)


def compiling_one(plan: OnnxPlan, model: OneModel) -> Step[OnnxProgram]:
    """Return the step that compiles the context and keeps its files."""

    def options(program: OnnxProgram) -> CompileOptions:
        return CompileOptions(
            stem=_stem(plan, model, program),
            embed=model.own(OnnxOptions).embed,
            keeps_outputs=program.case.metric is not None,
            keeps_samples=model.options.keep_samples,
        )

    drawn = Preparing(drawn=True, compares=model.options.is_verified)
    return onnx_step(
        plan,
        "onnx",
        "compiled",
        options=options,
        preparing=lambda program: drawn,
        reply=ProgramFacts,
        keeps_files=True,
    )


def _stem(plan: OnnxPlan, model: OneModel, program: OnnxProgram) -> str:
    kind = f"-{program.run.kind}" if model.several_precisions else ""
    soc = f"-{program.soc}" if len({row.soc for row in plan.programs}) > 1 else ""
    return f"{Path(program.case.model).stem}{kind}{soc}_ctx"


def product_files(plan: OnnxPlan, model: OneModel, program: OnnxProgram, folder: Path) -> list[Path]:
    """Return the files of a result that the user gets."""
    return sorted((folder / CONTEXT).glob(f"{_stem(plan, model, program)}*"))


def estimating(plan: OnnxPlan, chips: Sequence[str]) -> Step[OnnxProgram]:
    """Return a step that estimates each model in its precision for `chips`. The program's own chip does not
    matter."""
    return command_step(
        plan,
        "onnx-estimate",
        "estimated",
        request=Chips(tuple(chips)),
        prepared=Preparing(drawn=True, compares=False),
        title="estimates",
    )


def forecast_model(model: OneModel, phones: Sequence[str]) -> Forecasted:
    """Forecast how an .onnx runs on these phones."""
    table, fit = load_forecasts(), load_fit()
    program = program_of(model)
    plan, kind = plan_of_model(model, program), program.run.kind
    chips = table.chips(kind, phones)
    reply = answer_of(estimating(replace(plan, programs=plan.programs[:1]), chips), QnnEstimates)
    return forecast(kind, reply.answer, fit, table, phones)


def programs_of(model: OneModel, suite: Path | None = None) -> list[OnnxProgram]:
    program = program_of(model, suite)
    programs = [replace(program, soc=soc) for soc in model.selection.socs]
    require_fp16(programs)
    return programs


def plan_to_compile(model: OneModel, programs: Sequence[OnnxProgram]) -> OnnxPlan:
    work = model.work
    # Nothing remembers what these options make the provider write beside the context.
    settings = parse_assignments(model.own(OnnxOptions).settings)
    if any("dump" in name or name.endswith("_dir") for name in settings):
        work = replace(work, cache=False)
    return replace(plan_of(programs, model.selection, work), model=model)


def compiled_model_results(plan: OnnxPlan, results: Results) -> Mapping[str, Result]:
    assert plan.model is not None
    compiled = run_cached_step(compiling_one(plan, plan.model), plan.programs)
    with_metric = [program for program in plan.programs if program.case.metric]
    return add_metrics(plan, with_metric, compiled)


def product_of(
    model: OneModel, plan: OnnxPlan, program: OnnxProgram, results: Mapping[str, Result]
) -> Product:
    result = require_done(results[COMPILED])
    assert result.folder is not None
    facts, files = facts_in(result), product_files(plan, model, program, result.folder)
    context = facts.context
    near, inputs = context.near, facts.used
    ran = against_in_words(near.figures, context.each_db, "float", inputs) if near.figures else "not run"
    words = [f"{program.soc} {program.run.name}: {ran}; nothing on the CPU"]
    more = [f"QNN {context.record.build_id}", *near.slices]
    if ddr := context.ddr:
        more += [f"{ddr.read:,} bytes read from DDR in a run, {ddr.written:,} written"]
    commands = (model.command("divergence", program.soc), model.command("quantize", program.soc, "--where"))
    kind, name, causes = program.run.kind, model.typed, causes_of(near, context.choices)
    evidence = Evidence(kind, inputs)
    accuracy = verdict_of_one_model(name, near.figures, near.slices, *commands, causes, evidence)
    warnings = [*drawn_to_calibrate(program), *accuracy.warnings]
    if kind == "fp16" and context.half_floats is False:
        warnings += [not_in_fp16(program.soc)]
    size = sum(path.stat().st_size for path in files)
    outcome = outcome_of(context, size)
    samples = result.folder / JUDGED
    stem = _stem(plan, model, program)
    return Product(
        {path.name: path for path in files} | ({stem + SUFFIX: samples} if samples.is_file() else {}),
        words,
        more,
        warnings,
        replace(outcome, wrong=accuracy.wrong, of_chip=accuracy.of_chip),
        facts={
            "accuracy": near.figures,
            "delegates": 1,
            "on_cpu": [],
            "ddr": to_json(ddr) if ddr else None,
        },
        chips=program.soc,
    )


def drawn_to_calibrate(program: OnnxProgram) -> Iterator[str]:
    if program.run.quantizes and not program.case.samples:
        yield "it was calibrated with random inputs: --calibrate DIR takes real ones"


def outcome_of(context: CompiledContext, size: int) -> Outcome:
    """Return the costs and figures of a context that was compiled and run."""
    costs, figures = {"size": size, "cpu_seconds": context.cpu_seconds}, context.near.figures
    if ddr := context.ddr:
        costs["ddr"] = ddr.read + ddr.written
    return Outcome(figures=figures, costs=costs, worst_db=min(context.each_db, default=None))


def quantize_model(model: OneModel) -> Sequence[Product]:
    """Quantize the model; the one result is the same for all chips."""
    program = program_of(model)
    kind = program.run.kind
    refuse_floats(program.run.quantizes, kind)
    stem = f"{Path(program.case.model).stem}-{program.run.name}"
    step = command_step(
        plan_of_model(model, program),
        "onnx-quantize",
        "quantized_file",
        request=FileName(stem),
        keeps_files=True,
    )
    facts = answer_of(step, Nothing)
    assert facts.folder
    files, near, prepared = sorted(facts.folder.iterdir()), facts.quantized_model.near, facts.prepared
    record = {
        "schema": 1,
        "model": Path(program.case.model).name,
        "files": {path.name: hash_file(path) for path in files},
        "precision": kind,
        "stack": facts.quantized_model.packages,
        "inputs": prepared.inputs,
        "accuracy": near.figures,
        "slices": near.slices,
    }
    words = f"{program.run.name}: {describe_figures(near.figures)} against float {facts.used}"
    words += ", both by ONNX Runtime on the CPU"
    outputs = {path.name: path for path in files} | {f"{stem}.json": json.dumps(record, indent=2) + "\n"}
    where, evidence = model.command("quantize", program.soc, "--where"), Evidence(kind, facts.used)
    causes = causes_of(near)
    accuracy = verdict_of_one_model(stem, near.figures, near.slices, "", where, causes, evidence)
    warnings = [*drawn_to_calibrate(program), *accuracy.warnings]
    lines = [words, *(f"  {line}" for line in near.slices)]
    return [Product(outputs, lines, (), warnings, Outcome(wrong=accuracy.wrong))]


def run_program(model: OneModel, files: Sequence[str]) -> Ran:
    """Run an .onnx: of a compiled one, the contexts run on the emulator, and the rest on the CPU; another one
    runs entirely on the CPU."""
    path = Parser.user_folder() / model.typed
    require_program(path, model.typed)
    require_installed()
    options = model.own(OnnxOptions)
    graph, sizes = load_graph(path), dimensions_of(options.dimensions)
    if not is_context(graph):
        fix_dimensions(graph, sizes)
        if not files and (problems := list(open_inputs(graph))):
            message = f"{path}: no {problems[0].subject} can be drawn, as not all of its sizes are known"
            fix = join_fixes(problem.fix for problem in problems)
            raise CheckFailed(message, fix=Fix("{}; or --input FILE.npy", fix))
        inputs, outputs, _ = _run(model, files, signature_of(graph))
        makes = session("compile", model.typed, "-o", "out")
        where = f"all of it on this machine's CPU: it is no program, {makes} makes one"
        return Ran(inputs, outputs, where)
    if sizes:
        message = f"--dimension: the sizes of {model.typed} were fixed when it was compiled"
        raise UsageError(message, fix=leave_out("--dimension"))
    context, cpu_nodes = read_context(path), nodes_beside_context(path)
    soc = next(iter(model.selection.named_socs), "") or soc_of(context)
    assignments, embed = parse_assignments(options.settings), not context.data_files
    settings = settings_of(assignments, soc=soc_named(soc), embed=embed)
    if context.record is None:
        sys.stderr.write(f"{record_path(path)} is missing, so a changed file cannot be detected\n")
    inputs, outputs, build_id = _run(model, files, signature_of(graph), soc, settings)
    parts = plural(sum(node.op_type == CONTEXT_OPERATOR for node in graph.graph.node), "part")
    where = f"{parts} on the emulator (HTP, {soc}, QNN {build_id})"
    on_cpu = f"on the CPU: {', '.join(cpu_nodes)}" if cpu_nodes else "nothing on the CPU"
    return Ran(inputs, outputs, f"{where}; {on_cpu}")


def _run(
    model: OneModel,
    files: Sequence[str],
    signature: GraphSignature,
    soc: str = "",
    settings: Settings = NO_SETTINGS,
) -> tuple[Sample, Sample, str]:
    """Run the model and return inputs, outputs and the id of QNN's build. Without `soc`, it runs on the
    CPU."""
    arrays = read_inputs(files, signature) if files else draw_sample(signature)
    path, logs = Parser.user_folder() / model.typed, model.selection.reports.absolute() / "onnx"
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as scratch,
        asking(home_of(logs), f"{WORKER}:run_model", logs / "run.log", model.work.timeout) as ask,
        show_working(f"running {model.typed}"),
    ):
        inputs, outputs = (Path(scratch, name) for name in ("inputs.npz", "outputs.npz"))
        save(inputs, [arrays])
        places = (str(path.absolute()), str(inputs), str(outputs), str(Parser.user_folder()))
        request = OnnxRunRequest(*places, soc, settings, model.own(OnnxOptions).as_it_is)
        reply = read(RunReply, ask(**to_json(request)))
        return arrays, load_samples(outputs)[0], reply.build_id
