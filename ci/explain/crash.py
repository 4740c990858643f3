"""Find the operators at which a signal ends the compiler's process: the fewest that must run on the CPU so
that none does.

A lane says whether the compiler survives with some operators on the CPU, and which operators there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ci.explain.losses import FOREVER
from ci.models.model_lines import OperatorAt
from ci.one_model.smallest_part import smallest
from ci.work import irrelevant

LATEST = 3
"""So many of the operators that the compiler visited last are tried first."""


@dataclass(frozen=True, slots=True)
class CrashRequest:
    seconds: float = field(default=FOREVER, metadata=irrelevant("a time limit: what ends early is not kept"))
    """They are CPU seconds: a busy machine must change no finding."""


@dataclass(frozen=True, slots=True)
class CrashingOperator(OperatorAt):
    node: str
    """The option that keeps the operator on the CPU takes this name."""


@dataclass(frozen=True, slots=True)
class CrashResult:
    operators: tuple[CrashingOperator, ...] = ()
    """No signal ends the compiler if these are on the CPU. It is empty if nothing was found."""
    late: bool = False
    """Whether the time ended the search."""

    def describe(self) -> str:
        places = ", ".join(dict.fromkeys(operator.place for operator in self.operators))
        return f"the compiler dies at {places}: with that on the CPU it does not"


Operators = Sequence[CrashingOperator]


def find_crashing(
    operators: Operators,
    survives: Callable[[Sequence[str]], bool],
    visited: Sequence[str],
    is_late: Callable[[], bool],
) -> CrashResult:
    """Find the kinds of operators first, and then the operators of these kinds. `visited` are the nodes that
    the compiler visited before it died: the kinds of the last ones are tried first."""
    by_kind: dict[str, list[CrashingOperator]] = {}
    for operator in operators:
        by_kind.setdefault(operator.operator, []).append(operator)

    def first_operators(parts: Iterable[Operators]) -> tuple[CrashingOperator, ...] | None:
        for part in parts:
            if is_late():
                return None
            if survives([row.node for row in part]):
                return tuple(part)
        return None

    def first_kinds(parts: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
        for part in parts:
            if first_operators([[row for kind in part for row in by_kind[kind]]]):
                return part
        return None

    kinds = first_kinds((kind,) for kind in _visited_last(visited, by_kind))
    if kinds is None and operators and first_kinds([tuple(by_kind)]):
        kinds = smallest(list(by_kind), first_kinds, is_late)
    suspects = [row for kind in kinds or () for row in by_kind[kind]]
    found = smallest(suspects, first_operators, is_late)
    # Of a search that ended early, some are not to blame.
    return CrashResult(late=True) if is_late() else CrashResult(found)


def _visited_last(visited: Sequence[str], by_kind: Mapping[str, Operators]) -> Iterator[str]:
    """Yield the kinds of the operators that the compiler visited last, the last one first."""
    kinds = {row.node: kind for kind, rows in by_kind.items() for row in rows}
    yield from islice(dict.fromkeys(kinds[name] for name in reversed(visited) if name in kinds), LATEST)
