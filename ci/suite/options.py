"""The flags that choose a suite's programs and how they are processed, and what is read from them. Imports
nothing heavy."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.jobs import RUN_TIMEOUT, WorkOptions
from provisioning.base.command_line import TIMEOUT, add_timeout, count, repeatable, switch, valued
from provisioning.base.commands import leave_out
from provisioning.base.errors import UsageError
from provisioning.base.selection import selection_of
from provisioning.base.settings import DEFAULT_TARGET, Selection


@dataclass(frozen=True, slots=True)
class Choice:
    """Which programs of which suites; empty fields choose all."""

    suites: tuple[Path, ...] = ()
    cases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    shard: str = ""


@dataclass(frozen=True, slots=True)
class Accept:
    """Whether measured values become the expected ones."""

    values: bool = False
    reason: str = ""
    """Why one is agreed to that is worse than it should be."""


@dataclass(frozen=True, slots=True)
class StageOptions:
    selection: Selection
    choice: Choice
    work: WorkOptions
    accept: Accept
    list_only: bool


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


def add_how(parser: argparse.ArgumentParser, *, accepts: bool = True) -> argparse._ArgumentGroup:
    """Returns the group, so that a stage can add its own flags."""
    parser.set_defaults(accept=False, reason="")
    group = parser.add_argument_group("how")
    valued(group, "--shard", "I/N", "the I-th of N parts of equal length")
    switch(group, "--list", "list the chosen programs and stop")
    group.add_argument("--jobs", "-j", type=count, metavar="N", help="programs in parallel [cores]")
    add_work(group, "a program")
    if accepts:
        add_accept(group, "SUITE.accepted-PROFILE.json beside the suite, or manifests/accepted")
        valued(
            group,
            "--reason",
            "TEXT",
            "why you accept a lost top-1, or less than 10 dB (fp16: 30); kept with the values",
            default="",
        )
    return group


def add_accept(group: argparse._ActionsContainer, kept: str) -> None:
    """`kept`: what it writes."""
    switch(group, "--accept", f"expect the measured values from now on: {kept}")


def stage_options(args: argparse.Namespace) -> StageOptions:
    accept = Accept(args.accept, args.reason)
    return StageOptions(host_selection(args), choice_of(args), work_of(args), accept, args.list)


def add_work(
    group: argparse._ActionsContainer, unit: str, timeout: float = TIMEOUT, *, cached: bool = True
) -> None:
    """The time limit of a `unit` of work, and for work that is cached what is done again. The flags of what
    else `work_of` reads are the command's own."""
    unset = ("jobs", "worker_memory", "run_timeout", "recheck")
    off = ("no_cache", "why", "keep", "keep_going")
    group.set_defaults(**dict.fromkeys(unset), **dict.fromkeys(off, False))
    add_timeout(group, unit, timeout)
    if cached:
        switch(group, "--no-cache", "ignore cached results; new ones are still written")
        switch(group, "--why", "print why each program runs again")


def add_recheck(group: argparse._ActionsContainer) -> None:
    valued(
        group,
        "--recheck",
        "SHARE",
        "compile a random part of the programs twice, such as 10%%, and compare",
        type=share,
    )


def share(text: str) -> float:
    """The type of --recheck."""
    if found := re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)%", text):
        number = float(found[1])
        if 0 < number <= 100:
            return number / 100
    raise argparse.ArgumentTypeError(f"expected a share such as 10%, found {text!r}")


def work_of(args: argparse.Namespace) -> WorkOptions:
    return WorkOptions(
        timeout=args.timeout,
        jobs=args.jobs,
        cache=not args.no_cache,
        why=args.why,
        keep=args.keep,
        keep_going=args.keep_going,
        worker_memory=args.worker_memory and args.worker_memory << 20,
        run_timeout=args.run_timeout or RUN_TIMEOUT,
        recheck=args.recheck or 0.0,
    )


def check(suites: Sequence[Path], flag: str = "--suite") -> None:
    for path in suites:
        if not path.is_file():
            raise UsageError(f"{flag} {path}: there is no file {path.absolute()}", fix="name a TOML file")


def host_selection(args: argparse.Namespace) -> Selection:
    """The selection of a command whose work is for this machine."""
    for target in args.target or ():
        if target != DEFAULT_TARGET:
            raise UsageError(
                f"--target {target}: the emulator runs on {DEFAULT_TARGET}", fix=leave_out("--target")
            )
    return selection_of(args)
