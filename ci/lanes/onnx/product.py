"""One .onnx of a command line: the contexts that it is compiled to, and what else the commands ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci.cached_steps import require_done
from ci.forecast import Forecasted
from ci.lanes.onnx.compile import OnnxPlan, plan_of, with_metrics
from ci.lanes.onnx.findings import causes_of, findings_of, identity_of
from ci.lanes.onnx.forecast import forecast_of_chip
from ci.lanes.onnx.graph import RECIPROCAL, RECIPROCAL_FIX
from ci.lanes.onnx.options import parse_assignments, settings_of
from ci.lanes.onnx.records import CompiledContext, facts_in
from ci.lanes.onnx.stage import COMPILED, measured_of
from ci.lanes.onnx.suite import OnnxProgram
from ci.lanes.onnx.user_program import chips_of, compiling_one, constant_inputs, program_of, written
from ci.one_model.model import OneModel
from ci.one_model.product import Outcome, Product, SuiteRow
from ci.outcome import Result
from ci.plain import as_json
from ci.suite.accuracy import against_in_words
from ci.suite.findings import HowJudged, not_in_fp16, verdict_of_one_model
from ci.suite.stage import Results, run_cached_step
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Severity
from provisioning.base.rendering.text import plural
from provisioning.manifest import soc_named

FIELDS = ("precision", "per_channel", "calibration", "options")


def programs_of(model: OneModel, suite: Path | None = None) -> list[OnnxProgram]:
    socs = model.selection.socs
    if model.and_socs and len(socs) > 1:
        raise UsageError("--and-soc with several --soc", fix="one --soc, and --and-soc for others")
    if model.and_socs and not model.verify:
        raise UsageError("--and-soc runs the model, but --verify none does not", fix="leave one out")
    for chip in (*socs, *model.and_socs):
        settings_of(parse_assignments(model.options), soc=soc_named(chip), embed=model.embed)
    program = program_of(model, suite, with_options=bool(suite))
    return [replace(program, soc=soc) for soc in socs]


def planned(model: OneModel, programs: Sequence[OnnxProgram]) -> OnnxPlan:
    work = model.work
    # Nothing remembers what these options make the provider write beside the context.
    if any("dump" in name or name.endswith("_dir") for name in parse_assignments(model.options)):
        work = replace(work, cache=False)
    return plan_of(programs, model.selection, work)


def results_of(model: OneModel, plan: OnnxPlan) -> Results:
    results = run_cached_step(compiling_one(plan, model), plan.programs)
    with_metric = [program for program in plan.programs if program.case.metric]
    return {COMPILED: with_metrics(plan, with_metric, results)}


def product_of(model: OneModel, plan: OnnxPlan, program: OnnxProgram, mine: Mapping[str, Result]) -> Product:
    result = require_done(mine[COMPILED])
    assert result.folder is not None
    facts, files = facts_in(result), written(plan, model, program, result.folder)
    if not (contexts := facts.contexts):
        (finding,) = findings_of(program, result)
        raise CheckFailed(finding.message, fix=finding.fix)
    context = contexts.measured
    chips, near, used = chips_of(model, program), context.near, facts.used
    ran = against_in_words(near.figures, context.each_db, "float", used) if near.figures else "not run"
    words = [f"{chips[0]} {program.run.name}: {ran}; nothing on the CPU"]
    if contexts.of_chips:
        words += [
            f"  one flexible context for {', '.join(chips)}, which only a device runs;"
            " compiled for each alone:",
            *(f"    {chip} {figure}" for chip, figure in contexts.of_chips.items()),
        ]
    forecasted, ddr = forecast_of_chip(program, facts.estimate), context.ddr
    build, nodes = context.record.build_id, plural(context.audit.nodes, "node")
    more = [f"QNN {build}, {nodes} on HTP", *near.slices]
    if forecasted and forecasted.forecasts:
        words += [f"  {line}" for line in forecasted.in_words()]
    elif forecasted:
        more += forecasted.in_words()
    if ddr:
        more += [f"{ddr.read:,} bytes read from DDR in a run, {ddr.written:,} written"]
    commands = (model.command("divergence", program.soc), model.command("quantize", program.soc, "--where"))
    kind, name, causes = program.run.kind, model.typed, causes_of(near, context.choices)
    judged = HowJudged(kind, used)
    wrong, low = verdict_of_one_model(name, near.figures, near.slices, *commands, causes, judged)
    warnings = [*drawn(program), *constant_inputs(facts.prepared.constant), *low]
    if kind == "fp16" and context.half_floats is False:
        warnings += [not_in_fp16(chips[0])]
    warnings += [f"{node}: {RECIPROCAL}; {RECIPROCAL_FIX}" for node in context.reciprocals]
    size = sum(path.stat().st_size for path in files)
    outcome = outcome_of(context, size, forecasted, contexts.cpu_seconds)
    return Product(
        {path.name: path for path in files},
        words,
        more,
        warnings,
        replace(outcome, wrong=wrong),
        facts={
            "accuracy": near.figures,
            "delegates": 1,
            "on_cpu": [],
            "ddr": as_json(ddr) if ddr else None,
        },
        chips=", ".join(chips),
    )


def drawn(program: OnnxProgram) -> Iterator[str]:
    if program.run.quantizes and not program.case.samples:
        yield "it was calibrated with random inputs: --calibrate DIR takes real ones"


def suite_row(plan: OnnxPlan, results: Results) -> SuiteRow:
    for program in plan.programs:
        for finding in findings_of(program, results[COMPILED][program.name]):
            if finding.severity is Severity.ERROR:
                raise CheckFailed(f"{finding.subject}: {finding.message}", fix=finding.fix)
    return SuiteRow(measured_of(plan, results[COMPILED]))


def outcome_of(
    context: CompiledContext, size: int, forecasted: Forecasted | None, cpu_seconds: float
) -> Outcome:
    """Of a context that was compiled and run. `forecasted` are the phones that have its chip."""
    costs, figures = {"size": size, "cpu_seconds": cpu_seconds}, context.near.figures
    if ddr := context.ddr:
        costs["ddr"] = ddr.read + ddr.written
    if forecasted and forecasted.forecasts:
        costs["ms"] = forecasted.forecasts[0].ms
    program, worst = identity_of(context) if figures else "", min(context.each_db, default=None)
    return Outcome(figures=figures, costs=costs, worst_db=worst, program=program)
