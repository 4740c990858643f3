"""`--recheck`: do a random part of the cached work again, and compare what it gives with what is cached."""

from __future__ import annotations

import contextlib
import json
import math
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import ne
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ci.engine.entries import digests_of
from ci.engine.inputs import key_of
from ci.engine.jobs import default_slots
from ci.engine.progress import Line, failed
from ci.engine.runs import Repeats, Runs, processor_kind
from ci.engine.work import Again, Assessment, Failure, Finished, Result, RunOptions, Task, do_again
from provisioning.base.files import replace_text

FACTS = "facts.json"

MOST_UNSTEADY = 0.001
"""The part of a file's bytes that may be other bytes each time. A tenth of that was seen."""
BLOCK = 32
"""What QNN leaves unwritten is as long."""
Blocks = Mapping[tuple[str, int], bytes]
"""By file and offset."""


@dataclass(frozen=True, slots=True)
class CachedWork:
    """A cached result that a stage took, and how its work is done."""

    step: str
    task: Task
    result: Result
    how: RunOptions
    once_more: RunOptions
    """How it is done where only some bytes differ: fresh memory holds something else."""
    again: Callable[[Path], Task]
    """The task for a folder of scratch, with other folders for what it writes."""
    assessment: Assessment
    logs: Path

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def seconds(self) -> float:
        """How long it took, or is expected to."""
        taken = self.result.facts.get("seconds")
        if isinstance(taken, int | float) and 0 < taken < math.inf:
            return float(taken)
        return self.task.cost.seconds


@dataclass(frozen=True, slots=True)
class ChangedField:
    field: str
    """A fact or a file."""
    cached: str
    now: str

    def __str__(self) -> str:
        return f"{self.field}: cached {self.cached}, now {self.now}"


@dataclass(frozen=True, slots=True)
class Rechecked:
    step: str
    name: str
    differences: tuple[ChangedField, ...] = ()
    evidence: str = ""
    """Where to look, if they differ."""
    failure: Failure | None = None
    """It could not be done again, which says nothing about the cached result."""
    runs: Runs = field(default_factory=Runs)


@dataclass(frozen=True, slots=True)
class Recheck:
    cached: int = 0
    """How many results the stage took from the cache."""
    done: tuple[Rechecked, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many could not be compared, by the reason."""

    @property
    def compared(self) -> int:
        return sum(not work.failure for work in self.done)

    @property
    def different(self) -> tuple[Rechecked, ...]:
        return tuple(work for work in self.done if work.differences)

    def __str__(self) -> str:
        verdict = f"{len(self.different)} differ" if self.different else "all equal"
        reasons = "".join(f"; {count} not, because {why}" for why, count in self.left_out.items())
        return (
            f"rechecked {self.compared} of {self.cached} cached results"
            + (f": {verdict}" if self.compared else "")
            + reasons
        )


def recheck(cached: Iterable[CachedWork], *, share: float, seconds: float, seed: int) -> Recheck:
    """Do a part of the work again, step by step: this share of it, or what fits into a time. A result that
    differs replaces the cached one, unless its lane does not accept it: then none is cached."""
    every = list(_distinct(cached))
    comparable = [work for work in every if work.result.maker.processor == processor_kind()]
    left_out = Counter({"another kind of processor made them": len(every) - len(comparable)})
    most, until = math.inf, math.inf
    if seconds:
        most, until = seconds * default_slots(), time.monotonic() + seconds
    done: list[Rechecked] = []
    for mine in _by_step(draw(comparable, share, most, seed), every):
        if any(work.differences for work in done):
            # Results that it is built on may have been replaced.
            left_out["an earlier step differs"] += len(mine)
            continue
        results = _done_again(mine, until)
        left_out["the time was over"] += len(mine) - len(results)
        done += results
    return Recheck(len(every), tuple(done), {why: count for why, count in left_out.items() if count})


def draw(cached: Sequence[CachedWork], share: float, seconds: float, seed: int) -> list[CachedWork]:
    """A share of them that takes at most so long; the same seed draws the same."""
    order = sorted(cached, key=lambda work: (work.step, work.name))
    random.Random(seed).shuffle(order)  # noqa: S311
    drawn = []
    for work in order[: math.ceil(share * len(order))]:
        if work.seconds <= seconds:
            seconds -= work.seconds
            drawn.append(work)
    return drawn


def _distinct(cached: Iterable[CachedWork]) -> Iterable[CachedWork]:
    works: dict[object, CachedWork] = {}
    for work in cached:
        works.setdefault((work.task.memo.place, key_of(work.task.key)), work)
    return works.values()


def _by_step(drawn: Sequence[CachedWork], every: Sequence[CachedWork]) -> Iterable[list[CachedWork]]:
    """In the order in which the stage took them, and of one step those that as many threads made."""
    chosen, steps = {id(work) for work in drawn}, dict[tuple[int, int], list[CachedWork]]()
    for work in every:
        if id(work) in chosen:
            steps.setdefault((id(work.how), work.result.maker.threads), []).append(work)
    return steps.values()


def _done_again(
    works: Sequence[CachedWork], until: float, earlier: Mapping[str, Blocks] = MappingProxyType({})
) -> list[Rechecked]:
    """Those of one step; fewer if the time is over. `earlier` has what the work of each gave just before,
    where only some bytes differed: if they are others again, no input decides them."""
    named, first = {work.name: work for work in works}, works[0]
    how = first.once_more if earlier else first.how
    different: dict[str, Rechecked] = {}
    doubtful: dict[str, Blocks] = {}

    def is_same(task: Task, done: Finished) -> bool:
        work = named[task.name]
        differences = tuple(compare(work.result, done, work.how.repeats))
        if earlier and _are_others_again(earlier[task.name], done.folder, differences):
            return True
        if blocks := {} if earlier else _other_blocks(work.result.folder, done.folder, differences):
            doubtful[task.name] = blocks
            return True
        if differences:
            kept = _keep(work.logs / "differs" / work.step / task.name, work.result, done)
            different[task.name] = Rechecked(work.step, task.name, differences, f"both are in {kept}")
            # All entries of the key: what they do not say decides.
            task.memo.forget(task.key)
        return not differences

    def line(name: str, result: Result) -> Line:
        if name in different:
            return failed(f"differs: {different[name].differences[0]}")
        return first.assessment.line(name, result) if result.failure else Line("equal")

    def rechecked(work: CachedWork, result: Result) -> Rechecked:
        failure = result.failure
        if failure is None:
            same = Rechecked(work.step, work.name)
            return replace(different.get(work.name, same), runs=result.runs)
        if failure.of_work:
            what = ChangedField("the work", "passes", f"{failure.kind}: {failure.message}")
            return Rechecked(work.step, work.name, (what,), f"its log is {failure.log}", runs=result.runs)
        return Rechecked(work.step, work.name, failure=failure)

    with tempfile.TemporaryDirectory(prefix="qnn-ci-recheck-") as scratch:
        tasks = [work.again(Path(scratch)) for work in works]
        again = Again(is_same, first.result.maker.threads, until)
        results = do_again(tasks, how, replace(first.assessment, line=line), again)
    sure = [work for work in works if work.name in results and work.name not in doubtful]
    unsure = [work for work in works if work.name in doubtful]
    third = _done_again(unsure, until, doubtful) if unsure else []
    return [*(rechecked(work, results[work.name]) for work in sure), *third]


def compare(cached: Result, now: Finished, repeats: Repeats) -> Iterator[ChangedField]:
    before, after = (repeats.facts(result.facts) for result in (cached, now))
    for name in repeats.different(before, after):
        yield ChangedField(name, *(_text(facts, name) for facts in (before, after)))
    files = [_digests(folder, repeats) for folder in (cached.folder, now.folder)]
    for name in sorted({*files[0], *files[1]}):
        one, other = (file.get(name, "no such file")[:16] for file in files)
        if one != other:
            yield ChangedField(name, one, other)


def _other_blocks(cached: Path | None, now: Path | None, differences: Sequence[ChangedField]) -> Blocks:
    """What now stands where only some bytes of some files differ, which nothing else does: QNN writes what
    memory happens to hold between a constant's values. Empty where more differs."""
    blocks: dict[tuple[str, int], bytes] = {}
    if not cached or not now:
        return blocks
    for name in (difference.field for difference in differences):
        try:
            one, other = ((folder / name).read_bytes() for folder in (cached, now))
        except OSError:
            return {}
        if len(one) != len(other) or sum(map(ne, one, other)) > MOST_UNSTEADY * len(one):
            return {}
        for at in range(0, len(one), BLOCK):
            if one[at : at + BLOCK] != (block := other[at : at + BLOCK]):
                blocks[name, at] = block
    return blocks


def _are_others_again(blocks: Blocks, now: Path | None, differences: Sequence[ChangedField]) -> bool:
    names = {name for name, _ in blocks}
    if not now or not names.issuperset(difference.field for difference in differences):
        return False
    try:
        files = {name: (now / name).read_bytes() for name in names}
    except OSError:
        return False
    return all(files[name][at : at + BLOCK] != block for (name, at), block in blocks.items())


def _text(facts: Mapping[str, Any], name: str) -> str:
    return json.dumps(facts[name]) if name in facts else "nothing"


def _digests(folder: Path | None, repeats: Repeats) -> dict[str, str]:
    digests = digests_of(folder, repeats.digest) if folder else {}
    return {name: digest for name, digest in digests.items() if not repeats.is_changing(name)}


def _keep(kept: Path, cached: Result, now: Finished) -> Path:
    """Both results side by side, for whoever looks for the reason."""
    with contextlib.suppress(OSError):
        shutil.rmtree(kept, ignore_errors=True)
        for name, facts, folder in (
            ("cached", cached.facts, cached.folder),
            ("now", now.facts, now.folder or now.evidence),
        ):
            place = kept / name
            place.mkdir(parents=True)
            if folder:
                shutil.copytree(folder, place, dirs_exist_ok=True)
            replace_text(place / FACTS, json.dumps(dict(facts), indent=2, sort_keys=True) + "\n")
    return kept
