"""`divergence`: find the operator whose output on the emulator differs from the quantized model's.

It first tries a program that returns the outputs of all operators. That changes what the compiler fuses, and
may hide the error: then it compiles a program for each operator that ends there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ci.model_commands.typed_model import add_model, model_lane, one_model_of
from ci.models.not_models import MODEL_HELP
from ci.one_model.model import OneModel, require_one_chip
from ci.suite.lane_head import DIVERGENCE
from ci.suite.options import Choice, add_choice, choice_of
from provisioning.base import answer
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError, exit_code_of
from provisioning.base.parser import Parser

if TYPE_CHECKING:
    from ci.explain.divergence import DivergenceResult, DivergentOperator
    from ci.one_model.report import ModelReport
    from ci.suite.programs import Program

EXAMPLES = """\
  qnn-ci divergence net.py:model --precision 16a8w --soc SM8650
  qnn-ci divergence model.onnx --precision 16a8w --calibrate samples/
  qnn-ci divergence model.onnx --precision 16a8w --write fault.py
  qnn-ci divergence --suite models.toml -k net/16a8w/SM8650
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, DIVERGENCE, f"{MODEL_HELP}; without it, a suite's program", optional=True)
    add_choice(parser, DIVERGENCE)


def run(args: argparse.Namespace) -> int:
    from ci.one_model.report import report_work

    model, choice = one_model_of(args, DIVERGENCE), choice_of(args)
    require_one_chip(model.selection)
    script = None
    if model.options.write:
        script = Parser.user_folder() / model.options.write
        require_script(script, "--write")

    def work(report: ModelReport) -> int:
        return find_divergence(model, choice, script, report)

    return report_work(DIVERGENCE, model, [*choice.words, *model.traits], work)


def require_script(path: Path, flag: str) -> None:
    """Refuse to overwrite a file that this command did not write as a script."""
    from ci.explain.operator_script import EXIT_CODES

    new = path.parent.is_dir() and not path.exists()
    own = path.is_file() and EXIT_CODES in path.read_text(encoding="utf-8", errors="replace")
    if path.suffix != ".py" or not (new or own):
        message = f"{flag} {path}: expected a new Python file, or an earlier script of this command"
        raise UsageError(message, fix=f"{flag} fault.py, or another name")


def find_divergence(model: OneModel, choice: Choice, script: Path | None, report: ModelReport) -> int:
    """Search for the operator, print what was found and what to do next, and write the script if the user
    asks for one."""
    from ci.explain.divergence_text import fix_of, text_lines
    from ci.work import to_json
    from provisioning.known_faults import NO_FIX

    program = model_lane(model).chosen_program(model, choice)
    if model.lane.draws_samples and model.typed and not model.options.calibrate:
        sys.stderr.write("note: inputs are random; with real ones (--calibrate) other operators may differ\n")
    result = search(model, program)
    differs = result.sqnr_db < result.least
    operator = result.first if differs else None
    answer.add(program=program.name, **to_json(result))
    lines = [*text_lines(result)]
    print("\n".join(lines))
    if script and operator:
        write_script(script, model, program, operator, result.least, report)
    elif script:
        print(f"{script.name} is not written: no operator differs")
    advice = fix_of_trials(model, program, result) if operator else NO_FIX
    fix = fix_of(result, partial(command_of, model), advice)
    print(f"next: {fix}")
    if differs:
        say_finding(program.name, lines, fix, result, report)
    return exit_code_of(good=not differs)


def search(model: OneModel, program: Program) -> DivergenceResult:
    """Search for the operator. If a program does not compile, the error names the command that explains
    it."""
    from ci.explain.divergence import DIFFERS_DB, DivergenceLimits

    threshold = program.thresholds.reference_sqnr_db if program.thresholds else None
    limits = DivergenceLimits(model.options.least or threshold or DIFFERS_DB)
    try:
        return model_lane(model).divergence_of(model, program, limits)
    except ToolkitError as error:
        if error.exit_code != CheckFailed.exit_code:
            raise
        again = command_of(model, "audit") or model_lane(model).repeat(program)
        fix = Fix("{} shows what does not compile, and what to write instead", again)
        raise CheckFailed(f"{program.name}: {error.message}", fix=fix) from error


def command_of(model: OneModel, verb: str, *more: str) -> str:
    """Return the command for the same model; empty for a suite's program, whose model may have arguments."""
    return model.command(verb, model.selection.soc, *more) if model.typed else ""


def fix_of_trials(model: OneModel, program: Program, result: DivergenceResult) -> str:
    """Return the fixes that helped; for a suite's program, the command that tries some."""
    from ci.explain.cause import divergence_cause
    from ci.explain.lane import outcome_of
    from ci.explain.trials import try_fixes

    if not model.typed:
        precision = program.run.kind
        again = session("compile", "MODEL", "--precision", precision, "--soc", program.soc, "-o", "out")
        return Fix("{} tries fixes of the case's model", again)
    lane, cause = model_lane(model), divergence_cause(result, command_of(model, DIVERGENCE))
    return try_fixes(lane, model, model.selection.soc, outcome_of(lane, model), cause).fix


def write_script(
    script: Path,
    model: OneModel,
    program: Program,
    operator: DivergentOperator,
    least: float,
    report: ModelReport,
) -> None:
    """Write a script with the operator and its inputs, and print what it shows."""
    cut_out = model_lane(model).script_of(model, program, operator, least)
    script.write_text(cut_out.text, encoding="utf-8")
    report.wrote([script])
    answer.add(verdict=cut_out.verdict, files=[str(script)])
    print(f"{script.name}, run alone: {cut_out.verdict}")


def say_finding(
    name: str, lines: Sequence[str], fix: str, result: DivergenceResult, report: ModelReport
) -> None:
    """Put the operator into the answer and the report."""
    from provisioning.base.findings import Finding, Severity
    from provisioning.base.places import Places

    message = "; ".join(lines[:2])
    place = result.first.line if result.first else None
    finding = Finding("divergence-operator", Severity.ERROR, name, message, fix, place)
    answer.add_findings([Places.of().located(finding)])
    report.fail(message, fix)
