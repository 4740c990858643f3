"""`compile` and `quantize` of one .onnx: remembered, and written to the user's folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.engine.memo import Memo
from ci.engine.output import writing_into
from ci.engine.work import empty_folder
from ci.engine.workers.parent import Refused
from ci.lanes.onnx.compile import OnnxPlan, compile_programs, plan_of
from ci.lanes.onnx.events import slowest
from ci.lanes.onnx.findings import findings_of
from ci.lanes.onnx.graph import RECIPROCAL, RECIPROCAL_FIX
from ci.lanes.onnx.options import Settings, files_of, parse_assignments, settings_of
from ci.lanes.onnx.orders import say, search_path
from ci.lanes.onnx.stage import COMPILED, OnnxLane, accuracy_of
from ci.lanes.onnx.suite import SUITES, OnnxProgram
from ci.lanes.onnx.user_program import OneModelStep, plan_of_model, prepared, program_of, warn_of
from ci.pipeline.accuracy import in_words
from ci.pipeline.findings import not_in_fp16, warnings_of
from ci.pipeline.into_suite import Extension, require_place
from ci.pipeline.lane import update
from ci.pipeline.options import CompileOptions, OneModel
from ci.pipeline.precision import precision_named
from ci.pipeline.steps import Ask, require_done, run_step
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file, replace_text
from provisioning.base.findings import Metric, Severity
from provisioning.base.rendering.text import plural
from provisioning.manifest import soc_named


def compile_model(options: CompileOptions) -> int:
    selection, suite = options.model.selection, options.suite
    assigned = parse_assignments(options.model.options)
    settings = {
        chip: settings_of(assigned, soc=soc_named(chip), embed=options.embed)
        for chip in (*selection.socs, *options.and_socs)
    }
    _require_fitting(options)
    if suite:
        require_place(suite, measured=options.verify and not options.and_socs)
    program = program_of(options.model, with_options=False)
    file, several = Path(program.case.model), len(selection.socs) > 1
    # Nothing remembers what these options make the provider write beside the context.
    writes_more = any("dump" in name or name.endswith("_dir") for name in assigned)
    model = options.model
    if writes_more:
        model = replace(model, work=replace(model.work, cache=False))
    plan = plan_of_model(model, program)
    names = {chip: f"{file.stem}{f'-{chip}' if several else ''}_ctx" for chip in selection.socs}
    with writing_into(options.output.absolute(), selection.store) as (scratch, publish):
        results = run_step(CompileOne(plan, options, settings, names), plan.programs)
        done = [require_done(results[each.name]) for each in plan.programs]
        files = [sorted(result.folder.iterdir()) for result in done if result.folder]
        copies = [Path(shutil.copy(each, scratch)) for mine in files for each in mine]
        written = publish(copies)
        for each, result, mine in zip(plan.programs, done, files, strict=True):
            _say(options, each, names[each.soc], result.facts, _named(written, mine))
    if suite:
        _extend(suite, program, options.model)
    return 0


def _extend(suite: Path, program: OnnxProgram, model: OneModel) -> None:
    """Write the model to the suite, with thresholds and a baseline from what the stage measures."""
    selection = model.selection
    case: dict[str, Any] = {"model": os.path.relpath(program.case.model, suite.parent)}
    if model.calibrate:
        folder = search_path() / model.calibrate
        case["samples"] = os.path.relpath(folder, suite.parent) if folder.is_dir() else model.calibrate
    if program.case.dimensions:
        case["dimensions"] = dict(program.case.dimensions)
    run = {
        "precision": program.run.kind,
        "per_channel": model.per_channel or None,
        "options": dict(parse_assignments(model.options)) or None,
    }
    extension = Extension(
        SUITES,
        suite,
        program.case_name,
        case,
        lambda text: precision_named(text).written,
        run,
        selection.socs,
        selection.profile,
    )
    plan = plan_of(extension.programs, selection, model.work)
    results = compile_programs(plan, new_baseline=True)
    for each in plan.programs:
        for finding in findings_of(each, results[each.name]):
            if finding.severity is Severity.ERROR:
                raise CheckFailed(f"{finding.subject}: {finding.message}", fix=finding.fix)
    measured = [accuracy_of(results[each.name]) for each in plan.programs]
    extension.write([each for each in measured if each is not None], {})
    update(OnnxLane(), plan, {COMPILED: results})


def _require_fitting(options: CompileOptions) -> None:
    if options.and_socs and len(options.model.selection.socs) > 1:
        raise UsageError("--and-soc with several --soc", fix="one --soc, and --and-soc for others")
    if not options.verify and (options.and_socs or options.profile_run):
        flag = "--and-soc" if options.and_socs else "--profile-run"
        raise UsageError(f"{flag} runs the model, and --verify none does not", fix="leave out one of them")


def _named(written: Sequence[Path], files: Sequence[Path]) -> list[Path]:
    """Those of the written files that have the names of these, in the order of writing."""
    names = {path.name for path in files}
    return [path for path in written if path.name in names]


def _sample_source(facts: Mapping[str, Any]) -> str:
    compared = facts["compared"]
    return f"{plural(compared, 'sample')} held back" if compared else "made-up inputs"


@dataclass(frozen=True)
class CompileOne(OneModelStep):
    """The context of a chip, and what belongs to it."""

    kind = "onnx-compile"

    plan: OnnxPlan
    options: CompileOptions
    settings: Mapping[str, Settings]
    names: Mapping[str, str]
    """By chip, the stem of the context's file."""

    def key(self, program: OnnxProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        options = self.options
        assigned = parse_assignments(options.model.options)
        return {
            **super().key(program, memo, environ),
            "name": self.names[program.soc],
            "chips": list(_chips(options, program)),
            "options": dict(assigned),
            "files of options": [memo.roots.name(str(path.absolute())) for path in files_of(assigned)],
            "embed": options.embed,
            "profiled": options.profile_run,
            "verify": "emulator" if options.verify else "none",
        }

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        options, chips, name = self.options, _chips(self.options, program), self.names[program.soc]
        scratch = ask.scratch / program.soc
        common, facts = prepared(program, ask, scratch, verify=options.verify)
        how = {
            "settings": self.settings[program.soc].as_dict(),
            "path": str(ask.into / f"{name}.onnx"),
            "embed": options.embed,
        }
        profile = str(ask.into / f"{name}_profile.csv") if options.profile_run else ""
        reply = ask(do="compile", **common, **how, into=str(scratch), profile=profile)
        if not reply["reload_equal"]:
            error = {
                "kind": "reload",
                "message": f"{options.model.typed}: the reloaded context gives other outputs than the session"
                " that compiled it",
                "fix": f"{session('diagnose', ask.log)}, then report it to the maker of the provider",
                "exit_code": CheckFailed.exit_code,
            }
            raise Refused(error)
        figures: dict[str, str] = {}
        if len(chips) > 1:
            for path in [each for each in ask.into.iterdir() if each.suffix != ".csv"]:
                path.unlink()
            flexible = str(empty_folder(scratch / "flexible"))
            figures = ask(do="flexible", **common, **how, into=flexible, chips=list(chips))["near"]
        kept = {each: facts[each] for each in ("compared", "constant")}
        return {**kept, "reply": reply, "for each": figures}


def _chips(options: CompileOptions, program: OnnxProgram) -> tuple[str, ...]:
    return tuple(dict.fromkeys([program.soc, *options.and_socs]))


def _say(
    options: CompileOptions,
    program: OnnxProgram,
    name: str,
    facts: Mapping[str, Any],
    written: Sequence[Path],
) -> None:
    chips = _chips(options, program)
    warn_of(facts)
    for path in written:
        print(f"{path.stat().st_size:>12,}  {options.output / path.name}")
    if figures := facts["for each"]:
        print(
            f"one flexible context for {', '.join(chips)}, which only a device runs; compiled for each alone:"
        )
        print("".join(f"  {chip} {figure}\n" for chip, figure in figures.items()), end="")
    reply, result = facts["reply"], "not run"
    if near := reply["near"]:
        result = f"reload is bit-equal; {in_words(near)} against float on {_sample_source(facts)}"
    nodes, build = plural(reply["audit"]["nodes"], "node"), reply["record"]["build_id"]
    precision = program.run.precision
    print(f"{chips[0]} {precision}, QNN {build}: {nodes} on HTP, none on the CPU; {result}")
    for warning in warnings_of(near):
        say(f"warning: {warning}")
    if precision == "fp16" and reply["half_floats"] is False:
        say(f"warning: {not_in_fp16(chips[0])}")
    for node in reply["reciprocals"]:
        say(f"warning: {node}: {RECIPROCAL}; {RECIPROCAL_FIX}")
    if ddr := reply["ddr"]:
        print(f"  {ddr['read']:,} bytes read from DDR in a run, {ddr['written']:,} written")
    for path in written:
        if path.name == f"{name}_profile.csv":
            for cost in slowest(path):
                print(f"  {cost}")


@dataclass(frozen=True)
class QuantizeOne(OneModelStep):
    """The quantized model; `name` is that of its file."""

    kind = "onnx-quantize"

    plan: OnnxPlan
    name: str

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        _, facts = prepared(program, ask, ask.scratch, name=self.name)
        for path in (ask.scratch / "quantized").glob(f"{self.name}*"):
            shutil.move(path, ask.into / path.name)
        return {each: facts[each] for each in ("compared", "constant", "inputs", "near", "packages")}


def quantize_model(model: OneModel, output: Path) -> int:
    program, store = program_of(model), model.selection.store
    file, precision = Path(program.case.model), program.run.precision
    if not precision_named(precision).quantized:
        raise UsageError(f"{precision} quantizes nothing", fix="--precision u16u8, u8u8 …")
    name = f"{file.stem}-{precision}"
    plan = plan_of_model(model, program)
    with writing_into(output.absolute(), store) as (scratch, publish):
        # It is the same for all chips.
        result = require_done(run_step(QuantizeOne(plan, name), plan.programs[:1])[plan.programs[0].name])
        facts, folder = result.facts, result.folder
        assert folder is not None
        warn_of(facts)
        files = [Path(shutil.copy(path, scratch)) for path in sorted(folder.iterdir())]
        record = scratch / f"{name}.json"
        replace_text(record, _record(program, files, facts))
        for path in publish([*files, record]):
            print(f"{path.stat().st_size:>12,}  {output / path.name}")
    print(
        f"{precision}: {in_words(facts['near'])} against float on {_sample_source(facts)}, both by ONNX"
        " Runtime on the CPU"
    )
    return 0


def _record(program: OnnxProgram, files: list[Path], facts: Mapping[str, Any]) -> str:
    document = {
        "schema": 1,
        "model": Path(program.case.model).name,
        "files": {path.name: hash_file(path) for path in files},
        "precision": program.run.precision,
        "stack": facts["packages"],
        "inputs": facts["inputs"],
        "accuracy": facts["near"],
    }
    return json.dumps(document, indent=2) + "\n"
