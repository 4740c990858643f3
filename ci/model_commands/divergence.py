"""`divergence`: the operator whose output on the emulator is not the quantized model's.

A program that hands out what all operators compute is tried first. That changes what the compiler fuses, and
may repair what is searched: then each operator is the last one of a program of its own."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci.one_model.model import (
    ONNX,
    PRECISION_HELP,
    add_model_or_suite,
    add_precision_file,
    model_or_suite_of,
    require_one_chip,
)
from ci.suite.options import add_work, choice_of
from provisioning.base import answer
from provisioning.base.command_line import Parser, repeatable, valued
from provisioning.base.errors import UsageError

EXAMPLES = """\
  qnn-ci divergence net.py:model --precision 16a8w --soc SM8650
  qnn-ci divergence model.onnx --precision 16a8w --calibrate samples/
  qnn-ci divergence model.onnx --precision 16a8w --write fault.py
  qnn-ci divergence --suite models.toml -k net/16a8w/SM8650
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_model_or_suite(parser)
    parser.add_argument("--precision", help=PRECISION_HELP)
    add_precision_file(parser)
    valued(
        parser,
        "--least",
        "DB",
        "the SQNR below which it counts as different [the suite's threshold, else 30]",
        type=float,
    )
    repeatable(parser, "--keep-on-cpu", "NODE", "leave this node on the CPU, as `compile` did")
    valued(parser, "--write", "FILE.py", "cut out that operator with its inputs, as a script", type=Path)
    add_work(parser, "the search", 1200)


def require_script(path: Path) -> None:
    from ci.explain.divergence import EXIT_CODES

    new = path.parent.is_dir() and not path.exists()
    own = path.is_file() and EXIT_CODES in path.read_text(encoding="utf-8", errors="replace")
    if path.suffix != ".py" or not (new or own):
        message = f"--write {path}: expected a new Python file, or an earlier script of this command"
        raise UsageError(message, fix="--write fault.py, or another name")


def run(args: argparse.Namespace) -> int:
    from ci.explain.cause import of_divergence, proofs_of
    from ci.explain.divergence import DIFFERS_DB, DivergenceLimits, DivergenceResult, as_text, fix_of
    from ci.explain.lane import explainer, outcome_of
    from ci.one_model.report import ModelReport, reported
    from ci.work.plain import as_json
    from provisioning.base.commands import Fix, session
    from provisioning.base.errors import CheckFailed, ToolkitError
    from provisioning.base.findings import Finding, Severity
    from provisioning.base.stage_run import Places
    from provisioning.known_faults import NO_FIX

    model = model_or_suite_of(args)
    require_one_chip(model.selection)
    choice, least, operators = choice_of(args), args.least, tuple(args.keep_on_cpu)
    script = Parser.user_folder() / args.write if args.write else None
    if script:
        require_script(script)
    lane = explainer(model)
    model = replace(model, keep_on_cpu=operators)

    def command(verb: str, *more: str) -> str:
        return model.command(verb, model.selection.soc, *more) if model.typed else ""

    def trial_of(result: DivergenceResult, program: Any) -> str:
        """Of a suite's program, whose model may have arguments, the command that tries fixes."""
        if not model.typed:
            precision = program.run.kind
            again = session("compile", "MODEL", "--precision", precision, "--soc", program.soc, "-o", "out")
            return Fix("{} tries fixes of the case's model", again)
        cause = of_divergence(result, command("divergence"))
        return proofs_of(model, model.selection.soc, outcome_of(model), cause).fix

    def work(report: ModelReport) -> int:
        program = lane.chosen_program(model, choice, operators)
        if model.lane == ONNX and model.typed and not model.calibrate:
            say = "note: inputs are random; with real ones (--calibrate) other operators may differ"
            sys.stderr.write(f"{say}\n")
        thresholds, name = program.thresholds, program.name
        try:
            limits = DivergenceLimits(least or (thresholds and thresholds.reference_sqnr_db) or DIFFERS_DB)
            result = lane.divergence_of(model, program, limits)
        except ToolkitError as error:
            if error.exit_code != CheckFailed.exit_code:
                raise
            again = command("audit") or model.lane.suites.repeat(program)
            raise CheckFailed(
                f"{name}: {error.message}",
                fix=Fix("{} shows what does not compile, and what to write instead", again),
            ) from error
        differs = result.sqnr_db < result.least
        answer.add(program=name, **as_json(result))
        lines = list(as_text(result))
        print("\n".join(lines))
        if script and differs and result.first:
            cut_out = lane.script_of(model, program, result.first, result.least)
            script.write_text(cut_out.text, encoding="utf-8")
            report.wrote([script])
            answer.add(verdict=cut_out.verdict, files=[str(script)])
            print(f"{script.name}, run alone: {cut_out.verdict}")
        elif script:
            print(f"{script.name} is not written: no operator differs")
        fix = fix_of(result, command, trial_of(result, program) if differs and result.first else NO_FIX)
        print(f"next: {fix}")
        if differs:
            message = "; ".join(lines[:2])
            place = result.first.line if result.first else None
            finding = Finding("divergence-operator", Severity.ERROR, name, message, fix, place)
            answer.add_findings([Places.of().located(finding)])
            report.fail(message, fix)
        return int(differs)

    return reported("divergence", model, [*choice.words, *model.traits], work)
