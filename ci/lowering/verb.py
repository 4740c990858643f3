"""`test_lowering`: the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioning.settings import add_selection

EXAMPLES = """\
  nox -s test_lowering
  nox -s test_lowering -- --tag pr
  nox -s test_lowering -- -k mobilenet --soc SM8750
  nox -s test_lowering -- --suite ../mine/models.toml
  nox -s test_lowering -- --list
  nox -s test_lowering -- --update-baseline
"""


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The flags that test_lowering, test_emulator and matrix share."""
    group = parser.add_argument_group("which programs")
    group.add_argument(
        "--suite",
        action="append",
        type=Path,
        metavar="FILE",
        help="cases as in manifests/suites/lowering.toml, which is the default; may be repeated",
    )
    group.add_argument("--case", action="append", metavar="NAME", help="this case; may be repeated")
    group.add_argument("--tag", action="append", help="runs with this tag: pr, nightly; may be repeated")
    group.add_argument(
        "-k",
        dest="words",
        action="append",
        metavar="WORD",
        help="part of a name CASE/RUN/SOC; may be repeated",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    add_choice(parser)
    add_how(parser)


def add_how(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how")
    group.add_argument("--shard", metavar="I/N", help="the I-th of N parts of equal length")
    group.add_argument("--list", action="store_true", help="list the chosen programs and stop")
    group.add_argument("--jobs", "-j", type=int, metavar="N", help="programs side by side [cores]")
    group.add_argument(
        "--timeout", type=float, default=900, metavar="S", help="end a program after S seconds [%(default)g]"
    )
    group.add_argument(
        "--worker-memory", type=int, metavar="MB", help="what one worker may take [most of what is free]"
    )
    group.add_argument("--no-cache", action="store_true", help="do also what has not changed")
    group.add_argument(
        "--update-baseline", action="store_true", help="write what was measured to manifests/baselines"
    )


def run(args: argparse.Namespace) -> int:
    from ci.lowering import stage

    stage.check_flags(args)
    return stage.run(args)
