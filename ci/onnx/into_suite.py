"""`compile --suite` of an .onnx: the model in a suite, measured as the suite measures it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.engine.repository import repository_of
from ci.onnx.findings import findings_of
from ci.onnx.options import parse_assignments
from ci.onnx.stage import Plan, baselines_of, compile_programs, figures_of, update
from ci.onnx.suite import Program, Suite
from ci.suites.baseline import load_tolerances
from ci.suites.into_suite import suite_with, workflow_for
from ci.suites.own_packages import needs_of
from ci.suites.precision import precision_named
from ci.suites.thresholds import derived, rewritten
from ci.suites.user_model import user_model
from provisioning.base import toml
from provisioning.base.command_line import Parser
from provisioning.base.documents import parse
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import replace_text
from provisioning.base.findings import Severity
from provisioning.base.settings import Selection


def require_run(args: argparse.Namespace) -> None:
    if args.verify == "none" or args.and_soc:
        raise UsageError(
            "--suite writes thresholds from what the emulator measured, and nothing is measured here",
            remedy="leave out --suite, or --verify and --and-soc",
        )


def extend(
    suite: Path,
    model: Path,
    precision: str,
    dimensions: Mapping[str, int],
    args: argparse.Namespace,
    selection: Selection,
) -> None:
    """Write the model to the suite, with thresholds and a baseline from what its programs reach."""
    name = user_model(str(model), model.parent).name
    case: dict[str, Any] = {"model": os.path.relpath(model, suite.parent)}
    if args.calibrate:
        case["calibrate"] = _calibrate(args.calibrate, suite)
    if dimensions:
        case["dimensions"] = dict(dimensions)
    run = {
        "precision": precision,
        "per_channel": args.per_channel or None,
        "options": dict(parse_assignments(args.option)) or None,
    }

    def same(text: str) -> str:
        return precision_named(text).name

    text, number = suite_with(suite, name, case, "precision", same, run, selection.socs)
    extended = parse(toml.loads(text), Suite, suite)
    of_suite, needs = extended.cases[name], needs_of(suite, extended.requirements, extended.project)
    mine = of_suite.runs[number]
    programs = [Program(suite, name, of_suite, mine, soc, selection.profile, needs) for soc in mine.socs]
    plan = Plan(tuple(programs), baselines_of(programs, selection), selection.reports.absolute() / "onnx")
    args.keep = False
    results = compile_programs(args, plan, selection)
    for program in programs:
        for finding in findings_of(program, results[program.name]):
            if finding.severity is Severity.ERROR:
                raise CheckFailed(f"{finding.subject}: {finding.message}", remedy=finding.remedy)
    figures = list(figures_of(results).values())
    thresholds = derived(mine.held, mine.thresholds, figures, load_tolerances().sqnr_margin_db)
    replace_text(suite, rewritten(text, {(name, number): thresholds}))
    update(plan, results)
    held = ", ".join(f"{figure} = {value:g}" for figure, value in thresholds.items())
    sys.stdout.write(f"{suite}: case {name}, run {mine.name} for {', '.join(mine.socs)}: {held}\n")
    sys.stdout.write("a workflow that holds pull requests to it:\n\n")
    sys.stdout.write(workflow_for(suite, repository_of(suite)))


def _calibrate(source: str, suite: Path) -> str:
    folder = Parser.user_folder() / source
    return os.path.relpath(folder, suite.parent) if folder.is_dir() else source
