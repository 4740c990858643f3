"""The flags that choose a suite's programs and how they are processed, added and read; imports nothing
heavy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ci.pipeline.options import RUN_TIMEOUT, Accept, Choice, StageOptions, Work
from provisioning.base.command_line import TIMEOUT, add_timeout, count, repeatable
from provisioning.base.errors import UsageError
from provisioning.base.settings import DEFAULT_TARGET, Selection, selection_of


def add_choice(parser: argparse.ArgumentParser, shipped: str) -> None:
    """`shipped` is the suite that is used without --suite."""
    parser.set_defaults(shard=None)
    group = parser.add_argument_group("which programs")
    repeatable(group, "--suite", "FILE", f"cases as in {shipped}, which is the default", type=Path)
    group.add_argument("--case", action="append", metavar="NAME", help="this case; may be repeated")
    group.add_argument("--tag", action="append", help="runs with this tag: pr, nightly; may be repeated")
    repeatable(
        group, "-k", "EXPR", "parts of names CASE/RUN/SOC with and, or, not and parentheses", dest="words"
    )


def choice_of(args: argparse.Namespace) -> Choice:
    check(args.suite)
    suites = tuple(path.absolute() for path in args.suite)
    return Choice(suites, tuple(args.case or ()), tuple(args.tag or ()), tuple(args.words), args.shard or "")


def add_how(parser: argparse.ArgumentParser, *, baseline: bool = True) -> argparse._ArgumentGroup:
    """Returns the group, so that a stage can add its own flags. `baseline`: whether the stage has a
    baseline."""
    parser.set_defaults(update_baseline=False, update_thresholds=False, reason="")
    group = parser.add_argument_group("how")
    group.add_argument("--shard", metavar="I/N", help="the I-th of N parts of equal length")
    group.add_argument("--list", action="store_true", help="list the chosen programs and stop")
    group.add_argument("--jobs", "-j", type=count, metavar="N", help="programs side by side [cores]")
    add_work(group, "a program")
    if baseline:
        group.add_argument(
            "--update-baseline", action="store_true", help="write what was measured to manifests/baselines"
        )
    return group


def stage_options(args: argparse.Namespace) -> StageOptions:
    return StageOptions(host_selection(args), choice_of(args), work_of(args), accept_of(args), args.list)


def add_work(
    group: argparse._ActionsContainer, unit: str, timeout: float = TIMEOUT, *, cached: bool = True
) -> None:
    """The time limit of a `unit` of work, and for work that is cached what is done again. The flags of what
    else `work_of` reads are the command's own."""
    group.set_defaults(
        jobs=None,
        no_cache=False,
        why=False,
        keep=False,
        keep_going=False,
        worker_memory=None,
        run_timeout=None,
    )
    add_timeout(group, unit, timeout)
    if cached:
        group.add_argument("--no-cache", action="store_true", help="do also what is cached, and remember it")
        group.add_argument("--why", action="store_true", help="say of each program why it is done again")


def work_of(args: argparse.Namespace) -> Work:
    return Work(
        timeout=args.timeout,
        jobs=args.jobs,
        cache=not args.no_cache,
        why=args.why,
        keep=args.keep,
        keep_going=args.keep_going,
        worker_memory=args.worker_memory and args.worker_memory << 20,
        run_timeout=args.run_timeout or RUN_TIMEOUT,
    )


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
        help="with --update-…: why a lost top-1, or less than 10 dB, is agreed to; the baseline keeps it",
    )


def accept_of(args: argparse.Namespace) -> Accept:
    return Accept(args.update_baseline, args.update_thresholds, args.reason)


def check(suites: Sequence[Path]) -> None:
    for path in suites:
        if not path.is_file():
            raise UsageError(
                f"--suite {path}: there is no file {path.absolute()}",
                fix="name a TOML file",
            )


def host_selection(args: argparse.Namespace) -> Selection:
    """The selection of a command whose work is for this machine."""
    for target in args.target or ():
        if target != DEFAULT_TARGET:
            raise UsageError(
                f"--target {target}: the emulator runs on {DEFAULT_TARGET}", fix="leave --target out"
            )
    return selection_of(args)
