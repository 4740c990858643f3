"""`--recheck`: do a random part of the work twice, compare what it gives, and say where that differs."""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from ci.outcome import Failure, Result
from ci.plain import Facts
from ci.results import digests_in, flat
from provisioning.base.commands import Fix
from provisioning.base.files import hash_file, replace_text
from provisioning.base.findings import Finding, Metric, Severity

FACTS = "facts.json"

MEASURED = ("seconds", "cpu_seconds", "peak", "resident")
"""Facts that every run measures anew: time and memory."""

FILLED = {"MALLOC_PERTURB_": "165", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
"""Fresh memory holds this byte's complement both times: QNN writes what memory happens to hold between a
constant's values."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """What of a step's result is the same when its work is done twice: as it stands here, every fact but time
    and memory, and every byte of its files."""

    changing: tuple[str, ...] = ()
    """Patterns of facts, by dotted names, and of files that are not compared."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """How far numbers may be off: by this part of them, or by this much."""
    digest: Callable[[Path], str] = hash_file
    """Of those bytes of a file that repeat."""

    def differences(self, first: Result, second: Result) -> Iterator[ChangedField]:
        facts = self._facts(first.facts), self._facts(second.facts)
        for name in sorted({*facts[0], *facts[1]}):
            if not self._same(name, facts[0], facts[1]):
                yield ChangedField(name, *(_text(values, name) for values in facts))
        files = self._digests(first.folder), self._digests(second.folder)
        for name in sorted({*files[0], *files[1]}):
            one, other = (digests.get(name, "no such file")[:16] for digests in files)
            if one != other:
                yield ChangedField(name, one, other)

    def _facts(self, facts: Facts) -> Facts:
        """Those that repeat, as they are cached, by dotted name."""
        return {
            name: value
            for name, value in flat(json.loads(json.dumps(dict(facts))))
            if name.rpartition(".")[2] not in MEASURED and not self._is_changing(name)
        }

    def _digests(self, folder: Path | None) -> dict[str, str]:
        digests = digests_in(folder, self.digest)
        return {name: digest for name, digest in digests.items() if not self._is_changing(name)}

    def _is_changing(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.changing)

    def _same(self, name: str, first: Facts, second: Facts) -> bool:
        if name not in first or name not in second:
            return False
        one, other = first[name], second[name]
        if json.dumps(one) == json.dumps(other):
            return True
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (one, other))
        tolerances = (value for pattern, value in self.figures.items() if fnmatchcase(name, pattern))
        return numbers and any(
            math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance) for tolerance in tolerances
        )


@dataclass(frozen=True, slots=True)
class ChangedField:
    field: str
    """A fact or a file."""
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.field}: {self.first}, then {self.second}"


@dataclass(frozen=True, slots=True)
class RepeatableWork:
    """Work of a step that passed, and how it is done again."""

    step: str
    name: str
    again: Callable[[Sequence[str], Path], Mapping[str, Result]]
    """Does work of these names, in processes whose memory is FILLED and without the cache; it writes to this
    folder."""
    repeats: Repeats
    logs: Path


@dataclass(frozen=True, slots=True)
class Rechecked:
    step: str
    name: str
    differences: tuple[ChangedField, ...] = ()
    evidence: Path | None = None
    """Where both results are, if they differ."""
    failure: Failure | None = None
    """It could not be done twice, so nothing was compared."""


def twice(works: Iterable[RepeatableWork], share: float) -> list[Rechecked]:
    """Do a random share of the work twice, step by step."""
    steps: dict[int, list[RepeatableWork]] = {}
    for work in draw(list(works), share):
        steps.setdefault(id(work.again), []).append(work)
    return [rechecked for drawn in steps.values() for rechecked in _twice(drawn)]


def draw(works: Sequence[RepeatableWork], share: float) -> list[RepeatableWork]:
    return random.sample(works, math.ceil(share * len(works)))


def _twice(works: Sequence[RepeatableWork]) -> Iterator[Rechecked]:
    names = [work.name for work in works]
    with tempfile.TemporaryDirectory(prefix="qnn-ci-recheck-") as scratch:
        results = [works[0].again(names, Path(scratch)) for _ in range(2)]
        for work in works:
            first, second = (by_name[work.name] for by_name in results)
            yield _compared(work, first, second)
            for folder in filter(None, (first.folder, second.folder)):
                shutil.rmtree(folder, ignore_errors=True)


def _compared(work: RepeatableWork, first: Result, second: Result) -> Rechecked:
    failures = first.failure, second.failure
    if failure := next((failure for failure in failures if failure and not failure.of_work), None):
        return Rechecked(work.step, work.name, failure=failure)
    if any(failures):
        words = (f"{failure.kind}: {failure.message}" if failure else "passes" for failure in failures)
        differences: tuple[ChangedField, ...] = (ChangedField("the work", *words),)
    else:
        differences = tuple(work.repeats.differences(first, second))
    if not differences:
        return Rechecked(work.step, work.name)
    kept = work.logs / "differs" / work.step / work.name
    shutil.rmtree(kept, ignore_errors=True)
    for name, result in (("first", first), ("second", second)):
        _keep(kept / name, result)
    return Rechecked(work.step, work.name, differences, kept)


def _keep(place: Path, result: Result) -> None:
    place.mkdir(parents=True)
    if result.folder:
        shutil.copytree(result.folder, place, dirs_exist_ok=True)
    replace_text(place / FACTS, json.dumps(dict(result.facts), indent=2, sort_keys=True) + "\n")


def _text(facts: Facts, name: str) -> str:
    return json.dumps(facts[name]) if name in facts else "nothing"


SHOWN = 3
"""How many differences of a program its message names."""


def recheck(works: Iterable[RepeatableWork], share: float) -> list[Rechecked]:
    """Compile this share of the programs twice, and print how many were equal."""
    passed = list(works)
    done = twice(passed, share)
    different = sum(bool(work.differences) for work in done)
    failed = sum(work.failure is not None for work in done)
    verdict = f"{different} differ" if different else f"{len(done) - failed} equal"
    not_compared = f", {failed} could not be compared" if failed else ""
    sys.stderr.write(f"compiled {len(done)} of {len(passed)} programs twice: {verdict}{not_compared}\n")
    return done


def metrics(done: Iterable[Rechecked]) -> dict[str, Metric]:
    """The names of the programs that were compared."""
    return {"rechecked": [work.name for work in done if not work.failure]}


def findings(done: Iterable[Rechecked], again: Callable[[Rechecked], Fix]) -> Iterator[Finding]:
    """`again` gives the command that runs its program."""
    for work in done:
        command = again(work).plus("--recheck", "100%")
        if failure := work.failure:
            message = f"it was not compiled twice: {failure.message}"
            fix = Fix("{}; then {}", failure.fix, command) if failure.fix else command
            yield Finding(f"recheck-{failure.rule}", Severity.ERROR, work.name, message, fix)
        elif work.differences:
            more = len(work.differences) - SHOWN
            words = [*map(str, work.differences[:SHOWN]), *([f"and {more} more"] if more > 0 else [])]
            message = f"compiling it twice gave two results: {'; '.join(words)}; both are in {work.evidence}"
            fix = Fix("{} shows whether it does so each time; report it with both results", command)
            yield Finding("recheck-differs", Severity.ERROR, work.name, message, fix)
