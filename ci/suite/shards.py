"""Parts of a stage of about equal length, by the flag `--shard`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ci.jobs import Job, longest_first
from provisioning.base.commands import Fix
from provisioning.base.errors import UsageError


def shard(jobs: Iterable[Job], index: int, count: int) -> list[Job]:
    """Shard `index` (from 1) of `count`: the same jobs always give the same shards of about equal length."""
    loads = [0.0] * count
    mine: list[Job] = []
    for job in longest_first(jobs):
        lightest = min(range(count), key=lambda shard: (loads[shard], shard))
        # Give a job without an expected length a small one; otherwise all such jobs would be in one shard.
        loads[lightest] += max(job.seconds, 1e-3)
        if lightest == index - 1:
            mine.append(job)
    return mine


def parse_shard(text: str, flag: str = "--shard") -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise UsageError(
            f"{flag} {text}: expected i/n with 1 <= i <= n, such as 1/4", fix=f"{flag} 1/4 is the first"
        )
    return int(index), int(count)


def shard_named(jobs: Sequence[Job], text: str) -> list[Job]:
    """The jobs of the shard that `--shard` names. Raises UsageError for an empty shard: running nothing must
    not pass."""
    mine = shard(jobs, *parse_shard(text))
    if not mine:
        raise UsageError(
            f"--shard {text}: of {len(jobs)} in all, none is left for this part",
            fix=Fix("{}, which makes no empty parts", ("matrix",)),
        )
    return mine
