"""`run`: the outputs of a compiled program for the user's inputs, and how far they are from others; or what a
language model says."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ci.one_model.model import (
    CHECKPOINT,
    ONNX,
    OneModel,
    add_dimension,
    add_limit,
    add_option,
    program_to_run,
    require_taken,
)
from provisioning.base import answer
from provisioning.base.command_line import (
    Parser,
    count,
    repeatable,
    switch,
    valued,
)
from provisioning.base.commands import session
from provisioning.base.errors import UsageError
from provisioning.base.selection import add_selection

if TYPE_CHECKING:
    from ci.one_model.output import Ran

EXAMPLES = """\
  qnn-ci run out/net-SM8750-8a8w.pte --input x.npy -o outputs
  qnn-ci run out/net_ctx.onnx --input x=x.npy
  qnn-ci run net.onnx --dimension batch=1 --input x=x.npy -o outputs
  qnn-ci run context.bin --input x.npy --compare outputs
  qnn-ci run out/ "The answer is" --tokens 20
  qnn-ci run out/ --chat "What is a rope?"
"""

TOKENS = 32


class RunsPrograms(Protocol):
    """What is asked of a lane."""

    def run_program(self, model: OneModel, files: Sequence[str]) -> Ran:
        """What a compiled program gives for these inputs."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "model",
        metavar="PROGRAM",
        help="a .pte, an .onnx, a QNN context binary, or the folder of a language model",
    )
    parser.add_argument("prompt", metavar="TEXT", nargs="?", help="what a language model goes on with")
    repeatable(
        parser, "--input", "[NAME=]FILE", ".npy of an input, in order or by name, or .npz with all [drawn]"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write an .npy for each output there"
    )
    valued(
        parser,
        "--compare",
        "DIR",
        "compare with the outputs that -o wrote of another program; exit 1 if they differ too much",
    )
    onnx = parser.add_argument_group(ONNX.models)
    add_option(onnx)
    add_dimension(onnx)
    switch(onnx, "--as-it-is", "run it even if another QNN build made it or it is for another chip")
    language = parser.add_argument_group("language models")
    switch(language, "--chat", "put TEXT into the checkpoint's chat template")
    valued(language, "--system", "TEXT", "the system message of the template")
    valued(language, "--tokens", "N", f"at most [{TOKENS}]", type=count)
    add_limit(parser, "a run")


def run(args: argparse.Namespace) -> int:
    from ci.one_model.output import as_text, compared, outputs_in, write
    from ci.one_model.report import ModelReport, reported

    model, output, inputs = program_to_run(args), args.output, args.input
    typed = args.compare
    require_taken(model.lane, args, ("input", "output", "compare"))
    _require_prompt(model, args.prompt)
    if model.lane == CHECKPOINT:
        from ci.lanes.llm import commands

        folder, tokens = Parser.user_folder() / model.typed, args.tokens or TOKENS
        settings = (args.chat, args.system or "", tokens, model.work.timeout, model.selection)
        return commands.run_model(commands.Prompt(folder, args.prompt, *settings))
    model = replace(model, dimensions=tuple(args.dimension))
    lane: RunsPrograms = model.lane.product

    def work(report: ModelReport) -> int:
        # A folder that is another one is refused before anything runs.
        other_outputs = outputs_in(Parser.user_folder() / typed) if typed else {}
        ran = lane.run_program(model, inputs)
        if output:
            write(ran, output, model.typed)
            report.wrote(sorted(output.glob("*.npy")))
        print("\n".join(as_text(ran)))
        if not typed:
            return 0
        comparison = compared(ran.outputs, other_outputs, typed)
        print("\n".join(comparison.lines))
        answer.add(compared={name: dict(row) for name, row in comparison.figures.items()})
        if comparison.differ:
            report.fail(comparison.lines[-1])
        return int(comparison.differ)

    return reported("run", model, [], work)


def _require_prompt(model: OneModel, prompt: str | None) -> None:
    """Of a language model, and of no other."""
    if prompt and model.lane != CHECKPOINT:
        message = f"{prompt!r}: a text is for language models, and {model.typed} is none"
        raise UsageError(message, fix="--input FILE.npy names an input")
    if not prompt and model.lane == CHECKPOINT:
        message = f"{model.typed}: a language model wants a text to go on with"
        raise UsageError(message, fix=session("run", model.typed, "The answer is"))
