"""`test_llm`: the command line."""

from __future__ import annotations

import argparse

from ci.suite.options import add_choice, add_how, stage_options
from provisioning.base.command_line import switch
from provisioning.base.selection import add_selection

EXAMPLES = """\
  nox -s test_llm
  nox -s test_llm -- --tag pr
  nox -s test_llm -- -k 16a8w --soc SM8750
  nox -s test_llm -- --keep
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    add_choice(parser, "manifests/suites/llm.toml")
    group = add_how(parser, accepts=False)
    switch(group, "--keep", "repeat all work, and keep models and contexts in reports/llm")


def run(args: argparse.Namespace) -> int:
    from ci.lanes.llm import stage

    return stage.run(stage_options(args))
