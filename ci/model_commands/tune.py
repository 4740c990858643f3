"""`tune`: find the operators that need the more exact of two precisions, so that a limit is kept at the least
cost."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci.model_commands.typed_model import add_model, model_lane, one_model_of
from ci.one_model.model import OneModel, require_one_chip
from ci.one_model.options import Floor
from ci.suite.lane_head import TUNE
from ci.suite.precision import TWO_PRECISIONS
from provisioning.base import answer
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.parser import Parser

if TYPE_CHECKING:
    from ci.explain.tune import Goal, Tuned
    from ci.one_model.report import ModelReport

EXAMPLES = """\
  qnn-ci tune net.py:model --soc SM8650 --floor 35dB
  qnn-ci tune model.onnx --calibrate samples/ --floor 30dB
  qnn-ci tune net.py:model --metric score.py:recall --floor 0.9
  qnn-ci tune net.py:model --precision 8a8w --precision fp16 --floor 50dB
"""

USUAL = ("8a8w", "16a8w")
SAMPLES = 32
"""This many samples judge each program, if --inferences names no number."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, TUNE)


def run(args: argparse.Namespace) -> int:
    from ci.explain.tune import tune_model
    from ci.one_model.report import report_work

    model = one_model_of(args, TUNE)
    require_one_chip(model.selection)
    goal = goal_of(model.options.floor, model.options.metric)
    model = model.use(replace(model.options, inferences=model.options.inferences or SAMPLES))
    precisions = model.options.precisions or USUAL
    if len(precisions) != 2:
        raise UsageError(f"--precision {' '.join(precisions)}: expected two", fix=TWO_PRECISIONS)
    about = [*precisions, f"{goal.figure} {goal.floor:g}", *model.selection.socs]

    def work(report: ModelReport) -> int:
        return _write(
            tune_model(model_lane(model), model, (precisions[0], precisions[1]), goal), model, report
        )

    return report_work(TUNE, model, about, work)


def goal_of(least: Floor | None, metric: str | None) -> Goal:
    from ci.explain.tune import Goal
    from ci.suite.figures import METRIC

    if least is None:
        fix = "--floor 0.9" if metric else "--floor 35dB"
        raise UsageError("--floor is missing: the least that must hold", fix=fix)
    if metric:
        path = (Parser.user_folder() / metric.rpartition(":")[0]).absolute()
        if not path.is_file() or path.suffix != ".py":
            raise UsageError(f"--metric {metric}: there is no file {path}", fix="--metric score.py:function")
        if least.decibels:
            raise UsageError("--floor in dB is for SQNR, and --metric has its own number", fix="--floor 0.9")
        return Goal(least.value, METRIC, f"{path}:{metric.rpartition(':')[2]}")
    if not least.decibels and least.value <= 1:
        raise UsageError(
            f"--floor {least}: expected an SQNR in dB; a share or a similarity is a number of a --metric",
            fix="--floor 35dB; or --metric score.py:function with it",
        )
    return Goal(least.value)


def _write(result: Tuned, model: OneModel, report: ModelReport) -> int:
    """Write the precision of each operator, if a mixture keeps the limits."""
    from ci.explain.tune import document, settings_of, text_lines, wrong
    from ci.one_model.output import file_line, keep_origins, require_own, writing_into
    from ci.suite.precision_file import PRECISION_SUFFIX, precision_text

    answer.add(model=model.typed, **document(result))
    print("\n".join(text_lines(result)))
    if result.winner is None:
        report.fail(wrong(result))
        print(wrong(result))
        return CheckFailed.exit_code
    file, folder = Path(model.typed.partition(":")[0]).name, Parser.user_folder() / model.output
    stem = re.sub(r"\.(py|pt2|onnx)$", "", file)
    comment = f"Written by `{report.stage.command}`."
    precision, nodes = settings_of(result.units, result.winner.units, *result.names)
    name = f"{stem}{PRECISION_SUFFIX}"
    text = precision_text(model.lane.name, precision, nodes, comment)
    with writing_into(folder, model.selection.store) as (scratch, publish):
        require_own([folder / name], model.typed)
        (scratch / name).write_text(text, encoding="utf-8")
        files = publish([scratch / name])
        keep_origins(files, model.typed)
    report.wrote(files)
    print("\n".join(map(file_line, files)))
    variant = model.use(replace(model.options, precisions=(), precision_file=model.output / name))
    command = variant.command("compile", model.selection.soc, "-o", "out")
    print(f"compile it: {command}")
    answer.add(files=[str(path) for path in files], next=command.installed)
    return 0
