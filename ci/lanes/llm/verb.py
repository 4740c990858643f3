"""`test_llm` and `check`: the command lines."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ci.lanes.llm import HEAD
from ci.lanes.llm.model_options import CheckOptions
from ci.one_model.named_files import require_file
from ci.suite.stage_command import SuiteCommand
from provisioning.base.errors import UsageError
from provisioning.base.option_fields import add_options, read_options
from provisioning.base.selection import add_executorch, selection_of

if TYPE_CHECKING:
    from ci.suite.lane import AnyLane


def _load_lane() -> AnyLane:
    from ci.lanes.llm.lane import LANE

    return LANE


STAGE = SuiteCommand(
    """\
  nox -s test_llm
  nox -s test_llm -- --tag pr
  nox -s test_llm -- -k 16a8w --soc SM8750
  nox -s test_llm -- --keep
""",
    HEAD,
    "test_llm",
    _load_lane,
)


class CheckVerb:
    """Compares a compiled language model with the float model."""

    EXAMPLES = """\
  qnn-ci check out/ --text held-out.txt
  qnn-ci check out/ --on parts
"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", type=Path, metavar="DIR", help="what compile wrote")
        add_options(parser, "check", {"": CheckOptions})
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
        options = read_options(CheckOptions, args)
        require_file(options.text, "--text", "name a text file")
        for flag, folder in (("", args.model), ("--checkpoint ", options.checkpoint)):
            if folder and not folder.is_dir():
                raise UsageError(f"{flag}{folder} is not a folder", fix="name a folder that compile wrote")

    def run(self, args: argparse.Namespace) -> int:
        from ci.lanes.llm.commands import check_model

        return check_model(args.model, selection_of(args), read_options(CheckOptions, args))


CHECK = CheckVerb()
