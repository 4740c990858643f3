"""`build_runner`: the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioning.base.command_line import count, repeatable
from provisioning.base.settings import add_selection

EXAMPLES = """\
  python -m ci build_runner
  python -m ci build_runner --target aarch64-linux
  python -m ci build_runner --target aarch64-linux --glibc 2.35
  python -m ci build_runner --build-type RelWithDebInfo -o dist/debug
  python -m ci build_runner --executorch DIR --dry-run
"""

BUILD_TYPES = ("Release", "RelWithDebInfo", "Debug")


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--jobs", "-j", type=count, help="compile this many files at once [all cores]")
    parser.add_argument("--clean", action="store_true", help="build anew, whatever is there")
    parser.add_argument(
        "--build-type", choices=BUILD_TYPES, default=BUILD_TYPES[0], help="[%(default)s]; Release is stripped"
    )
    parser.add_argument(
        "--output", "-o", type=Path, metavar="DIR", help="where bin/ and lib/ are put [dist/TARGET]"
    )
    parser.add_argument(
        "--build-dir", type=Path, metavar="DIR", help="where it is compiled [build/runner/TARGET]"
    )
    parser.add_argument(
        "--executorch",
        type=Path,
        metavar="DIR",
        help="the executorch package to build against [this Python's; for aarch64-linux the store's]",
    )
    repeatable(parser, "--remap", "FROM=TO", "write this path prefix as another in the binary")
    parser.add_argument(
        "--glibc", metavar="VERSION", help="the newest glibc that it may need [the profile's floor]"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")


def run(args: argparse.Namespace) -> int:
    from ci.builds import emulator_runner

    return emulator_runner.run(args)
