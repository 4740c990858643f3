"""The order in which tests run, and the part of them that one machine runs.

`--random-order new` draws a seed and prints it; `--random-order SEED` gives that order again.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from collections import Counter

import pytest

from ci.engine.jobs import Job, parse_shard, shard
from provisioning.base.errors import UsageError

RANDOM, SHARD = "--random-order", "--shard"


def add_flags(group: pytest.OptionGroup) -> None:
    group.addoption(
        RANDOM,
        metavar="SEED",
        type=_seed,
        help="files, and the tests of each, in an order that this number decides; `new` draws and prints one",
    )
    group.addoption(SHARD, metavar="I/N", type=_shard, help="the I-th of N parts of the files")


def hand_over(config: pytest.Config, workerinput: dict[str, object]) -> None:
    """To a worker of xdist, which reads the command line again and would draw a number of its own."""
    workerinput[RANDOM] = config.getoption(RANDOM)


def take_over(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.option.random_order = config.workerinput[RANDOM]


def _seed(text: str) -> int:
    if text == "new":
        return random.randrange(1, 1_000_000)
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: expected a number, or `new`")
    return int(text)


def _shard(text: str) -> str:
    try:
        parse_shard(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return text


def describe(config: pytest.Config) -> list[str]:
    """How to get this order again; nothing for the ordinary one."""
    seed = config.getoption(RANDOM)
    return [] if seed is None else [f"random order; again with {RANDOM} {seed}"]


def shuffle(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A file's tests stay together, and a class's: what they share is made once.

    A test's place follows from its name and the seed, so that it keeps it when fewer tests are chosen.
    """
    seed = config.getoption(RANDOM)
    if seed is None:
        return

    def place(*names: str) -> bytes:
        return hashlib.sha256("\0".join((str(seed), *names)).encode()).digest()

    def key(item: pytest.Item) -> tuple[bytes, ...]:
        file, _, test = item.nodeid.partition("::")
        name, _, _ = test.partition("[")
        return place(file), place(file, name.rpartition("::")[0]), place(item.nodeid)

    items.sort(key=key)


def take_shard(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whole files: the tests of a file share what takes long to make."""
    if config.getoption(SHARD) is None:
        return
    files = Counter(_file(item) for item in items)
    jobs = [Job(file, seconds=count) for file, count in files.items()]
    mine = {job.name for job in shard(jobs, *parse_shard(config.getoption(SHARD)))}
    config.hook.pytest_deselected(items=[item for item in items if _file(item) not in mine])
    items[:] = [item for item in items if _file(item) in mine]


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
