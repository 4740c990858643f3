"""The search for the smallest program that still shows a fault.

First operators are left out, many at once; then sizes are cut, and values are replaced by some that one line
of Python can say. A piece of a model gets what it needs from outside as inputs, with the values that the
whole model has there. So each set of operators is a program, and none is refused but by what compiles it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ci.pipeline.lost_parts import LEAST_DB
from ci.pipeline.trial import Outcome, smallest
from provisioning.base.errors import UsageError
from provisioning.base.rendering.text import plural

BOUND = re.compile(r"(ddr|size|ms) *> *([0-9]+(?:\.[0-9]+)?) *([kMG]?B)?")
UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
REPEATS = 1
"""How often the first and the last program are done again, and nothing taken from the cache."""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A part of a model, as a program of its own."""

    operators: tuple[str, ...]
    """By name, in the model's order."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Of dimensions: old and new, in the order in which they were cut."""
    values: tuple[tuple[str, str], ...] = ()
    """By tensor, the form of its values (models/simple_values.py); others are the model's."""
    sample: int | None = None
    """The only one that it is calibrated by and compared on, as its reproducer is; else all are."""

    def valued(self, tensors: Iterable[str], form: str) -> Subgraph:
        return replace(
            self, values=tuple(sorted({**dict(self.values), **dict.fromkeys(tensors, form)}.items()))
        )


@dataclass(frozen=True, slots=True)
class Condition:
    """What --when asks for."""

    text: str
    least_db: float = LEAST_DB
    """Outputs with less SQNR are wrong."""

    @classmethod
    def of(cls, text: str, least_db: float | None = None) -> Condition:
        if text not in ("dies", "wrong", "cpu") and not BOUND.fullmatch(text):
            raise UsageError(f"--when {text}: expected dies, wrong, cpu or a bound", fix="--when 'ddr>1MB'")
        return cls(text, LEAST_DB if least_db is None else least_db)

    @property
    def bound(self) -> tuple[str, float] | None:
        found = BOUND.fullmatch(self.text)
        return (found[1], float(found[2]) * UNITS[found[3] or ""]) if found else None

    @property
    def figure(self) -> str:
        return self.bound[0] if self.bound else ""

    def shown_by(self, outcome: Outcome, whole: Outcome) -> bool:
        """Whether a program shows what the whole model shows: a piece that dies of something else does
        not."""
        if bound := self.bound:
            return outcome.costs.get(bound[0], 0.0) > bound[1]
        if self.text == "dies":
            return bool(outcome.error) and outcome.same_kind_as(whole)
        if self.text == "cpu":
            return bool({*outcome.on_cpu} & {*whole.on_cpu})
        return outcome.near("sqnr_db", self.least_db) < self.least_db or outcome.near("agreement", 1.0) < 1.0


Oracle = Callable[[Sequence[Subgraph]], Sequence[bool]]


@dataclass
class PieceSearch:
    """Pieces that show it, always one that the oracle has seen."""

    oracle: Oracle
    at_once: int = 1
    ends: float = float("inf")
    """When the time is over, by the monotonic clock."""
    say: Callable[[str], None] = lambda line: None
    known: dict[Subgraph, bool] = field(default_factory=dict)

    @property
    def late(self) -> bool:
        return time.monotonic() > self.ends

    def first(self, pieces: Iterable[Subgraph]) -> Subgraph | None:
        """The first of them that shows it; None too once the time is over. As many as run side by side are
        tried at once."""
        waiting = iter(pieces)
        while not self.late and (tried := list(dict.fromkeys(islice(waiting, self.at_once)))):
            new = [piece for piece in tried if piece not in self.known]
            self.known.update(zip(new, self.oracle(new) if new else (), strict=True))
            if found := next((piece for piece in tried if self.known[piece]), None):
                return found
        return None

    def fewest_operators(self, piece: Subgraph) -> Subgraph:
        """No operator of it can be left out alone."""

        def first(parts: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
            found = self.first(replace(piece, operators=names) for names in parts)
            return found.operators if found else None

        def found(now: int, before: int) -> None:
            self.say(f"{plural(now, 'operator')} of {before} still show it")

        return replace(piece, operators=smallest(piece.operators, first, lambda: self.late, found))

    def simplest(
        self, piece: Subgraph, simpler: Callable[[Subgraph], Iterable[Subgraph]], what: str
    ) -> Subgraph:
        """Taken from `simpler` as long as it has one that shows it."""
        while found := self.first(simpler(piece)):
            piece = found
            self.say(f"{what}: still shown")
        return piece


@dataclass(frozen=True, slots=True)
class Reduced:
    """The smallest piece that was seen, and how it was found."""

    piece: Subgraph
    outcome: Outcome
    whole: Outcome
    operators: int
    """Of the whole model."""
    programs: int
    """That were tried."""
    repeated: tuple[int, int]
    """How many of the first and last programs' repeats showed it."""
    late: bool = False

    @property
    def flaky(self) -> bool:
        return min(self.repeated) < REPEATS

    def in_words(self, condition: Condition) -> list[str]:
        lines = [
            f"{plural(len(self.piece.operators), 'operator')} of {self.operators}"
            f" still {'show' if len(self.piece.operators) > 1 else 'shows'} it ({condition.text}):"
            f" {self.outcome.in_words(condition.figure)}"
        ]
        lines += [f"  the whole model: {self.whole.in_words(condition.figure)}"]
        if self.flaky:
            lines += [
                f"  flaky: {self.repeated[0]} of {REPEATS} repeats of the whole model show it, and"
                f" {self.repeated[1]} of {REPEATS} of the piece"
            ]
        if self.late:
            lines += ["  the time was up before everything was tried: the same command continues"]
        return lines


def smaller_sizes(shapes: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """What each size is cut to. The smallest is first: a larger one that is cut to it could not be told from
    it any more."""
    sizes = sorted({size for shape in shapes for size in shape if size > 1})
    return [(size, new) for size in sizes for new in dict.fromkeys((1, 2, 4, size // 2)) if 0 < new < size]
