"""Define and read the flags that choose a suite's programs and how they are processed, and interpret the
expressions of `-k` and the parts of `--shard`. Imports nothing heavy."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from ci.suite.lane_head import (
    AUDIT,
    COMPILE,
    DEVICE_STAGE,
    DIVERGENCE,
    FROM_MODEL,
    KEEPING_STAGE,
    LANGUAGE_STAGE,
    ONE_MODEL,
    RUN,
    STAGE,
    STAGES,
    TESTS,
    TUNE,
    LaneStage,
    judging_stages,
)
from ci.work import Job, WorkOptions, longest_first
from provisioning.base.commands import Fix
from provisioning.base.errors import UnknownName, UsageError
from provisioning.base.flags import TIMEOUT, count, duration
from provisioning.base.option_fields import Options, add_options, option, read_options
from provisioning.base.selection import host_selection
from provisioning.base.settings import Selection

SHIPPED = "manifests/suites/models.toml"
COMMANDS = ("divergence", "quantize", "matrix")
"""Other verbs take programs of suites, too."""
CHOOSING = (*STAGES, *COMMANDS)
GATE, GATE_TAG = "gate", "pr"
"""The gate runs the shipped suite's programs with this tag, but all programs of a user's own suite."""
FOLDER, AIHUB = "folder", "aihub"
"""The ways by which a suite's stage on devices gets outputs."""
WHICH, HOW, ON_DEVICE = "what to work on", "how", "the device"
"""These are headings of --help."""
OF_MACHINE = "it says how the work is done, and not which"
SHOWS = "it chooses what is done with a result"

LANGUAGE_TIMEOUT = 4 * 3600.0
"""Work on a language model ends after this many seconds: one with a billion weights takes minutes to compile,
and seconds for each token."""
SEARCH_TIMEOUT = 1200.0
"""The search of `divergence` ends after this many seconds."""


@dataclass(frozen=True)
class Choice(Options):
    """Chooses programs and suites; an empty field chooses all."""

    suites: tuple[Path, ...] = option(
        (),
        "--suite",
        f"cases as in {SHIPPED}, which is the default; may be repeated",
        metavar="FILE",
        parse=Path,
        verbs=(*CHOOSING, GATE),
        helps={
            LANGUAGE_STAGE: "cases as in manifests/suites/llm.toml, which is the default; may be repeated",
            GATE: "models of your own, for the stages of their lanes; may be repeated",
        },
        group=WHICH,
    )
    tags: tuple[str, ...] = option(
        (),
        "--tag",
        "runs with this tag: pr, nightly; may be repeated",
        metavar="TAG",
        verbs=(*CHOOSING, GATE),
        helps={GATE: f"only runs with this tag; may be repeated [{GATE_TAG}; with --suite all]"},
        group=WHICH,
    )
    words: tuple[str, ...] = option(
        (),
        "-k",
        "parts of names CASE/RUN/SOC with and, or, not and parentheses; may be repeated",
        metavar="EXPR",
        verbs=(*CHOOSING, TESTS),
        helps={TESTS: "parts of names with and, or, not and parentheses; may be repeated"},
        group=WHICH,
    )
    shard: str = option(
        "",
        "--shard",
        "the I-th of N parts of equal length",
        metavar="I/N",
        verbs=(*STAGES, TESTS, GATE),
        helps={GATE: "of each lane the I-th of N parts of equal length, as one of N machines"},
        group=HOW,
        unprinted="one program is no part of several",
    )


@dataclass(frozen=True)
class WorkFlags(Options):
    """How work is done: the flags that stages and commands for one model share. No result depends on
    them."""

    jobs: int | None = option(
        None,
        "--jobs",
        "programs in parallel [cores]",
        letter="-j",
        metavar="N",
        parse=count,
        verbs=(COMPILE, AUDIT, TUNE, *STAGES, TESTS, GATE),
        group=HOW,
        helps={TESTS: "workers in parallel [cores]"},
        unprinted=OF_MACHINE,
        decides_nothing=OF_MACHINE,
    )
    timeout: float | None = option(
        None,
        "--timeout",
        f"end a step after S seconds [{TIMEOUT:g}]",
        metavar="S",
        parse=duration,
        verbs=(*ONE_MODEL, *STAGES, TESTS, GATE),
        group=HOW,
        helps={
            COMPILE: f"end a step after S seconds [{TIMEOUT:g}; of a language model {LANGUAGE_TIMEOUT:g}]",
            RUN: f"end a run after S seconds [{TIMEOUT:g}; of a language model {LANGUAGE_TIMEOUT:g}]",
            DIVERGENCE: f"end the search after S seconds [{SEARCH_TIMEOUT:g}]",
            **dict.fromkeys((*STAGES, GATE), f"end a program after S seconds [{TIMEOUT:g}]"),
            TESTS: f"end a test after S seconds [{TIMEOUT:g}]",
        },
        unprinted=OF_MACHINE,
        decides_nothing=OF_MACHINE,
    )
    cache: bool = option(
        True,
        "--no-cache",
        "ignore cached results; new ones are still written",
        verbs=(*FROM_MODEL, *STAGES, TESTS),
        group=HOW,
        helps={TESTS: "run unchanged tests too"},
        unprinted=OF_MACHINE,
        decides_nothing=OF_MACHINE,
    )
    why: bool = option(
        False,
        "--why",
        "print why each program runs again",
        verbs=(*FROM_MODEL, *STAGES),
        group=HOW,
        unprinted=OF_MACHINE,
        decides_nothing=OF_MACHINE,
    )

    def work_options(self, timeout: float = TIMEOUT) -> WorkOptions:
        """Return how work is done. `timeout` applies if the user names none."""
        return WorkOptions(self.timeout or timeout, self.jobs, cache=self.cache, why=self.why)


@dataclass(frozen=True)
class StageFlags(WorkFlags):
    """What a stage does with the programs that are chosen."""

    listed: bool = option(
        False,
        "--list",
        "list the chosen programs and stop",
        verbs=(*STAGES, TESTS),
        group=HOW,
        helps={TESTS: "list the chosen tests and run none"},
        unprinted="a command that repeats work lists none",
        decides_nothing=SHOWS,
    )
    accept: bool = option(
        False,
        "--accept",
        "expect the measured values from now on: SUITE.accepted-PROFILE.json beside the suite, or"
        " manifests/accepted",
        verbs=(STAGE, KEEPING_STAGE, DEVICE_STAGE, TESTS),
        group=HOW,
        helps={TESTS: "expect the measured values from now on: outcomes and lengths, in manifests/upstream"},
        unprinted="a command is printed with it only where a person may agree to what was measured",
        decides_nothing=SHOWS,
    )
    keep: bool = option(
        False,
        "--keep",
        "do all work again, and keep its files among the reports",
        verbs=(KEEPING_STAGE, LANGUAGE_STAGE, TESTS),
        group=HOW,
        helps={TESTS: "keep the files of tests that pass too"},
        unprinted=OF_MACHINE,
        decides_nothing=SHOWS,
    )

    def work_options(self, timeout: float = TIMEOUT) -> WorkOptions:
        return replace(WorkFlags.work_options(self, timeout), keep=self.keep)


@dataclass(frozen=True)
class DeviceFlags(Options):
    """Where a stage on devices gets the outputs of its programs."""

    way: str = option(
        FOLDER,
        "--on",
        "where the programs run; folder: elsewhere, and --outputs has what they gave; aihub: on a phone of"
        f" Qualcomm AI Hub [{FOLDER}]",
        choices=(FOLDER, AIHUB),
        verbs=(DEVICE_STAGE,),
        decides_nothing=SHOWS,
    )
    device: str = option(
        "",
        "--device",
        "a device of AI Hub, such as 'Galaxy S25'",
        metavar="NAME",
        verbs=(DEVICE_STAGE,),
        decides_nothing=SHOWS,
    )
    yes: bool = option(
        False,
        "--yes",
        "agree that programs and samples are uploaded to AI Hub; a suite's `upload = true` agrees too",
        verbs=(DEVICE_STAGE,),
        decides_nothing=SHOWS,
    )
    measure: bool = option(
        False,
        "--measure",
        "let AI Hub also measure latency, memory and where layers ran",
        verbs=(DEVICE_STAGE,),
        decides_nothing=SHOWS,
    )
    outputs: Path | None = option(
        None,
        "--outputs",
        "a folder with a folder CASE/RUN/SOC for each program, as its runner wrote it",
        metavar="DIR",
        parse=Path,
        verbs=(DEVICE_STAGE,),
        decides_nothing=SHOWS,
    )


NO_DEVICE = DeviceFlags()


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
    device: DeviceFlags = field(default=NO_DEVICE, kw_only=True)


def add_choice(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the flags that choose a suite's programs for this verb."""
    add_options(parser, verb, {WHICH: Choice})


def choice_of(args: argparse.Namespace) -> Choice:
    choice = read_options(Choice, args)
    check(choice.suites)
    return replace(choice, suites=tuple(path.absolute() for path in choice.suites))


def add_stage_flags(parser: argparse.ArgumentParser, stage: LaneStage) -> None:
    """Add the flags of a lane's stage: which programs it takes, and how it processes them."""
    add_choice(parser, stage.flags)
    add_options(parser, stage.flags, {HOW: StageFlags, ON_DEVICE: DeviceFlags})


def stage_options(args: argparse.Namespace) -> StageOptions:
    selection, choice, flags = host_selection(args), choice_of(args), read_options(StageFlags, args)
    return StageOptions(
        selection,
        choice,
        flags.work_options(),
        flags.accept,
        flags.listed,
        stages=judging_stages(),
        device=read_options(DeviceFlags, args),
    )


NO_SUITES = (".json", ".onnx", ".pt2", ".pte", ".py", ".yaml", ".yml")


def check(suites: Sequence[Path], flag: str = "--suite") -> None:
    for path in suites:
        if path.is_dir():
            inside = ", ".join(sorted(file.name for file in path.glob("*.toml")))
            raise UsageError(
                f"{flag} {path}: expected a TOML file, found a folder",
                fix=f"name a file in it: {inside}" if inside else "name a TOML file",
            )
        if not path.is_file():
            message = f"{flag} {path}: there is no such file"
            suites_beside = [file.name for file in path.parent.glob("*.toml")]
            if get_close_matches(path.name, suites_beside, n=1):
                raise UnknownName(message, path.name, suites_beside)
            raise UsageError(message, fix="name a TOML file")
        if path.suffix in NO_SUITES:
            flags = ("--suite", "SUITE.toml", "-o", "out")
            fix = Fix("{} writes a suite of a model", ("compile", "MODEL", *flags))
            raise UsageError(f"{flag} {path}: expected a TOML file, found {path.suffix}", fix=fix)


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
