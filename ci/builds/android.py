"""`build_android`: ExecuTorch from source for aarch64-android."""

from __future__ import annotations

import argparse

from ci.builds.options import add_options

EXAMPLES = """\
  nox -s build_android
  nox -s build_android -- --release --executorch DIR
  nox -s build_android -- --dry-run
"""

TARGET = "aarch64-android"


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, TARGET)


def run(args: argparse.Namespace) -> int:
    from ci.builds import source

    return source.run(args, "build_android", TARGET)
