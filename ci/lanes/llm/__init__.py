"""`llm`: a checkpoint of your own for Genie or ExecuTorch, and Genie on the HTP emulator."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.command_line import add_timeout, count, switch, valued
from provisioning.base.selection import selection_of
from provisioning.base.settings import MANIFESTS

if TYPE_CHECKING:
    from ci.lanes.llm.commands import Emulated

EXAMPLES = """\
  python -m ci llm run out/ "The answer is" --tokens 20
  python -m ci llm run out/ --chat "What is a rope?"
  python -m ci llm check out/ --text held-out.txt
  python -m ci llm check out/ --on parts
"""

HELD_OUT = MANIFESTS / "texts" / "held-out.txt"
"""Ours, which no model was trained on when it was written."""
TOKENS, PREFIXES = 1000, 40
"""Of a text that are judged, unless the command line says otherwise."""
LONG = 4 * 3600.0
"""Time limit in seconds: a model with a billion weights takes minutes to compile, and seconds for each
token."""


def configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    runner = commands.add_parser("run", help="run a compiled model on the HTP emulator")
    runner.add_argument("model", type=Path, metavar="DIR", help="what compile wrote")
    runner.add_argument("prompt", metavar="TEXT")
    switch(runner, "--chat", "put TEXT into the checkpoint's chat template")
    valued(runner, "--system", "TEXT", "the system message of the template", default="")
    valued(runner, "--tokens", "N", "at most [%(default)s]", type=count, default=32)

    checker = commands.add_parser("check", help="compare a compiled model with the float model")
    checker.add_argument("model", type=Path, metavar="DIR", help="what compile wrote")
    valued(checker, "--text", "FILE", "a text that did not calibrate it [one of qnn-ci's own]", type=Path)
    valued(checker, "--checkpoint", "FOLDER", "the float model [the one that was compiled]", type=Path)
    valued(checker, "--prefixes", "N", "[%(default)s]", type=count, default=PREFIXES)
    valued(checker, "--tokens", "N", "tokens of the text to read [%(default)s]", type=count, default=TOKENS)
    valued(checker, "--decode-tokens", "N", "fewer for decode, if the model is large [--tokens]", type=count)
    checker.add_argument(
        "--on",
        choices=("both", "cpu", "parts"),
        default="both",
        help="cpu: run the quantized graphs on the CPU; parts: judge each part by itself, if the model is too"
        " large for the emulator",
    )
    switch(checker, "--where", "print each part, even if the whole is right")
    limits = checker.add_argument_group("limits, beside those of the precision")
    for name in ("first-choice", "perplexity-ratio", "divergence", "divergence-99", "regret"):
        limits.add_argument(f"--{name}", type=_share if name == "first-choice" else float, metavar="X")
    for command in (runner, checker):
        add_timeout(command, "the run", LONG)
        group = command.add_argument_group("where things are")
        group.add_argument(
            "--reports", type=Path, help="where reports are written [QNN_CI_REPORTS, reports/]"
        )
        group.add_argument("--store", type=Path, help="where QNN is, for ExecuTorch's programs [user cache]")
        group.add_argument("--profile", help="of QNN, for ExecuTorch's programs [QNN_CI_PROFILE, wheels]")
        # What was compiled says for which chip.
        command.set_defaults(soc=None, target=None)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"expected a share above 0 and up to 1, found {text!r}")
    return share


def run(args: argparse.Namespace, emulated: Emulated | None = None) -> int:
    from ci.lanes.llm import check, commands

    emulated, timeout, selection = emulated or commands.Emulated(), args.timeout, selection_of(args)
    if args.command == "run":
        prompt = commands.Prompt(
            args.model, args.prompt, args.chat, args.system, args.tokens, timeout, selection, emulated
        )
        return commands.run_model(prompt)
    limits = {
        "first_choice": args.first_choice,
        "perplexity_ratio": args.perplexity_ratio,
        "divergence": args.divergence,
        "divergence_99": args.divergence_99,
        "regret": args.regret,
    }
    return check.check_model(
        check.CheckOptions(
            args.model,
            args.text or HELD_OUT,
            args.checkpoint,
            args.prefixes,
            args.tokens,
            args.decode_tokens,
            args.on,
            args.where,
            limits,
            timeout,
            selection,
            emulated,
        )
    )
