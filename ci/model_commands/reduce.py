"""`reduce`: the smallest program that still shows what a model shows, as files that need nothing of ours."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ci.pipeline.compile_flags import PRECISION_HELP, add_model_or_suite, model_or_suite_of, require_one_chip
from ci.pipeline.flags import add_work, choice_of
from ci.pipeline.options import Choice, OneModel
from provisioning.base import answer
from provisioning.base.command_line import count, valued

if TYPE_CHECKING:
    from ci.pipeline.reduction import Reduction

EXAMPLES = """\
  qnn-ci reduce net.py:model --when wrong --precision 16a8w -o reduced/
  qnn-ci reduce model.onnx --when dies --precision 8a8w --calibrate samples/ -o reduced/
  qnn-ci reduce model.pt2 --when 'ddr>1MB' --precision 8a8w -o reduced/
  qnn-ci reduce --suite models.toml -k net/16a8w/SM8650 --when wrong -o reduced/
  qnn-ci reduce --lane onnx -k llama_decode/u16u8/SM8650 --when wrong -o reduced/
"""


class Reduces(Protocol):
    """What is asked of a lane."""

    def reduction(self, model: OneModel, choice: Choice, place: Path, *, estimated: bool) -> Reduction[Any]:
        """What tries pieces, in this folder; `estimated`: with what they will take."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_model_or_suite(parser)
    valued(
        parser,
        "--when",
        "WHAT",
        "the fault: dies (does not compile or run), wrong (wrong numbers), cpu (an operator on the CPU),"
        " or ddr, size or ms above a limit: 'ddr>1MB'",
        required=True,
    )
    parser.add_argument("--precision", help=PRECISION_HELP)
    valued(parser, "--least", "DB", "outputs below this SQNR are wrong [20]", type=float)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the files"
    )
    valued(parser, "--name", "NAME", "name of the files [the operators that are left]")
    valued(parser, "--minutes", "N", "the longest search [%(default)s]", type=count, default=10)
    parser.add_argument("--jobs", "-j", type=count, metavar="N", help="programs in parallel [cores]")
    add_work(parser.add_argument_group("how"), "a program")
    parser.epilog = (parser.epilog or "") + (
        "\nExit code: 0 the files show the fault; 1 the model does not, or the files alone do not.\n"
        "Type the same command with the same -o to continue a search that ended.\n"
    )


def run(args: argparse.Namespace) -> int:
    from ci.pipeline.lane_model import of_lane
    from ci.pipeline.model_report import ModelReport, reported
    from ci.pipeline.reduce import Condition
    from ci.pipeline.reduction import place_in, reduced, written
    from provisioning.base.command_line import Parser

    # Elsewhere it is PyTorch models' alone.
    jobs, args.jobs = args.jobs, None
    model = model_or_suite_of(args)
    model = replace(model, work=replace(model.work, jobs=jobs))
    require_one_chip(model.selection)
    condition, choice, name = Condition.of(args.when, args.least), choice_of(args), args.name
    about = [*choice.words, *model.named, condition.text]
    output, seconds = Parser.user_folder() / args.output, 60 * args.minutes

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    lane: Reduces = of_lane(model, "reduce")

    def work(report: ModelReport) -> int:
        with place_in(output, [model.typed, *about]) as place:
            search = lane.reduction(model, choice, place, estimated=condition.figure == "ms")
            found = reduced(search, condition, seconds, say)
            lines = found.in_words(condition)
            files, verdict = written(search, condition, found, output, name, model.typed or search.name)
        lines += [f"  {search.programs} programs were compiled and run, or were cached"]
        lines += [f"{file.stat().st_size:>9,}  {args.output / file.name}" for file in files]
        lines += [f"the file alone says: {verdict}"] * bool(verdict)
        print("\n".join(lines))
        report.wrote(files)
        answer.add(
            program=search.name,
            kept=search.operators_of(found.piece),
            shown=found.outcome.in_words(),
            verdict=verdict,
            repeated=list(found.repeated),
            files=[str(file) for file in files],
        )
        if verdict and not verdict.startswith("still"):
            report.fail("the reduced program shows the fault, but its file alone does not")
            return 1
        return 0

    return reported("reduce", model, about, work)
