"""The part of the tests that one machine runs."""

from __future__ import annotations

import argparse
from collections import Counter

import pytest

from ci.suite.options import parse_shard, shard
from ci.work.jobs import Job
from provisioning.base.errors import UsageError

SHARD = "--shard"


def add_flags(group: pytest.OptionGroup) -> None:
    group.addoption(SHARD, metavar="I/N", type=_shard, help="the I-th of N parts of the files")


def _shard(text: str) -> str:
    try:
        parse_shard(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return text


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
