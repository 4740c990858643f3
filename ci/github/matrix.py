"""`matrix`: print the suite as the JSON of a CI matrix, in shards of equal length."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci.lanes.registry import lane_named, lanes_with_suites
from ci.suite.options import Choice, add_choice, choice_of, shard
from ci.work import Job
from provisioning.base.commands import repeat_flag
from provisioning.base.flags import add_valued, count
from provisioning.base.option_fields import option_words
from provisioning.base.parser import Parser
from provisioning.base.selection import add_selection, selection_of

EXAMPLES = """\
  nox -s matrix -- --shards 4
  nox -s matrix -- --suite ../mine/models.toml --tag nightly
"""

WORTH_A_JOB = 90
"""Less work than this many seconds is not worth one more machine, which takes a minute to be ready."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    add_choice(parser, "matrix")
    group = parser.add_argument_group("matrix")
    add_valued(
        group,
        "--shards",
        "N",
        "at most this many jobs; fewer where one more would not pay [%(default)s]",
        type=count,
        default=4,
    )


def run(args: argparse.Namespace) -> int:
    choice = choice_of(args)
    # For jobs on other machines, which begin in a folder of their own.
    elsewhere = replace(choice, suites=tuple(Path(from_here(path)) for path in choice.suites))
    flags = [
        *option_words(elsewhere, "matrix"),
        *repeat_flag("--soc", args.soc),
        *repeat_flag("--profile", [args.profile]),
    ]
    matrix = matrix_for(args, os.environ, choice, flags)
    sys.stdout.write(f"{json.dumps(matrix)}\n")
    return 0


def matrix_for(
    args: argparse.Namespace, environ: Mapping[str, str], choice: Choice, flags: Sequence[str]
) -> dict[str, list[dict[str, object]]]:
    """The matrix of these suites, or of the shipped one; `flags` are passed to the jobs."""
    jobs = lane_named(lane_to_split(choice.suites)).lane.chosen_jobs(choice, selection_of(args, environ))
    return matrix_of(jobs, args.shards, flags)


def lane_to_split(suites: Sequence[Path]) -> str:
    """The lane whose programs the jobs share: if the suites have several, the first of the registry."""
    from ci.suite.suite_file import lanes_of

    names = {name for suite in suites for name in lanes_of(suite)}
    lanes = [row.head.name for row in lanes_with_suites()]
    return next((lane for lane in lanes if lane in names), lanes[0])


def from_here(path: Path) -> str:
    """The path relative to the folder in which the command was typed."""
    return os.path.relpath(path, Parser.user_folder().absolute())


def matrix_of(jobs: Sequence[Job], shards: int, flags: Sequence[str]) -> dict[str, list[dict[str, object]]]:
    """Return one entry for each shard that has programs; `arguments` are those after the session's `--`."""
    worth = math.ceil(sum(job.seconds for job in jobs) / WORTH_A_JOB)
    count = min(shards, len(jobs), max(1, worth))
    include: list[dict[str, object]] = []
    for index in range(1, count + 1):
        members = shard(jobs, index, count)
        include.append(
            {
                "shard": f"{index}/{count}",
                "programs": len(members),
                "seconds": round(sum(job.seconds for job in members)),
                "arguments": shlex.join([*flags, "--shard", f"{index}/{count}"]),
            }
        )
    return {"include": include}
