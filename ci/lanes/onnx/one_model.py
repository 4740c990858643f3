"""One .onnx of a command line: the contexts that it is compiled to, and what else the commands ask of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.artifacts.simulation import Simulation
from ci.lanes.onnx.compile import OnnxPlan, plan_of
from ci.lanes.onnx.events import slowest
from ci.lanes.onnx.findings import causes_of, findings_of
from ci.lanes.onnx.forecast import forecast_of_chip, forecasted, simulated_on
from ci.lanes.onnx.graph import RECIPROCAL, RECIPROCAL_FIX, REWRITTEN
from ci.lanes.onnx.options import parse_assignments, settings_of
from ci.lanes.onnx.stage import COMPILED, OnnxLane
from ci.lanes.onnx.suite import OnnxProgram, assignments_of, samples_of
from ci.lanes.onnx.user_program import (
    EXPORTED,
    EXPORTED_SAMPLES,
    FORMS,
    CompileOne,
    ExportOne,
    LossesOfOne,
    QuantizeOne,
    RewriteOne,
    constant_inputs,
    of_samples,
    plan_of_model,
    program_of,
)
from ci.pipeline.accuracy import in_words
from ci.pipeline.findings import (
    accuracy_of_one_model,
    accuracy_of_quantized,
    differs_on_chip,
    nearly_constant,
    not_in_fp16,
)
from ci.pipeline.forecast import Forecasted
from ci.pipeline.lane import Mine, Results, chosen_programs
from ci.pipeline.models import wheels
from ci.pipeline.one_model import LaneModel, Product, cells_of
from ci.pipeline.options import Choice, Compiling, OneModel
from ci.pipeline.precision import precision_named
from ci.pipeline.profile import ProgramProfile
from ci.pipeline.ran import Ran
from ci.pipeline.reduction import Reduction
from ci.pipeline.rewriting import RewriteChoice, Rewritten, changes_of
from ci.pipeline.simulated import SimulatedProfile
from ci.pipeline.steps import require_done, run_step
from ci.pipeline.tuning import Goal, Tuned
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file
from provisioning.base.findings import Severity
from provisioning.base.rendering.text import plural
from provisioning.manifest import soc_named


@dataclass(frozen=True)
class OnnxModel(LaneModel[OnnxProgram, OnnxPlan]):
    lane = OnnxLane()
    fields = ("precision", "per_channel", "calibration", "options")

    @classmethod
    def of(cls, model: OneModel, how: Compiling) -> OnnxModel:
        and_socs = how.and_socs
        if and_socs and len(model.selection.socs) > 1:
            raise UsageError("--and-soc with several --soc", fix="one --soc, and --and-soc for others")
        if not how.verify and (and_socs or how.profile_run):
            flag = "--and-soc" if and_socs else "--profile-run"
            raise UsageError(f"{flag} runs the model, and --verify none does not", fix="leave one out")
        return cls(model, how)

    @property
    def measured(self) -> bool:
        return self.how.verify and not self.how.and_socs

    def program(self, soc: str, suite: Path | None = None) -> OnnxProgram:
        for chip in (soc, *self.how.and_socs):
            settings_of(parse_assignments(self.model.options), soc=soc_named(chip), embed=self.how.embed)
        return replace(program_of(self.model, suite, with_options=bool(suite)), soc=soc)

    def plan(self, programs: Sequence[OnnxProgram]) -> OnnxPlan:
        work = self.model.work
        # Nothing remembers what these options make the provider write beside the context.
        if any("dump" in name or name.endswith("_dir") for name in parse_assignments(self.model.options)):
            work = replace(work, cache=False)
        return plan_of(programs, self.model.selection, work)

    def do(self, plan: OnnxPlan) -> Results:
        results = run_step(self._step(plan), plan.programs)
        return {COMPILED: {name: require_done(result) for name, result in results.items()}}

    def _step(self, plan: OnnxPlan) -> CompileOne:
        how = self.how
        return CompileOne(
            plan,
            new_baseline=True,
            embed=how.embed,
            verify=how.verify,
            profiled=how.profile_run,
            several_precisions=how.several_precisions,
            and_socs=how.and_socs,
            options=parse_assignments(self.model.options),
        )

    def product(self, plan: OnnxPlan, program: OnnxProgram, mine: Mine) -> Product:
        result, step = mine[COMPILED], self._step(plan)
        assert result.folder is not None
        facts, files = result.facts, step.files(program, result.folder)
        context = facts[FORMS[0] if FORMS[0] in facts else FORMS[1]]
        chips, near, words = step.chips(program), context["near"], list[str]()
        if figures := facts.get("for each"):
            words += [
                f"one flexible context for {', '.join(chips)}, which only a device runs;"
                " compiled for each alone:",
                *(f"  {chip} {figure}" for chip, figure in figures.items()),
            ]
        ran = f"reload is bit-equal; {in_words(near)} against float on {of_samples(facts)}"
        words += [
            f"{chips[0]} {program.run.name}, QNN {context['record']['build_id']}:"
            f" {plural(context['audit']['nodes'], 'node')} on HTP, none on the CPU;"
            f" {ran if near else 'not run'}"
        ]
        if ddr := context["ddr"]:
            words += [f"  {ddr['read']:,} bytes read from DDR in a run, {ddr['written']:,} written"]
        words += [f"  {cost}" for path in files if path.suffix == ".csv" for cost in slowest(path)]
        words += [f"  {line}" for line in context["slices"]]
        words += [f"  {line}" for line in forecast_of_chip(program, facts.get("estimate"))]
        commands = (
            self.command("divergence", program.soc),
            self.command("quantize", program.soc, "--where"),
        )
        suspect = (nearly_constant(near, context["slices"]), differs_on_chip(near, commands[0]))
        warnings = [*self._drawn(program), *constant_inputs(facts), *filter(None, suspect)]
        if program.run.kind == "fp16" and context["half_floats"] is False:
            warnings += [not_in_fp16(chips[0])]
        warnings += [f"{node}: {RECIPROCAL}; {RECIPROCAL_FIX}" for node in context["reciprocals"]]
        wrong = accuracy_of_one_model(self.model.typed, near, *commands, causes_of(context, program.run.kind))
        return Product(
            {path.name: path for path in files},
            words,
            warnings,
            wrong,
            facts={"accuracy": near, "delegates": 1, "on_cpu": [], "ddr": context["ddr"]},
            cells=cells_of(", ".join(chips), near, 0, files),
        )

    def _drawn(self, program: OnnxProgram) -> Iterator[str]:
        if precision_named(program.run.kind).quantized and not program.case.samples:
            yield "it was calibrated by drawn inputs: --calibrate DIR takes real ones, which give its ranges"

    def for_suite(self, plan: OnnxPlan, results: Results) -> Mapping[str, Any]:
        for program in plan.programs:
            for finding in findings_of(program, results[COMPILED][program.name]):
                if finding.severity is Severity.ERROR:
                    raise CheckFailed(f"{finding.subject}: {finding.message}", fix=finding.fix)
        return {}

    def quantized(self) -> Sequence[Product]:
        """One, as it is the same for all chips."""
        program = program_of(self.model)
        kind = program.run.kind
        if not precision_named(kind).quantized:
            raise UsageError(f"{kind} quantizes nothing", fix="--precision 16a8w, 8a8w …")
        stem = f"{Path(program.case.model).stem}-{program.run.name}"
        step = QuantizeOne(plan_of_model(self.model, program), stem=stem)
        result = require_done(run_step(step, [program])[program.name])
        assert result.folder is not None
        facts, files = result.facts, sorted(result.folder.iterdir())
        record = {
            "schema": 1,
            "model": Path(program.case.model).name,
            "files": {path.name: hash_file(path) for path in files},
            "precision": kind,
            "stack": facts["packages"],
            "inputs": facts["inputs"],
            "accuracy": facts["near"],
            "slices": facts["slices"],
        }
        words = f"{program.run.name}: {in_words(facts['near'])} against float on {of_samples(facts)}"
        words += ", both by ONNX Runtime on the CPU"
        written = {path.name: path for path in files} | {f"{stem}.json": json.dumps(record, indent=2) + "\n"}
        where = self.command("quantize", program.soc, "--where")
        wrong = accuracy_of_quantized(stem, facts["near"], where, causes_of(facts, kind))
        constant = filter(None, [nearly_constant(facts["near"], facts["slices"])])
        warnings = [*self._drawn(program), *constant_inputs(facts), *constant]
        return [Product(written, [words, *(f"  {line}" for line in facts["slices"])], warnings, wrong)]

    def losses(self, choice: Choice) -> tuple[str, Sequence[Mapping[str, Any]]]:
        program = program_of(self.model)
        if not precision_named(program.run.kind).quantized:
            raise UsageError(f"{program.run.kind} quantizes nothing", fix="--precision 16a8w, 8a8w …")
        step = LossesOfOne(plan_of_model(self.model, program))
        facts = require_done(run_step(step, [program])[program.name]).facts
        words = f"{program.name}: {in_words(facts['near'])} against float on {of_samples(facts)}"
        return f"{words}, both by ONNX Runtime on the CPU", facts["losses"]

    def of_suites(self, choice: Choice) -> Sequence[OnnxModel]:
        programs = chosen_programs(self.lane, choice, self.model.selection)
        exported = self._exported(
            [program for program in programs if program.case.factory or ":" in program.case.samples]
        )
        return [self._of(program, exported.get(program.name)) for program in programs]

    def _exported(self, programs: Sequence[OnnxProgram]) -> Mapping[str, Path]:
        """The folders of models and samples that the suite's code makes, with the packages that it needs."""
        if not programs:
            return {}
        plan = plan_of(programs, self.model.selection, self.model.work)
        done = {name: require_done(result) for name, result in run_step(ExportOne(plan), programs).items()}
        return {name: result.folder for name, result in done.items() if result.folder}

    def _of(self, program: OnnxProgram, exported: Path | None) -> OnnxModel:
        """MODEL as the case has it."""
        case, selection = program.case, self.model.selection
        if exported:
            path, samples = exported / EXPORTED, str(exported / EXPORTED_SAMPLES)
            dimensions: tuple[str, ...] = ()
        else:
            roots = wheels.folders(program.needs.wheels, selection.store)
            path = wheels.located(case.model, program.search_path, roots)
            samples = samples_of(case, program.search_path)
            dimensions = tuple(assignments_of(case.dimensions))
        model = replace(
            self.model,
            typed=str(path),
            precision=program.run.kind,
            calibrate=samples or None,
            dimensions=dimensions,
            per_channel=program.run.per_channel or self.model.per_channel,
            compared=case.inferences,
            selection=replace(selection, soc=program.soc, named_socs=(program.soc,)),
        )
        return replace(self, model=model, given=program)

    def rewritten(self, asked: RewriteChoice) -> Rewritten:
        program = program_of(self.model)
        step = RewriteOne(plan_of_model(self.model, program), wanted=asked)
        result = require_done(run_step(step, [program])[program.name])
        assert result.folder is not None
        model = result.folder / REWRITTEN
        return Rewritten(changes_of(result.facts), model if model.is_file() else None)

    def tuned(self, precisions: tuple[str, str], goal: Goal) -> Tuned:
        from ci.lanes.onnx.tune import tuned

        return tuned(self.model, precisions, goal)

    def in_python(self, precision: str, nodes: Mapping[str, Sequence[str]], comment: str) -> str:
        from ci.lanes.onnx.tune import in_python

        return in_python(precision, nodes, comment)

    def audited(self, precisions: Sequence[str], *, run: bool) -> dict[str, dict[str, Any]]:
        from ci.lanes.onnx.audit import audited

        return audited(self.model, precisions, run=run)

    def profiled(self, inputs: Sequence[str], source: Path | None) -> tuple[dict[str, str], ProgramProfile]:
        from ci.lanes.onnx.profile import profiled

        return profiled(self.model, inputs, source)

    def simulated(self) -> SimulatedProfile:
        from ci.lanes.onnx.profile import simulated_profile

        return simulated_profile(self.model)

    def simulated_on(self, chips: Sequence[str]) -> Mapping[str, Simulation]:
        return simulated_on(self.model, chips)

    def forecasted(self, measured: str | None) -> Forecasted:
        return forecasted(self.model, measured)

    def ran(self, inputs: Sequence[str], repeat: int) -> Ran:
        from ci.lanes.onnx.commands import ran

        return ran(self.model, inputs, repeat)

    def reduction(self, choice: Choice, place: Path, *, estimated: bool) -> Reduction[Any]:
        from ci.lanes.onnx.reduce import reduction

        return reduction(self.model, choice, place, estimated=estimated)

    def searched(self, choice: Choice, least: float | None) -> tuple[str, dict[str, Any]]:
        from ci.lanes.onnx.divergence import searched

        return searched(self.model, choice, least)
