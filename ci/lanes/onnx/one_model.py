"""`compile` and `quantize` of one .onnx: remembered, and written to the user's folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.engine.memo import Memo
from ci.engine.output import writing_into
from ci.lanes.onnx.compile import environment, key, plan_of
from ci.lanes.onnx.events import slowest
from ci.lanes.onnx.findings import findings_of
from ci.lanes.onnx.graph import RECIPROCAL, RECIPROCAL_FIX
from ci.lanes.onnx.options import Settings, files_of, parse_assignments, settings_of
from ci.lanes.onnx.orders import Steps, say, search_path, step
from ci.lanes.onnx.stage import compile_programs, figures_of, update
from ci.lanes.onnx.suite import SUITES, Program
from ci.lanes.onnx.user_program import memory, prepared, program_of, remembered
from ci.pipeline.findings import hardly_alike, not_in_fp16
from ci.pipeline.into_suite import Extension, require_place
from ci.pipeline.options import Compile, OneModel
from ci.pipeline.precision import precision_named
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file, replace_text
from provisioning.base.findings import Severity
from provisioning.base.rendering.text import plural
from provisioning.manifest import soc_named


def compile_model(options: Compile) -> int:
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
    reuse = options.model.work.cache and not writes_more
    with (
        writing_into(options.output.absolute(), selection.store) as (scratch, publish),
        memory(file, selection.store, "onnx-compile", reuse=reuse) as memo,
    ):
        compiled = []
        for chip in selection.socs:
            name = f"{file.stem}{f'-{chip}' if several else ''}_ctx"
            one = replace(program, soc=chip)
            compiled.append(Compiled.of(options, one, memo, settings[chip], scratch / chip, name))
        written = publish([Path(shutil.copy(path, scratch)) for each in compiled for path in each.files])
        for each in compiled:
            names = {path.name for path in each.files}
            each.say([path for path in written if path.name in names], options.output)
    if suite:
        _extend(suite, program, options.model)
    return 0


def _extend(suite: Path, program: Program, model: OneModel) -> None:
    """Write the model to the suite, with thresholds and a baseline from what the stage measures."""
    selection = model.selection
    case: dict[str, Any] = {"model": os.path.relpath(program.case.model, suite.parent)}
    if model.calibrate:
        folder = search_path() / model.calibrate
        case["calibrate"] = os.path.relpath(folder, suite.parent) if folder.is_dir() else model.calibrate
    if program.case.dimensions:
        case["dimensions"] = dict(program.case.dimensions)
    run = {
        "precision": program.run.precision,
        "per_channel": model.per_channel or None,
        "options": dict(parse_assignments(model.options)) or None,
    }
    extension = Extension(
        SUITES,
        suite,
        program.case_name,
        case,
        "precision",
        lambda text: precision_named(text).name,
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
    extension.write([*figures_of(results).values()], {})
    update(plan, results)


def _require_fitting(options: Compile) -> None:
    if options.and_socs and len(options.model.selection.socs) > 1:
        raise UsageError("--and-soc with several --soc", fix="one --soc, and --and-soc for others")
    if not options.verify and (options.and_socs or options.profile_run):
        flag = "--and-soc" if options.and_socs else "--profile-run"
        raise UsageError(f"{flag} runs the model, and --verify none does not", fix="leave out one of them")


def _whose(facts: Mapping[str, Any]) -> str:
    compared = facts["compared"]
    return f"{plural(compared, 'sample')} held back" if compared else "made-up inputs"


@dataclass(frozen=True, slots=True)
class Compiled:
    """One chip's context, compiled now or earlier."""

    program: Program
    chips: tuple[str, ...]
    name: str
    facts: Mapping[str, Any]
    files: tuple[Path, ...]

    @classmethod
    def of(
        cls,
        options: Compile,
        program: Program,
        memo: Memo,
        settings: Settings,
        scratch: Path,
        name: str,
    ) -> Compiled:
        chips = tuple(dict.fromkeys([program.soc, *options.and_socs]))
        assigned = parse_assignments(options.model.options)
        inputs = {
            **key(program, memo.roots, environment()),
            "name": name,
            "chips": list(chips),
            "options": dict(assigned),
            "files of options": [memo.roots.name(str(path.absolute())) for path in files_of(assigned)],
            "embed": options.embed,
            "profiled": options.profile_run,
            "verify": "emulator" if options.verify else "none",
        }

        def work(step_of: Steps, log: Path, folder: Path) -> dict[str, Any]:
            """Put the context and what belongs to it into the folder."""
            order, facts = prepared(program, step_of, log, scratch, verify=options.verify)
            context = folder / f"{name}.onnx"
            how = {"settings": settings.as_dict(), "path": str(context), "embed": options.embed}
            with step(f"compiling for {chips[0]}, running and reloading it"):
                profile = str(folder / f"{name}_profile.csv") if options.profile_run else ""
                reply = order("compile", scratch, profile=profile, **how)
            if not reply["reload_equal"]:
                raise CheckFailed(
                    f"{options.model.typed}: the reloaded context gives other outputs than the session that"
                    " compiled it",
                    fix=f"{session('diagnose', log)}, then report it to the maker of the provider",
                )
            figures: dict[str, float] = {}
            if len(chips) > 1:
                for path in [each for each in folder.iterdir() if each.suffix != ".csv"]:
                    path.unlink()
                with step(f"compiling for each of {', '.join(chips)}, and for all into one file"):
                    figures = order("flexible", scratch / "flexible", chips=list(chips), **how)["sqnr_db"]
            return {"compared": facts["compared"], "reply": reply, "for each": figures}

        subject = f"{options.model.typed} for {program.soc}"
        facts, folder = remembered(options.model.work, memo, subject, inputs, work, scratch.parent)
        return cls(program, chips, name, facts, tuple(sorted(folder.iterdir())))

    def say(self, written: list[Path], output: Path) -> None:
        facts = self.facts
        for path in written:
            print(f"{path.stat().st_size:>12,}  {output / path.name}")
        if figures := facts["for each"]:
            print(
                f"one flexible context for {', '.join(self.chips)}, which only a device runs; compiled for"
                " each alone:"
            )
            print("".join(f"  {chip} {figure:.1f} dB SQNR\n" for chip, figure in figures.items()), end="")
        reply, result = facts["reply"], "not run"
        if near := reply["near"]:
            result = f"reload is bit-equal; {near['sqnr_db']:.1f} dB SQNR against float on {_whose(facts)}"
        nodes, build = plural(reply["audit"]["nodes"], "node"), reply["record"]["build_id"]
        precision = self.program.run.precision
        print(f"{self.chips[0]} {precision}, QNN {build}: {nodes} on HTP, none on the CPU; {result}")
        if near and (warning := hardly_alike(near)):
            say(f"warning: {warning}")
        if precision == "fp16" and reply["half_floats"] is False:
            say(f"warning: {not_in_fp16(self.chips[0])}")
        for node in reply["reciprocals"]:
            say(f"warning: {node}: {RECIPROCAL}; {RECIPROCAL_FIX}")
        if ddr := reply["ddr"]:
            print(f"  {ddr['read']:,} bytes read from DDR in a run, {ddr['written']:,} written")
        profiles = [path for path in written if path.name == f"{self.name}_profile.csv"]
        for path in profiles:
            for cost in slowest(path):
                print(f"  {cost}")


def quantize_model(model: OneModel, output: Path) -> int:
    program, store = program_of(model), model.selection.store
    file, precision = Path(program.case.model), program.run.precision
    if not precision_named(precision).quantized:
        raise UsageError(f"{precision} quantizes nothing", fix="--precision u16u8, u8u8 …")
    name = f"{file.stem}-{precision}"
    with (
        writing_into(output.absolute(), store) as (scratch, publish),
        memory(file, store, "onnx-quantize", reuse=model.work.cache) as memo,
    ):

        def work(step_of: Steps, log: Path, folder: Path) -> dict[str, Any]:
            _, facts = prepared(program, step_of, log, scratch, name=name)
            for path in (scratch / "quantized").glob(f"{name}*"):
                shutil.move(path, folder / path.name)
            return {each: facts[each] for each in ("compared", "inputs", "near", "packages")}

        inputs = key(program, memo.roots, environment())
        facts, folder = remembered(model.work, memo, f"{model.typed} in {precision}", inputs, work, scratch)
        files = [Path(shutil.copy(path, scratch)) for path in sorted(folder.iterdir())]
        record = scratch / f"{name}.json"
        replace_text(record, _record(program, files, facts))
        for path in publish([*files, record]):
            print(f"{path.stat().st_size:>12,}  {output / path.name}")
    print(
        f"{precision}: {facts['near']['sqnr_db']:.1f} dB SQNR against float on {_whose(facts)}, both by ONNX"
        " Runtime on the CPU"
    )
    return 0


def _record(program: Program, files: list[Path], facts: Mapping[str, Any]) -> str:
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
