"""The search for the smallest program that still shows a fault.

First the graph is bisected, and single operators are left out (Zeller's delta debugging over its operators in
their order); then sizes are cut, and values are replaced by some that one line of Python can say. A piece of
a model gets what it needs from outside as inputs, with the values that the whole model has there. So each
set of operators is a program, and none is refused but by what compiles it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise

from ci.pipeline.slices import LEAST_DB
from provisioning.base.errors import UsageError
from provisioning.base.rendering.text import plural
from provisioning.base.units import in_decibels

BOUND = re.compile(r"(ddr|size|ms) *> *([0-9]+(?:\.[0-9]+)?) *([kMG]?B)?")
UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
ERROR_WORDS = re.compile(r"\b\w+(?:Error|Exception)\b|\bSIG[A-Z]+\b|\b0x[0-9a-f]+\b|\b[Ee]rror \d+")
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
class Outcome:
    """What became of a program."""

    error: str = ""
    """Why there is none, or why it does not run; what it says of its outputs is in `figures`."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Of its outputs against the quantized model, or float: `sqnr_db` and `agreement`; and `ddr`, `size` and
    `ms`."""
    on_cpu: tuple[str, ...] = ()
    """Operators."""

    def in_words(self, figure: str = "") -> str:
        """With the figure that a bound is for."""
        parts = [self.error.partition("\n")[0][:300]] if self.error else []
        if (sqnr := self.figures.get("sqnr_db")) is not None:
            parts += [f"{in_decibels(sqnr)} SQNR"]
        if (share := self.figures.get("agreement", 1.0)) < 1:
            parts += [f"{100 * share:.4g} % of integers equal"]
        parts += [f"on the CPU: {', '.join(sorted({*self.on_cpu}))}"] if self.on_cpu else []
        parts += [f"{figure} {self.figures[figure]:,.6g}"] if figure in self.figures else []
        return "; ".join(parts) or "it runs"


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
            return outcome.figures.get(bound[0], 0.0) > bound[1]
        if self.text == "dies":
            return bool(outcome.error) and same_error(outcome.error, whole.error)
        if self.text == "cpu":
            return bool({*outcome.on_cpu} & {*whole.on_cpu})
        figures = outcome.figures
        return figures.get("sqnr_db", self.least_db) < self.least_db or figures.get("agreement", 1.0) < 1.0


def same_error(one: str, other: str) -> bool:
    """By the words that name an error, and without names of nodes, numbers and places; by the first words of
    errors that have none."""
    words = [set(ERROR_WORDS.findall(text)) for text in (one, other)]
    if words[0] or words[1]:
        return words[0] == words[1]
    plain = [re.sub(r"\W*\S*[\d_/.]\S*", "", text)[:60] for text in (one, other)]
    return plain[0] == plain[1]


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
        parts = 2
        while (count := len(piece.operators)) > 1:
            names = piece.operators
            cuts = [count * number // parts for number in range(parts + 1)]
            chunks = [names[low:high] for low, high in pairwise(cuts)]
            others = [tuple(name for name in names if name not in chunk) for chunk in chunks]
            # Of two parts, each is what the other leaves.
            candidates = chunks if parts == 2 else [*(chunks if parts < count else ()), *others]
            found = self.first(replace(piece, operators=names) for names in candidates)
            if found:
                parts = 2 if len(found.operators) <= count // 2 else max(parts - 1, 2)
                piece = found
                self.say(f"{plural(len(piece.operators), 'operator')} of {count} still show it")
            elif parts < count and not self.late:
                parts = min(2 * parts, count)
            else:
                break
        return piece

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
            lines += ["  the time was over before all was tried: the same command goes on from the cache"]
        return lines


def smaller_sizes(shapes: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """What each size is cut to. The smallest is first: a larger one that is cut to it could not be told from
    it any more."""
    sizes = sorted({size for shape in shapes for size in shape if size > 1})
    return [(size, new) for size in sizes for new in dict.fromkeys((1, 2, 4, size // 2)) if 0 < new < size]
