"""`build_x86`: ExecuTorch from source for x86_64-linux."""

from __future__ import annotations

import argparse

from ci.builds.options import add_options

EXAMPLES = """\
  nox -s build_x86
  nox -s build_x86 -- --release --executorch DIR
  nox -s build_x86 -- --dry-run
"""

TARGET = "x86_64-linux"


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, TARGET)


def run(args: argparse.Namespace) -> int:
    from ci.builds import source

    return source.run(args, "build_x86", TARGET)
