"""Make a suite's program of the one PyTorch model of a command line, and a plan for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from ci.lanes.executorch import BROKEN
from ci.lanes.executorch.findings import (
    failure_in_words,
)
from ci.lanes.executorch.model_options import ExecutorchOptions
from ci.lanes.executorch.steps import (
    LIBRARY_MISSING,
    ExecutorchPlan,
    plan_of,
)
from ci.lanes.executorch.suite import AS_IT_IS, SUITES, ExecutorchCase, ExecutorchProgram, ExecutorchRun
from ci.models.user_model import UserModel
from ci.one_model.into_suite import factory_in
from ci.one_model.model import OneModel
from ci.one_model.packages import needs_of_model
from ci.one_model.product import CompilerDied, NoGraph, require_fp16
from ci.suite.findings import not_passed
from ci.suite.precision import scheme_named
from ci.suite.precision_file import precision_file_of
from ci.suite.programs import NO_SUITE
from ci.suite.runner import ready_runner
from ci.work import Result
from provisioning.base.commands import Fix, leave_out
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.option_fields import suite_values

NOT_RUN = ("--verify", "none")


def programs_of(model: OneModel, suite: Path | None = None) -> list[ExecutorchProgram]:
    programs = [program_of(model, soc, suite) for soc in model.selection.socs]
    require_fp16(programs)
    return programs


def program_of(model: OneModel, soc: str = "", suite: Path | None = None) -> ExecutorchProgram:
    """Return a program for `soc`, or for the first chip. Its model is in no suite; with `suite`, it will be
    in that one."""
    options, user_model = model.options, model.file
    soc = soc or model.selection.soc
    file = precision_file_of(options.precision_file, "executorch")
    scheme = scheme_of(user_model, file.precision if file else model.precision)
    suite_file = suite or user_model.search_path / NO_SUITE
    samples = os.path.relpath(model.samples_folder, suite_file.parent) if model.samples_folder else ""
    factory = factory_in(user_model, suite) if suite else user_model.factory
    run_fields = suite_values(options, "run") | {"precision": scheme, "socs": (soc,)}
    # What the file says takes its place: the content, and not the name, decides what is compiled.
    run_fields.pop("precision_file", None)
    if file:
        run_fields["nodes"] = file.nodes
    if scheme in AS_IT_IS:
        run_fields.pop("calibration", None)
    try:
        run = ExecutorchRun.model_validate(run_fields)
        case_fields = suite_values(options, "case") | {"factory": factory, "samples": samples, "run": (run,)}
        case = ExecutorchCase.model_validate(case_fields)
    except ValidationError as error:
        words = error.errors()[0]["msg"].removeprefix("Value error, ")
        message = f"{user_model.name}, {scheme}: expected {words}"
        raise UsageError(message, fix="correct that field of the run") from error
    needs = needs_of_model(model, SUITES, suite)
    profile = model.selection.profile
    program = ExecutorchProgram(suite_file, user_model.name, case, run, soc, profile, needs)
    return passing_variables(program, model)


def scheme_of(model: UserModel, precision: str | None) -> str:
    """Return the run's scheme; a model that is quantized already keeps its own."""
    if precision is None:
        return "qdq" if model.quantized else "fp16"
    scheme = scheme_named(precision)
    if model.quantized and scheme != "qdq":
        message = f"{model.file} is quantized already, and {scheme} would do it again"
        raise UsageError(message, fix=leave_out("--precision", ", or give the float model"))
    return scheme


def passing_variables(program: ExecutorchProgram, model: OneModel) -> ExecutorchProgram:
    """Return the program with the variables that the command line declares."""
    own = model.own(ExecutorchOptions)
    names = dict.fromkeys((*program.needs.variables, *own.variables))
    return replace(program, needs=replace(program.needs, variables=tuple(names)))


def plan_to_compile(model: OneModel, programs: Sequence[ExecutorchProgram]) -> ExecutorchPlan:
    """Return a plan; it has a runner if something is to run."""
    plan = plan_of_model(model, "compile", programs)
    if not model.options.is_verified or all(program.backend != "htp" for program in plan.programs):
        return plan
    try:
        # Before the compile, which may take minutes.
        runner = ready_runner(os.environ, plan.selection.reports, plan.executorch)
    except EnvironmentLacking as error:
        fix = Fix("{}; or add {}, to write the program without running it", error.fix, NOT_RUN)
        raise EnvironmentLacking(error.message, fix=fix) from error
    return replace(plan, runner=runner, keeps_outputs=model.options.keep_samples)


def plan_of_model(model: OneModel, name: str, programs: Sequence[ExecutorchProgram]) -> ExecutorchPlan:
    programs = [passing_variables(program, model) for program in programs]
    return plan_of(programs, model.selection, model.work, name)


def require_done(program: ExecutorchProgram, plan: ExecutorchPlan, compiled: Mapping[str, Result]) -> Result:
    if (refused := plan.refused.get(program.name)) is not None:
        if refused.rule == LIBRARY_MISSING:
            raise EnvironmentLacking(refused.message, fix=refused.fix)
        # Nothing was compiled, so there is no cause to search for.
        raise NoGraph(refused.message, fix=refused.fix, exit_code=CheckFailed.exit_code)
    result = compiled[program.name]
    for finding in not_passed([program], compiled):
        sys.stderr.write(f"warning: {finding.message}: {finding.fix}\n")
    if failure := result.failure:
        message, fix = failure_in_words(program, failure)
        if failure.kind == "suite" and program.suite.name == NO_SUITE:
            raise UsageError(message, fix="correct --keep-on-cpu (cpu_nodes) or --precision-file (nodes)")
        if not failure.exported:
            raise NoGraph(message, fix=fix, exit_code=failure.exit_code)
        died = CompilerDied(message, fix=fix, exit_code=failure.exit_code)
        died.crashed, died.step = failure.is_own_crash, failure.details.get(BROKEN)
        raise died
    return result


def stem_of(model: OneModel, program: ExecutorchProgram) -> str:
    return f"{model.file.name}-{program.soc}-{program.run.name}"
