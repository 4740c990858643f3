"""One model named on the command line, as a program like those of a suite."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ci.lanes.executorch.compile import ExecutorchPlan
from ci.lanes.executorch.judge import failure_in_words
from ci.lanes.executorch.stage import plan_of
from ci.lanes.executorch.suite import AS_IT_IS, ExecutorchCase, ExecutorchProgram, ExecutorchRun
from ci.models.user_model import UserModel, user_model
from ci.outcome import Result
from ci.suite.findings import not_passed
from ci.suite.into_suite import factory_in
from ci.suite.one_model import OneModel
from ci.suite.precision import scheme_named
from ci.suite.precision_file import precision_file_of
from ci.suite.programs import NO_SUITE
from provisioning.base.command_line import Parser
from provisioning.base.commands import leave_out
from provisioning.base.errors import CheckFailed, ToolkitError, UnknownName, UsageError
from provisioning.base.settings import user_path
from provisioning.manifest import soc_named


def pytorch_model(model: OneModel) -> UserModel:
    """The user's model. Modules are searched first in its own folder, or in the current one."""
    return user_model(model.typed, Parser.user_folder())


def scheme_of(named: UserModel, precision: str | None) -> str:
    """A model that is quantized already is taken as it is."""
    if precision is None:
        return "qdq" if named.quantized else "fp16"
    scheme = scheme_named(precision)
    if named.quantized and scheme != "qdq":
        message = f"{named.file} is quantized already, and {scheme} would do it again"
        raise UsageError(message, fix=leave_out("--precision", ", or give the float model"))
    return scheme


def program_of(
    model: OneModel, soc: str = "", cpu_nodes: tuple[str, ...] = (), suite: Path | None = None
) -> ExecutorchProgram:
    """Of a model that no suite has, or that `suite` will have; `soc` if not for the first chip."""
    named, samples, soc = pytorch_model(model), samples_folder(model), soc or model.selection.soc
    file = precision_file_of(model, "executorch")
    scheme = scheme_of(named, file.precision if file else model.precision)
    factory = factory_in(named, suite) if suite else named.factory
    soc_named(soc)
    suite = suite or named.search_path / NO_SUITE
    request: dict[str, Any] = {"precision": scheme, "backend": model.backend, "socs": (soc,)}
    request |= {"cpu_nodes": cpu_nodes, **({"nodes": file.nodes} if file else {})}
    request |= {"calibration": model.calibration} if scheme not in AS_IT_IS else {}
    try:
        run = ExecutorchRun.model_validate(request)
        place = os.path.relpath(samples, suite.parent) if samples else ""
        case = ExecutorchCase.model_validate(
            {"factory": factory, "samples": place, "inferences": model.inferences, "run": (run,)}
        )
    except ValidationError as error:
        expected = error.errors()[0]["msg"].removeprefix("Value error, ")
        message = f"{named.name}, {scheme}: expected {expected}"
        raise UsageError(message, fix="correct that field of the run") from error
    return passing(ExecutorchProgram(suite, named.name, case, run, soc, model.selection.profile), model)


def samples_folder(model: OneModel) -> Path | None:
    if not model.calibrate:
        return None
    folder = user_path(model.calibrate, "--calibrate", str(Parser.user_folder())).absolute()
    if not folder.is_dir():
        message = f"--calibrate {model.calibrate} is not a folder"
        folders = [path.name for path in folder.parent.glob("*/")]
        if get_close_matches(folder.name, folders, n=1):
            raise UnknownName(message, folder.name, folders)
        raise UsageError(message, fix="name a folder of samples")
    return folder


def passing(program: ExecutorchProgram, model: OneModel) -> ExecutorchProgram:
    names = dict.fromkeys((*program.needs.variables, *model.variables))
    return replace(program, needs=replace(program.needs, variables=tuple(names)))


def plan_of_model(
    model: OneModel, name: str, programs: Sequence[ExecutorchProgram], *, quantize_only: bool = False
) -> ExecutorchPlan:
    programs = [passing(program, model) for program in programs]
    plan = plan_of(programs, model.selection, model.work, name)
    return replace(plan, errors_follow=True, quantize_only=quantize_only)


def require_done(program: ExecutorchProgram, plan: ExecutorchPlan, compiled: Mapping[str, Result]) -> Result:
    if (refused := plan.refused.get(program.name)) is not None:
        fix = "leave --backend out" if program.backend == "gpu" else refused.fix
        raise CheckFailed(refused.message, fix=fix)
    result = compiled[program.name]
    for finding in not_passed([program], compiled):
        sys.stderr.write(f"warning: {finding.message}: {finding.fix}\n")
    if failure := result.failure:
        message, fix = failure_in_words(program, failure)
        raise ToolkitError(message, fix=fix, exit_code=failure.exit_code)
    return result


def stack_of(build_id: str = "") -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in ("executorch", "torch")}
    return {**packages, **({"qnn": build_id} if build_id else {})}
