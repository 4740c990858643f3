"""`build_linux_arm64`: ExecuTorch from source for aarch64-linux."""

from __future__ import annotations

import argparse

from ci.builds.options import add_options

EXAMPLES = """\
  nox -s build_linux_arm64
  nox -s build_linux_arm64 -- --release --executorch DIR
  nox -s build_linux_arm64 -- --dry-run
"""

TARGET = "aarch64-linux"


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, TARGET)


def run(args: argparse.Namespace) -> int:
    from ci.builds import source

    return source.run(args, "build_linux_arm64", TARGET)
