"""Define and read the flags that choose a suite's programs and how they are processed, and interpret the
expressions of `-k` and the parts of `--shard`. Imports nothing heavy."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from ci.suite.lane_head import judging_stages
from ci.work.jobs import Job, WorkOptions, longest_first
from provisioning.base.command_line import TIMEOUT, add_timeout, count, switch
from provisioning.base.commands import Fix, leave_out
from provisioning.base.errors import UsageError
from provisioning.base.option_fields import Options, add_options, group_named, option, read_options
from provisioning.base.selection import selection_of
from provisioning.base.settings import DEFAULT_TARGET, Selection

SHIPPED = "manifests/suites/models.toml"
STAGE, LANGUAGE_STAGE = "a lane's stage", "the stage of language models"
"""These stand for the stages that run a suite; the registry of lanes has their names."""
STAGES = (STAGE, LANGUAGE_STAGE)
COMMANDS = ("divergence", "quantize", "matrix")
"""Other verbs take programs of suites, too."""
CHOOSING = (*STAGES, *COMMANDS)
WHICH = "which programs"


@dataclass(frozen=True)
class Choice(Options):
    """Chooses programs and suites; an empty field chooses all."""

    suites: tuple[Path, ...] = option(
        (),
        "--suite",
        f"cases as in {SHIPPED}, which is the default; may be repeated",
        metavar="FILE",
        parse=Path,
        verbs=CHOOSING,
        helps={
            LANGUAGE_STAGE: "cases as in manifests/suites/llm.toml, which is the default; may be repeated",
        },
        group=WHICH,
    )
    tags: tuple[str, ...] = option(
        (),
        "--tag",
        "runs with this tag: pr, nightly; may be repeated",
        metavar="TAG",
        verbs=CHOOSING,
        group=WHICH,
    )
    words: tuple[str, ...] = option(
        (),
        "-k",
        "parts of names CASE/RUN/SOC with and, or, not and parentheses; may be repeated",
        metavar="EXPR",
        verbs=CHOOSING,
        group=WHICH,
    )
    shard: str = option(
        "",
        "--shard",
        "the I-th of N parts of equal length",
        metavar="I/N",
        verbs=STAGES,
        group="how",
        unprinted="one program is no part of several",
    )


@dataclass(frozen=True, slots=True)
class StageOptions:
    selection: Selection
    choice: Choice
    work: WorkOptions
    accept: bool
    """Whether measured values become the expected ones."""
    list_only: bool
    stages: tuple[str, ...] = field(default=(), kw_only=True)
    """The stages of the lane that judge the pass; empty if the one that was typed does so alone."""


def add_choice(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the flags that choose a suite's programs for this verb."""
    add_options(parser, verb, {WHICH: Choice})


def choice_of(args: argparse.Namespace) -> Choice:
    choice = read_options(Choice, args)
    check(choice.suites)
    return replace(choice, suites=tuple(path.absolute() for path in choice.suites))


def add_how(parser: argparse.ArgumentParser, *, accepts: bool = True) -> argparse._ArgumentGroup:
    """Add the flags of how programs are processed. Returns the group, so that a stage can add its own
    flags."""
    parser.set_defaults(accept=False)
    group = group_named(parser, "how")
    switch(group, "--list", "list the chosen programs and stop")
    group.add_argument("--jobs", "-j", type=count, metavar="N", help="programs in parallel [cores]")
    add_work(group, "a program")
    if accepts:
        add_accept(group, "SUITE.accepted-PROFILE.json beside the suite, or manifests/accepted")
    return group


def add_accept(group: argparse._ActionsContainer, files: str) -> None:
    """Add --accept; `files` names what it writes."""
    switch(group, "--accept", f"expect the measured values from now on: {files}")


def stage_options(args: argparse.Namespace) -> StageOptions:
    choice, work = choice_of(args), work_of(args)
    stages = judging_stages()
    return StageOptions(host_selection(args), choice, work, args.accept, args.list, stages=stages)


def add_work(
    group: argparse._ActionsContainer, unit: str, timeout: float | None = TIMEOUT, *, cached: bool = True
) -> None:
    """Add the flag for the time limit of a `unit` of work, and for cached work --no-cache and --why. The
    command adds the other flags that `work_of` reads. If `timeout` is None, it also adds the time limit
    itself."""
    off = ("no_cache", "why", "keep")
    group.set_defaults(jobs=None, **dict.fromkeys(off, False))
    if timeout is not None:
        add_timeout(group, unit, timeout)
    if cached:
        switch(group, "--no-cache", "ignore cached results; new ones are still written")
        switch(group, "--why", "print why each program runs again")


def work_of(args: argparse.Namespace, timeout: float = TIMEOUT) -> WorkOptions:
    """Read how work is done. `timeout` applies if the user names none."""
    return WorkOptions(
        timeout=args.timeout or timeout,
        jobs=args.jobs,
        cache=not args.no_cache,
        why=args.why,
        keep=args.keep,
    )


def check(suites: Sequence[Path], flag: str = "--suite") -> None:
    for path in suites:
        if not path.is_file():
            raise UsageError(f"{flag} {path}: there is no file {path.absolute()}", fix="name a TOML file")


def host_selection(args: argparse.Namespace) -> Selection:
    """The selection of a command that works for this machine."""
    for target in args.target or ():
        if target != DEFAULT_TARGET:
            raise UsageError(
                f"--target {target}: the emulator runs on {DEFAULT_TARGET}", fix=leave_out("--target")
            )
    return selection_of(args)


_TOKEN = re.compile(r"[()]|[^\s()]+")
_OPERATORS = {"and", "or", "not", "(", ")"}
_ALLOWED = (ast.Expression, ast.BoolOp, ast.UnaryOp, ast.Not, ast.And, ast.Or, ast.Constant)


def matcher(expressions: Sequence[str], *, whole_name: bool = False) -> Callable[[str], bool]:
    """Return a predicate over names that is true if any of the expressions holds; without expressions it is
    always true.

    A word matches any part of a name, in any case, and `*` in it matches anything; with `whole_name` a word
    with `*` must match the whole name."""
    trees = [_parse(expression, whole_name) for expression in expressions]
    return lambda name: not trees or any(_holds(*tree, name.lower()) for tree in trees)


Words = Mapping[int, Callable[[str], bool]]
"""Maps the position of each word in the parsed text to its test of a name."""


def _parse(expression: str, whole_name: bool) -> tuple[ast.expr, Words]:
    text, words = "", {}
    for token in _TOKEN.findall(expression):
        if token not in _OPERATORS:
            words[len(text)] = partial(_matches, token.lower(), whole_name=whole_name)
        text += f"{token if token in _OPERATORS else True} "
    try:
        tree = ast.parse(text, mode="eval")
        if not all(isinstance(node, _ALLOWED) for node in ast.walk(tree)):
            raise SyntaxError("two names without `and` or `or` between them")
    except SyntaxError as error:
        raise UsageError(
            f"-k {expression!r} is not an expression: {error.msg}",
            fix="-k 'conv2d and not (quantized or fp16)'",
        ) from error
    return tree.body, words


def _holds(node: ast.expr, words: Words, name: str) -> bool:
    if isinstance(node, ast.BoolOp):
        values = (_holds(value, words, name) for value in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.UnaryOp):
        return not _holds(node.operand, words, name)
    return words[node.col_offset](name)


def _matches(word: str, name: str, *, whole_name: bool) -> bool:
    if "*" not in word:
        return word in name
    return fnmatchcase(name, word if whole_name else f"*{word}*")


def shard(jobs: Iterable[Job], index: int, count: int) -> list[Job]:
    """Return shard `index` (from 1) of `count`: the same jobs always give the same shards of about equal
    length."""
    loads = [0.0] * count
    part: list[Job] = []
    for job in longest_first(jobs):
        lightest = min(range(count), key=lambda shard: (loads[shard], shard))
        # Give a job without an expected length a small one; otherwise all such jobs would be in one shard.
        loads[lightest] += max(job.seconds, 1e-3)
        if lightest == index - 1:
            part.append(job)
    return part


def parse_shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise UsageError(
            f"--shard {text}: expected i/n with 1 <= i <= n, such as 1/4", fix="--shard 1/4 is the first"
        )
    return int(index), int(count)


def shard_named(jobs: Sequence[Job], text: str) -> list[Job]:
    """Return the jobs of the shard that `--shard` names. Raises UsageError for an empty shard: running
    nothing must not pass."""
    part = shard(jobs, *parse_shard(text))
    if not part:
        raise UsageError(
            f"--shard {text}: of {len(jobs)} in all, none is left for this part",
            fix=Fix("{}, which makes no empty parts", ("matrix",)),
        )
    return part
