"""`test_lowering`: the command line."""

from __future__ import annotations

import argparse

from ci.suite.options import add_choice, add_how, stage_options
from provisioning.base.selection import add_selection

SUITE = "manifests/suites/models.toml"

EXAMPLES = """\
  nox -s test_lowering
  nox -s test_lowering -- --tag pr
  nox -s test_lowering -- -k mobilenet --soc SM8750
  nox -s test_lowering -- --suite ../mine/models.toml
  nox -s test_lowering -- --list
  nox -s test_lowering -- --accept
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    add_flags(parser)


def add_flags(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The flags that test_emulator has too."""
    add_choice(parser, SUITE)
    return add_how(parser)


def run(args: argparse.Namespace) -> int:
    from ci.lanes.executorch import stage

    return stage.run_lowering(stage_options(args))
