"""What became of the same work each time it was done: whether it is flaky, or has been steady for long."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ci.engine.inputs import key_of
from provisioning.base.files import hash_file

MEASURED = ("seconds", "cpu_seconds", "peak", "resident")
"""Facts that every run measures anew: time and memory."""

STEADY = 30
"""After so many runs with one verdict, chance has no part in it any more."""

PASSED, REFUSED = "passed", "not accepted"
"""Verdicts of work that gave figures. Which of the two is decided anew when thresholds change."""

MOST_FIGURES = 200
LONGEST = 80

OF_PROCESSOR = (
    "vendor_id", "cpu family", "model", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features",
)  # fmt: skip
"""Of /proc/cpuinfo."""


class Maker(NamedTuple):
    """What rounds sums in a way of its own: the processor and the number of threads. Neither is an input, as
    machines share results."""

    processor: str = ""
    threads: int = 0


UNKNOWN_MAKER = Maker()


@cache
def processor_kind() -> str:
    """Of this machine: its name, and a digest of what libraries choose their code by."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        lines = text.partition("\n\n")[0].splitlines()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    known = {name: fields[name] for name in OF_PROCESSOR if name in fields}
    return f"{fields.get('model name', os.uname().machine)} {key_of(known)[:8]}"


@dataclass(frozen=True, slots=True)
class Repeats:
    """What of a step's result is the same when its work is done again with as many threads, on a processor of
    the same kind: as it stands here, every fact but time and memory, and every byte of its files.

    Patterns are of facts, by dotted names, and of files."""

    changing: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    """How far numbers may be off: by this part of them, or by this much."""
    digest: Callable[[Path], str] = hash_file
    """Of those bytes of a file that repeat."""
    verdict: str = ""
    """The fact that is the verdict; without one, or where it is empty, whether it is accepted."""

    def verdict_of(self, facts: Mapping[str, Any]) -> str:
        return str(facts.get(self.verdict) or "") if self.verdict else ""

    def is_changing(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.changing)

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Those that repeat, as they are cached, by dotted name."""
        return {
            name: value
            for name, value in flat(json.loads(json.dumps(dict(facts))))
            if name.rpartition(".")[2] not in MEASURED and not self.is_changing(name)
        }

    def different(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
        both = before.keys() & now.keys()
        changed = {name for name in both if not self._same(name, before[name], now[name])}
        return sorted(changed | (before.keys() ^ now.keys()))

    def _same(self, name: str, one: Any, other: Any) -> bool:
        if json.dumps(one) == json.dumps(other):
            return True
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (one, other))
        tolerances = (value for pattern, value in self.figures.items() if fnmatchcase(name, pattern))
        return numbers and any(
            math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance) for tolerance in tolerances
        )


@dataclass(frozen=True, slots=True)
class Run:
    """One time that work was done. Never a result."""

    verdict: str
    """`passed`, `not accepted`, the kind of its failure, or what a step names (`Repeats.verdict`)."""
    processor: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Of work that gave some."""
    rechecked: bool = False
    """Whether --recheck found it to differ from what was cached."""

    @classmethod
    def of(cls, facts: Mapping[str, Any], processor: str, repeats: Repeats) -> Run:
        verdict = repeats.verdict_of(facts) or PASSED
        small = {
            name: value
            for name, value in repeats.facts(facts).items()
            if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= LONGEST)
        }
        return cls(verdict, processor, dict(sorted(small.items())[:MOST_FIGURES]))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Runs:
    """Those of one key and the same inputs, the last one last."""

    runs: tuple[Run, ...] = ()
    repeats: Repeats = field(default_factory=Repeats)

    @property
    def verdicts(self) -> list[str]:
        """Of the last runs. Equal figures are judged as they were last: thresholds may have changed."""
        judged: list[Run] = []
        verdicts: list[str] = []
        for run in reversed(self.runs[-STEADY:]):
            same = (before for before in judged if self._equal(before, run))
            verdicts.append(next(same, run).verdict)
            judged.append(run)
        return verdicts[::-1]

    def _equal(self, one: Run, other: Run) -> bool:
        measured = {one.verdict, other.verdict} <= {PASSED, REFUSED}
        return measured and not self.repeats.different(one.figures, other.figures)

    @property
    def flaky(self) -> str:
        """How often it gave which verdict; empty if there is but one."""
        counts = Counter(self.verdicts)
        if len(counts) < 2:
            return ""
        counted = ", ".join(f"{verdict} in {count}" for verdict, count in counts.most_common())
        kinds = len({run.processor for run in self.runs[-STEADY:]})
        where = f", on {kinds} kinds of processor" if kinds > 1 else ""
        return f"{counted} of {sum(counts.values())} runs with the same key and inputs{where}"

    @property
    def steady(self) -> bool:
        return len(self.runs) >= STEADY and not self.flaky

    @property
    def rechecked(self) -> str:
        """How often --recheck found it to differ."""
        return f"in {sum(run.rechecked for run in self.runs)} of {len(self.runs)} runs"


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What is in dicts and lists, by dotted name."""
    parts: Iterable[tuple[Any, Any]]
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    empty = True
    for part, inner in parts:
        empty = False
        yield from flat(inner, f"{name}.{part}" if name else str(part))
    if empty:
        yield name, value
