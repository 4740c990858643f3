"""`mcp`: the commands as tools of the Model Context Protocol, on standard input and output."""

from __future__ import annotations

import argparse
import sys

from provisioning.base import answer
from provisioning.base.command_line import switch

EXAMPLES = """\
  qnn-ci mcp                                                          started by an agent's own program
  qnn-ci mcp --skill > .claude/skills/qnn-ci/SKILL.md                 for agents that type commands
"""


def configure(parser: argparse.ArgumentParser) -> None:
    switch(parser, "--skill", "print SKILL.md, for agents that type commands, and stop")


def run(args: argparse.Namespace) -> int:
    if args.skill:
        from ci.agents.skill import page

        sys.stdout.write(page())
        return 0
    from ci.agents.server import serve

    answer.refuse("mcp")
    return serve()
