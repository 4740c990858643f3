"""One model named on the command line, as a program like those of a suite."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ci.engine.work import Result
from ci.lanes.executorch.judge import failure_in_words
from ci.lanes.executorch.stage import Plan, plan_of
from ci.lanes.executorch.suite import Case, Program, Run
from ci.pipeline.models.user_model import UserModel, user_model
from ci.pipeline.precision import scheme_named
from ci.pipeline.suite import NO_SUITE
from provisioning.base.command_line import Parser
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.settings import Selection, user_path
from provisioning.manifest import soc_named


def pytorch_model(model: str) -> UserModel:
    """The user's model. Modules are searched first in its own folder, or in the current one."""
    named = user_model(model, Parser.user_folder())
    if named.onnx:
        raise UsageError(
            f"{model}: this command takes PyTorch models",
            remedy="the commands of `onnx` take an .onnx; export the PyTorch model as a .pt2",
        )
    return named


def scheme_of(named: UserModel, precision: str | None) -> str:
    """A model that is quantized already is taken as it is."""
    if precision is None:
        return "qdq" if named.quantized else "fp16"
    scheme = scheme_named(precision)
    if named.quantized and scheme != "qdq":
        raise UsageError(
            f"{named.file} is quantized already, and {scheme} would do it again",
            remedy="leave --precision out, or give the float model",
        )
    return scheme


def program_of(
    named: UserModel,
    scheme: str,
    soc: str,
    selection: Selection,
    *,
    samples: Path | None = None,
    backend: str | None = None,
    cpu_nodes: tuple[str, ...] = (),
    suite: Path | None = None,
) -> Program:
    """The program of a model that no suite has, or of one that `suite` will have."""
    soc_named(soc)
    suite = suite or named.search_path / NO_SUITE
    try:
        run = Run.model_validate(
            {
                "scheme": scheme,
                "backend": backend,
                "socs": (soc,),
                "cpu_nodes": cpu_nodes,
            }
        )
        case = Case.model_validate(
            {
                "factory": named.factory,
                "samples": os.path.relpath(samples, suite.parent) if samples else "",
                "run": (run,),
            }
        )
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(
            f"{named.name}, {scheme}: expected {message}", remedy="see docs/suites.md"
        ) from error
    return Program(suite, named.name, case, case.runs[0], soc, selection.profile)


def samples_folder(calibrate: str | None) -> Path | None:
    """The folder that --calibrate names."""
    if not calibrate:
        return None
    folder = user_path(calibrate, "--calibrate", str(Parser.user_folder())).absolute()
    if not folder.is_dir():
        raise UsageError(f"--calibrate {calibrate} is not a folder", remedy="name a folder of samples")
    return folder


def program_named(args: argparse.Namespace, selection: Selection) -> Program:
    """The program of MODEL, --precision and --calibrate."""
    named = pytorch_model(args.model)
    scheme, samples = scheme_of(named, args.precision), samples_folder(args.calibrate)
    return program_of(named, scheme, selection.soc, selection, samples=samples)


def plan_of_models(
    args: argparse.Namespace, selection: Selection, name: str, programs: Sequence[Program], **settings: Any
) -> Plan:
    """The plan for models that no suite has. `settings` replace those of the flags."""
    plan = plan_of(args, selection, os.environ, name, programs)
    return replace(plan, settings=replace(plan.settings, errors_follow=True, **settings))


def require_done(program: Program, plan: Plan, compiled: Mapping[str, Result]) -> Result:
    if (refused := plan.refused.get(program.name)) is not None:
        remedy = "leave --backend out" if program.backend == "gpu" else refused.remedy
        raise CheckFailed(refused.message, remedy=remedy)
    result = compiled[program.name]
    if failure := result.failure:
        message, remedy = failure_in_words(program, failure)
        if failure.kind == "factory" and not failure.remedy:
            remedy = "correct the model or the samples: docs/compile.md says what they may be"
        raise CheckFailed(message, remedy=remedy)
    return result
