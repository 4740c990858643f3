"""The flags that choose a suite's programs and how they are processed; imports nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from provisioning.base.command_line import add_timeout, count, repeatable
from provisioning.base.errors import UsageError
from provisioning.base.settings import DEFAULT_TARGET

RUN_TIMEOUT = 300.0
"""Seconds after which a run on the emulator ends, unless --run-timeout says otherwise."""


def add_choice(parser: argparse.ArgumentParser, shipped: str) -> None:
    """`shipped` is the suite that is used without --suite."""
    group = parser.add_argument_group("which programs")
    repeatable(group, "--suite", "FILE", f"cases as in {shipped}, which is the default", type=Path)
    group.add_argument("--case", action="append", metavar="NAME", help="this case; may be repeated")
    group.add_argument("--tag", action="append", help="runs with this tag: pr, nightly; may be repeated")
    repeatable(
        group, "-k", "EXPR", "parts of names CASE/RUN/SOC with and, or, not and parentheses", dest="words"
    )


def add_how(parser: argparse.ArgumentParser, *, baseline: bool = True) -> argparse._ArgumentGroup:
    """Returns the group, so that a stage can add its own flags. `baseline`: whether the stage has a
    baseline."""
    group = parser.add_argument_group("how")
    group.add_argument("--shard", metavar="I/N", help="the I-th of N parts of equal length")
    group.add_argument("--list", action="store_true", help="list the chosen programs and stop")
    group.add_argument("--jobs", "-j", type=count, metavar="N", help="programs side by side [cores]")
    add_timeout(group, "a program")
    add_again(group)
    if baseline:
        group.add_argument(
            "--update-baseline", action="store_true", help="write what was measured to manifests/baselines"
        )
    return group


def add_again(group: argparse._ActionsContainer) -> None:
    group.add_argument("--no-cache", action="store_true", help="do also what is cached, and remember it")
    group.add_argument("--why", action="store_true", help="say of each program why it is done again")


def add_accuracy(group: argparse._ArgumentGroup) -> None:
    """For the stages that measure accuracy."""
    group.add_argument(
        "--update-thresholds",
        action="store_true",
        help="write thresholds to the suite: what was measured less the margin of tolerances.toml",
    )
    group.add_argument(
        "--reason",
        default="",
        metavar="TEXT",
        help="with --update-…: why a lost top-1 is agreed to; the baseline keeps it",
    )


def check(suites: Sequence[Path]) -> None:
    for path in suites:
        if not path.is_file():
            raise UsageError(
                f"--suite {path}: there is no file {path.absolute()}",
                remedy="name a TOML file",
            )


def check_args(args: argparse.Namespace) -> None:
    """Find usage errors before anything heavy is imported."""
    check(args.suite or ())
    require_host(args)


def require_host(args: argparse.Namespace) -> None:
    for target in args.target or ():
        if target != DEFAULT_TARGET:
            raise UsageError(
                f"--target {target}: the emulator runs on {DEFAULT_TARGET}", remedy="leave --target out"
            )
