"""`test_llm` and `check`: the command lines."""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.one_model.named_files import require_file
from ci.one_model.options import LANGUAGE_TIMEOUT
from ci.suite.options import LANGUAGE_STAGE, add_choice, add_how, stage_options
from provisioning.base.command_line import add_timeout, count, switch, valued
from provisioning.base.errors import UsageError
from provisioning.base.selection import add_executorch, add_selection, selection_of
from provisioning.base.settings import MANIFESTS

EXAMPLES = """\
  nox -s test_llm
  nox -s test_llm -- --tag pr
  nox -s test_llm -- -k 16a8w --soc SM8750
  nox -s test_llm -- --keep
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    add_choice(parser, LANGUAGE_STAGE)
    group = add_how(parser, accepts=False)
    switch(group, "--keep", "repeat all work, and keep models and contexts in reports/llm")


def run(args: argparse.Namespace) -> int:
    from ci.lanes.llm.lane import LANE

    return LANE.run_suite("test_llm", stage_options(args))


HELD_OUT = MANIFESTS / "texts" / "held-out.txt"
"""Ours, which no model was trained on when it was written."""
TOKENS = 1000
"""Of a text that are judged, unless the command line says otherwise."""
LIMITS = ("top1", "perplexity_ratio", "divergence", "divergence_99")


class CheckVerb:
    """A compiled language model, compared with the float model."""

    EXAMPLES = """\
  qnn-ci check out/ --text held-out.txt
  qnn-ci check out/ --on parts
"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", type=Path, metavar="DIR", help="what compile wrote")
        valued(
            parser,
            "--text",
            "FILE",
            "a text that did not calibrate it [one of qnn-ci's own]",
            type=Path,
            default=HELD_OUT,
        )
        valued(parser, "--checkpoint", "FOLDER", "the float model [the one that was compiled]", type=Path)
        valued(
            parser, "--tokens", "N", "tokens of the text to read [%(default)s]", type=count, default=TOKENS
        )
        parser.add_argument(
            "--on",
            choices=("both", "parts"),
            default="both",
            help="parts: judge each part by itself, and nothing else, and print them all",
        )
        limits = parser.add_argument_group("limits, beside those of the precision")
        for name in LIMITS:
            limits.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="X")
        add_timeout(parser, "the run", LANGUAGE_TIMEOUT)
        group = parser.add_argument_group("where things are")
        group.add_argument(
            "--reports", type=Path, help="where reports are written [QNN_CI_REPORTS, reports/]"
        )
        group.add_argument("--store", type=Path, help="where QNN is, for ExecuTorch's programs [user cache]")
        group.add_argument("--profile", help="of QNN, for ExecuTorch's programs [QNN_CI_PROFILE, wheels]")
        add_executorch(group)
        # What was compiled says for which chip.
        parser.set_defaults(soc=None, target=None)

    def check(self, args: argparse.Namespace) -> None:
        """Refuse files and folders that are not there."""
        require_file(args.text, "--text", "name a text file")
        for flag, folder in (("", args.model), ("--checkpoint ", args.checkpoint)):
            if folder and not folder.is_dir():
                raise UsageError(f"{flag}{folder} is not a folder", fix="name a folder that compile wrote")

    def run(self, args: argparse.Namespace) -> int:
        from ci.lanes.llm import commands

        limits = {
            "top1": args.top1,
            "perplexity_ratio": args.perplexity_ratio,
            "divergence": args.divergence,
            "divergence_99": args.divergence_99,
        }
        options = commands.CheckOptions(
            model=args.model,
            text=args.text,
            checkpoint=args.checkpoint,
            tokens=args.tokens,
            on=args.on,
            limits={name: limit for name, limit in limits.items() if limit is not None},
            timeout=args.timeout,
            selection=selection_of(args),
        )
        return commands.check_model(options)


CHECK = CheckVerb()
