"""`compile` and `quantize` of one model: a suite of one, its files, and the search for what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci.explain.proofs import explained, fix_of
from ci.one_model.into_suite import extension_of, require_place
from ci.one_model.model import CHECKPOINT, OneModel
from ci.one_model.output import writing_into
from ci.one_model.product import (
    ELSEWHERE,
    Compiles,
    History,
    Product,
    judged,
    require_fp16,
    write_products,
)
from ci.one_model.report import ModelReport, reported
from ci.suite.stage import MeasuredValues, of_program, write_accepted
from provisioning.base.command_line import show_error
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError
from provisioning.base.files import disk_errors
from provisioning.base.units import aligned


def compile_model(
    model: OneModel, suite: Path | None, report: ModelReport, history: History | None = None
) -> int:
    """Write a program for each chip; with `suite`, write the model to that suite too. What is in `history` is
    not said again."""
    history = history or History()
    if suite:
        require_place(suite, measured=model.gives_figures)
    lane: Compiles = model.lane.product
    # What cannot be compiled is refused before a folder is made.
    programs = lane.programs_of(model)
    for program in programs:
        require_fp16(program)
    output = model.output.absolute()
    with disk_errors(ELSEWHERE), writing_into(output, model.selection.store) as (new, publish):
        extension = extension_of(lane, model, suite) if suite else None
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
                error.fix = fix_of(error, model, plan.programs[0].soc, history)
            raise
        write_products(products, model, new, publish, report, history)
        if lacking := next((product.unverified for product in products if product.unverified), None):
            raise lacking
        if extension:
            row = lane.suite_row(plan, results)
            extension.write(list(row.measured.figures.values()), row.fields)
            write_accepted(model.lane.suites, plan, MeasuredValues(recorded=row.measured.recorded))
    return judged(explained(model, plan.programs, products, history), report)


def compile_precisions(model: OneModel, precisions: Sequence[str], suite: Path | None) -> int:
    """Compile for each precision, whatever becomes of the others, and say all in a table."""
    if model.lane == CHECKPOINT:
        raise UsageError(
            "a checkpoint is compiled for one precision at a time",
            fix="one --precision for each folder",
        )
    lane: Compiles = model.lane.product
    for precision in precisions:
        # What cannot be meant is refused before the first is compiled.
        lane.programs_of(replace(model, precision=precision))
    rows: list[Mapping[str, str]] = []
    errors: list[str] = []
    history, code = History(), 0
    for precision in precisions:
        at = replace(model, precision=precision)

        def work(report: ModelReport, at: OneModel = at, named: str = precision) -> int:
            done = compile_model(at, suite, report, history)
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
        products = quantized(model)
        write_products(products, model, new, publish, report, History())
    return judged(products, report)
