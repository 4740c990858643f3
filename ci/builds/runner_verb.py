"""`build_runner`: the command line."""

from __future__ import annotations

import argparse

from ci.builds.verb import RUNNER_BUILD_TYPES, add_build_flags
from provisioning.base.command_line import repeatable

EXAMPLES = """\
  python -m ci build_runner
  python -m ci build_runner --target aarch64-linux
  python -m ci build_runner --target aarch64-linux --glibc 2.35
  python -m ci build_runner --build-type RelWithDebInfo -o dist/debug
  python -m ci build_runner --executorch DIR --dry-run
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_build_flags(
        parser,
        RUNNER_BUILD_TYPES,
        executorch="the executorch package to build against [this Python's; for aarch64-linux the store's]",
        jobs="all cores",
        folder="build/runner/TARGET",
    )
    repeatable(parser, "--remap", "FROM=TO", "write this path prefix as another in the binary")


def run(args: argparse.Namespace) -> int:
    from ci.builds import emulator_runner

    return emulator_runner.run(args)
