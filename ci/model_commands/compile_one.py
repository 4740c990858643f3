"""`compile` and `quantize` of one model: what is written, and what is said of it."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.explain.cause import SECONDS as SEARCH_SECONDS
from ci.explain.proofs import outcome_with_cause, proofs_of
from ci.models.other_python import export_with
from ci.one_model.into_suite import Extension, require_place
from ci.one_model.model import CHECKPOINT, OneModel, of_lane
from ci.one_model.output import Publish, document_of, keep_origins, origin_of, require_own, writing_into
from ci.one_model.product import ELSEWHERE, Compiles, Outcome, Product, cells_of
from ci.one_model.report import ModelReport, reported
from ci.suite.precision import written_name
from ci.suite.programs import Program
from ci.suite.stage import MeasuredValues, of_program, write_accepted
from provisioning.base import answer
from provisioning.base.command_line import Parser, show_error
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError, exit_code_of
from provisioning.base.files import disk_errors
from provisioning.base.rendering.terminal import readable
from provisioning.base.settings import DEFAULT_SOC
from provisioning.base.stage_run import Places
from provisioning.base.units import aligned
from provisioning.known_faults import NO_FIX
from provisioning.manifest import soc_named


@dataclass(slots=True)
class Told:
    """What a command has said of its model, at any precision."""

    words: set[str] = field(default_factory=set)
    searched: bool = False
    """Whether it has searched for a cause or a fix: that takes minutes, so the other precisions get none."""


def compile_model(model: OneModel, suite: Path | None, report: ModelReport, told: Told | None = None) -> int:
    """Write a program for each chip; with `suite`, write the model to that suite too. What is in `told` stays
    unsaid."""
    told = told or Told()
    if suite:
        require_place(suite, measured=model.gives_figures)
    lane: Compiles = of_lane(model, "product")
    # What cannot be compiled is refused before a folder is made.
    programs = lane.programs_of(model)
    for program in programs:
        require_fp16(program)
    output, typed = model.output.absolute(), model.typed
    with disk_errors(ELSEWHERE), writing_into(output, model.selection.store) as (new, publish):
        if model.python:
            model = report.model = _exported(model, model.python, new, publish)
            programs = lane.programs_of(model)
        extension = _extension(lane, model, suite) if suite else None
        if extension:
            programs = extension.programs
        plan = lane.planned(model, programs)
        try:
            results = lane.results_of(model, plan)
            products = [
                lane.product_of(model, plan, program, of_program(program, results))
                for program in plan.programs
            ]
        except ToolkitError as error:
            if error.exit_code == CheckFailed.exit_code and len(plan.programs) == 1:
                error.fix = _fix_of(error, model, plan.programs[0].soc, told)
            raise
        _write(products, replace(model, typed=typed), new, publish, report, told)
        if lacking := next((product.unverified for product in products if product.unverified), None):
            raise lacking
        if extension:
            row = lane.suite_row(plan, results)
            extension.write(list(row.measured.figures.values()), row.fields)
            write_accepted(model.lane.suites, plan, MeasuredValues(recorded=row.measured.recorded))
    if _searches(model, told):
        products = _explained(model, plan.programs, products, told)
    return _shown(products, report)


def _searches(model: OneModel, told: Told) -> bool:
    return model.search and not told.searched and model.lane.has("explain")


def _fix_of(error: ToolkitError, model: OneModel, soc: str, told: Told) -> str:
    """Of a program that does not compile or run."""
    if model.verify and _searches(model, told):
        told.searched = True
        tried = proofs_of(model, soc, Outcome(error.message), None)
        return tried.fix if tried.helping or error.fix == NO_FIX else error.fix
    if error.fix == NO_FIX and model.lane.has("explain"):
        return Fix("{} tries fixes", model.command("compile", soc, "-o", "out"))
    return error.fix


def _explained(
    model: OneModel, programs: Sequence[Program], products: Sequence[Product], told: Told
) -> list[Product]:
    """The products with causes and fixes in their errors. A cause of what is no error is only said."""
    search_ends = time.monotonic() + SEARCH_SECONDS
    explained: list[Product] = []
    for program, product in zip(programs, products, strict=True):
        outcome, cause = outcome_with_cause(model, program, product.outcome, product.suspects, search_ends)
        told.searched |= bool(outcome.wrong or cause)
        explained.append(replace(product, outcome=outcome))
        if cause and not outcome.wrong:
            sys.stdout.write(f"{cause.in_words()}\n")
    return explained


def _exported(model: OneModel, python: Path, scratch: Path, publish: Publish) -> OneModel:
    """The .pt2 that this Python exports, which then lies in the output."""
    exported = export_with(python, model.file, model.samples_folder, scratch, 0, model.work.timeout)
    require_own([model.output / exported.name], model.typed)
    (path,) = publish([exported])
    keep_origins([path], model.typed)
    sys.stderr.write(f"{python} exported {path}\n")
    return replace(model, typed=str(path))


def require_fp16(program: Program) -> None:
    """Refuse floats for a chip that has none of 16 bits."""
    if program.run.kind == "fp16" and not soc_named(program.soc).fp16:
        raise UsageError(
            f"{program.soc} has no fp16: QNN refuses it, or computes it in float32",
            fix=Fix("{} or 16a8w; or a chip that has fp16: --soc {}", ("--precision", "8a8w"), DEFAULT_SOC),
        )


def compile_precisions(model: OneModel, precisions: Sequence[str], suite: Path | None) -> int:
    """Compile for each precision, whatever becomes of the others, and say all in a table."""
    if model.lane == CHECKPOINT:
        raise UsageError(
            "a checkpoint is compiled for one precision at a time",
            fix="one --precision for each folder",
        )
    lane: Compiles = of_lane(model, "product")
    for precision in precisions:
        # What cannot be meant is refused before the first is compiled.
        lane.programs_of(replace(model, precision=precision))
    rows: list[Mapping[str, str]] = []
    errors: list[str] = []
    told, code = Told(), 0
    for precision in precisions:
        at = replace(model, precision=precision)

        def work(report: ModelReport, at: OneModel = at, named: str = precision) -> int:
            done = compile_model(at, suite, report, told)
            rows.extend({"precision": named, **cells} for cells in report.cells)
            return done

        try:
            code = max(code, reported("compile", at, at.named, work))
        except ToolkitError as error:
            show_error(error)
            code = max(code, error.exit_code)
            errors.append(f"{precision}: {error.message.splitlines()[0]}")
    if rows:
        print("\n".join(aligned([tuple(rows[0]), *(tuple(row.values()) for row in rows)])))
    if errors:
        print("\n".join(errors))
    return code


def quantize_model(
    model: OneModel, quantized: Callable[[OneModel], Sequence[Product]], report: ModelReport
) -> int:
    with (
        disk_errors(ELSEWHERE),
        writing_into(model.output.absolute(), model.selection.store) as (new, publish),
    ):
        exported = _exported(model, model.python, new, publish) if model.python else model
        report.model = exported
        products = quantized(exported)
        _write(products, model, new, publish, report, Told())
    return _shown(products, report)


def _shown(products: Sequence[Product], report: ModelReport) -> int:
    """The exit code, after what is wrong."""
    places = Places.of()
    wrong = [places.located(finding) for product in products for finding in product.outcome.wrong]
    answer.add_findings(wrong)
    for finding in wrong:
        error = CheckFailed(f"{finding.subject}: {finding.message}", fix=finding.fix)
        report.fail(error.message, error.fix, finding.rule, finding.place, finding.edit)
        show_error(error)
    return exit_code_of(good=not wrong)


def _write(
    products: Sequence[Product],
    model: OneModel,
    scratch: Path,
    publish: Publish,
    report: ModelReport,
    told: Told,
) -> None:
    """Put the files of all into the output at once, and say what they are. Their records name the model's
    origin, and no other model's file is overwritten."""
    output, typed = model.output, model.typed
    require_own([output / name for product in products for name in product.files], typed)
    for product in products:
        for name, content in product.files.items():
            if isinstance(content, Path):
                shutil.copyfile(content, scratch / name)
            else:
                (scratch / name).write_text(content, encoding="utf-8")
            if name.endswith(".json") and "schema" in (record := document_of(scratch / name)):
                (scratch / name).write_text(
                    json.dumps({**record, "origin": origin_of(typed, output)}, indent=2) + "\n"
                )
    written = publish([scratch / name for product in products for name in product.files])
    report.wrote(path for path in written if path.suffix != ".json")
    for product in products:
        report.warn(product.warnings)
        if product.chips:
            report.cells.append({"chip": product.chips, **cells_of(product.outcome)})
        for path in {*product.stale} - {*written}:
            path.unlink(missing_ok=True)
        new = [warning for warning in product.warnings if warning not in told.words]
        sys.stderr.write(readable("".join(f"warning: {warning}\n" for warning in new), sys.stderr))
        told.words.update(new)
        mark = f"{'✗' if product.outcome.wrong else '✓'} " if product.outcome.figures else ""
        files = [path for path in written if path.name in product.files]
        lines = [
            *(f"{mark}{line}" for line in product.words[:1]),
            *(f"{path.stat().st_size:>12,}  {output / path.name}" for path in files),
            *product.words[1:],
            *(f"  {line}" for line in product.more if model.verbose),
        ]
        sys.stdout.write(readable("".join(f"{line}\n" for line in lines), sys.__stdout__ or sys.stdout))
        # The search for a cause may take a minute.
        sys.stdout.flush()
        answer.add_findings(map(Places.of().located, product.findings))
    folder = Parser.user_folder() / output
    answer.add(programs=[_answered(folder, product) for product in products])


def _answered(folder: Path, product: Product) -> dict[str, object]:
    """A product's record, with its files and what is said of it."""
    found = (document_of(folder / name) for name in product.files if name.endswith(".json"))
    record = next((document for document in found if "soc" in document), {})
    files = [str(folder / name) for name in product.files]
    return {
        **record,
        **product.facts,
        "files": files,
        "words": [*product.words, *product.more],
        "warnings": [*product.warnings],
    }


def _extension(lane: Compiles, model: OneModel, suite: Path) -> Extension:
    """The run that the suite is to have."""
    program = lane.programs_of(model, suite)[0]
    case = program.case.model_dump(mode="json", exclude_defaults=True, exclude={"runs"})
    values = program.run.model_dump(mode="json", exclude_defaults=True)
    run = {name: values.get(name) for name in lane.FIELDS}
    if precision := run.get("precision"):
        run["precision"] = written_name(precision)
    socs, profile = model.selection.socs, model.selection.profile
    return Extension(model.lane.suites, suite, program.case_name, case, run, socs, profile)
