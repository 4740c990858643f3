"""`run`: write the outputs of a compiled program for the user's inputs, and compare them with others; or
print what a language model says."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ci.model_commands.typed_model import add_model, model_lane, one_model_of
from ci.one_model.model import OneModel
from ci.suite.lane_head import RUN
from provisioning.base import answer
from provisioning.base.commands import session
from provisioning.base.errors import UsageError
from provisioning.base.parser import Parser

if TYPE_CHECKING:
    from ci.one_model.report import ModelReport

EXAMPLES = """\
  qnn-ci run out/net-SM8750-8a8w.pte --input x.npy -o outputs
  qnn-ci run out/net_ctx.onnx --input x=x.npy
  qnn-ci run net.onnx --dimension batch=1 --input x=x.npy -o outputs
  qnn-ci run context.bin --input x.npy --compare outputs
  qnn-ci run out/ "The answer is" --tokens 20
  qnn-ci run out/ --chat "What is a rope?"
"""

PROGRAM_HELP = "a .pte, an .onnx, a QNN context binary, or the folder of a language model"


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, RUN, PROGRAM_HELP, metavar="PROGRAM")
    parser.add_argument("prompt", metavar="TEXT", nargs="?", help="what a language model goes on with")


def run(args: argparse.Namespace) -> int:
    from ci.one_model.report import report_work

    model = one_model_of(args, RUN)
    _require_prompt(model, args.prompt)
    if model.lane.takes_text:
        return model_lane(model).run_text(model, args.prompt)
    return report_work(RUN, model, [], lambda report: run_and_compare(model, report))


def run_and_compare(model: OneModel, report: ModelReport) -> int:
    """Run the program, write its outputs, and compare them if the user names others."""
    from ci.one_model.output import compare_outputs, output_lines, outputs_in, write

    options = model.options
    # A folder that is another one is refused before anything runs.
    other_outputs = outputs_in(Parser.user_folder() / options.compare) if options.compare else {}
    ran = model_lane(model).ran(model, options.inputs)
    if options.outputs:
        write(ran, options.outputs, model.typed)
        report.wrote(sorted(options.outputs.glob("*.npy")))
    print("\n".join(output_lines(ran)))
    if not options.compare:
        return 0
    comparison = compare_outputs(ran.outputs, other_outputs, options.compare)
    print("\n".join(comparison.lines))
    answer.add(compared={name: dict(row) for name, row in comparison.figures.items()})
    if comparison.differ:
        report.fail(comparison.lines[-1])
    return int(comparison.differ)


def _require_prompt(model: OneModel, prompt: str | None) -> None:
    """Require a prompt for a language model, and refuse one for any other."""
    if prompt and not model.lane.takes_text:
        message = f"{prompt!r}: a text is for language models, and {model.typed} is none"
        raise UsageError(message, fix="--input FILE.npy names an input")
    if not prompt and model.lane.takes_text:
        message = f"{model.typed}: a language model wants a text to go on with"
        raise UsageError(message, fix=session("run", model.typed, "The answer is"))
