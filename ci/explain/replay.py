"""Replay the compiler's steps on the CPU in their order, and find the first one after which the model
computes something else, or after which nothing can compute it.

A lane calls the steps as the compiler does, and shows the model as it is after each of them. Quantizing
rounds on purpose, so lanes show a model without its rounding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from ci.explain.graph import CONSTANT, Graph
from ci.explain.losses import FOREVER
from ci.explain.sqnr import sqnr_between
from ci.models.compiler_errors import CompilerStep
from ci.models.model_lines import OperatorAt
from ci.work import irrelevant
from provisioning.base.units import format_decibels

MOST_OF_ERROR = 1 / 3
"""A step that adds a smaller share of the program's error is not its cause."""
SAME_DB = 20.0
"""A node counts as unchanged if the step keeps its value so many decibels better than the outputs."""
NAMED = 3
"""At most so many lost operators are named."""

Kind = Literal["changes", "breaks", "loses", "raises"]


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    program_db: float | None
    """The SQNR of the program's outputs; None if there is no program, because the compiler died."""
    seconds: float = field(default=FOREVER, metadata=irrelevant("a time limit: what ends early is not kept"))


@dataclass(frozen=True, slots=True)
class BrokenStep(OperatorAt):
    """It has the step at fault, and the operator that the step made or changed, with the line that this comes
    from."""

    node: str
    kind: Kind
    step: CompilerStep
    error: str = ""
    """The error that ends computing the model, if nothing can compute it any more."""
    replaced: str = ""
    """The operator stands in place of this one, which is named with its line."""
    lost: tuple[str, ...] = ()
    """The model no longer reads the weights of these operators, which are named with their lines."""
    sqnr_db: float | None = None
    """The SQNR of the outputs after the step, against those before it."""
    share: float = 0.0
    """The step's share of the program's error."""
    made_by: CompilerStep | None = None
    """This earlier step put the operator there."""
    around: tuple[str, ...] = ()
    """The step also took away the operators of these lines of the model, FILE:LINE: a fix may begin there."""

    @property
    def is_proved(self) -> bool:
        """Whether it was seen on the CPU; a structure alone proves nothing."""
        return self.kind != "loses"

    def describe(self) -> str:
        """Say what is wrong; empty if a step raised, because the error itself says it."""
        return "" if self.kind == "raises" else "; ".join(self._clauses())

    def _clauses(self) -> Iterator[str]:
        if self.kind == "changes":
            assert self.sqnr_db is not None
            figure = format_decibels(self.sqnr_db)
            yield f"the cause is ExecuTorch's step {self.step}: on the CPU its outputs have {figure}"
            yield f"it alone gives {self.share:.0%} of the error"
        elif self.kind == "breaks":
            yield f"the cause is ExecuTorch's step {self.step}: nothing computes its graph: {self.error}"
        else:
            yield f"suspected: ExecuTorch's step {self.step}"
        if self.replaced:
            yield f"it puts {self.operator} in place of {self.replaced}"
        else:
            yield f"it changes {self.place}"
        if self.made_by:
            yield f"{self.operator} was put there by {self.made_by}"
        if self.lost:
            yield f"it loses {', '.join(self.lost)}"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    broken: BrokenStep | None
    steps: int
    """So many steps were judged."""
    late: bool = False
    """Whether the time ended the replay."""


class Unrunnable(Exception):
    """A model cannot be computed: the error has the node at which it ends, and says why."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(reason)
        self.node = node


class Replay:
    """It judges the model after each step, until the faulty one is found."""

    def __init__(self, program_db: float | None) -> None:
        self.program_db = program_db
        self.before: Graph | None = None
        """The last model that could be computed."""
        self.broken: BrokenStep | None = None
        self.steps = 0
        self._makers: dict[str, CompilerStep] = {}

    @property
    def found(self) -> bool:
        """Whether no later step needs to be seen."""
        return self.broken is not None and self.broken.kind == "changes"

    def see(self, step: CompilerStep, after: Graph, *, rounds: bool = False) -> None:
        """Judge a step by the model `after` it; one that `rounds` weights changes values on purpose."""
        if self.found:
            return
        self.steps += 1
        before = self.before
        if before is not None:
            self._makers |= {name: step for name in after.nodes if name not in before.nodes}
        try:
            outputs = after.exact
        except Unrunnable as error:
            if before is not None and self.broken is None and self.program_db is None:
                self.broken = self._breaks(step, before, after, error)
            return
        # What a later step puts right is no cause.
        self.broken = None
        if before is not None and self.program_db is not None and not rounds:
            sqnr_db = min(sqnr_between(*rows) for rows in zip(before.exact, outputs, strict=True))
            share = 10 ** ((max(self.program_db, 0.0) - max(sqnr_db, 0.0)) / 10)
            if share >= MOST_OF_ERROR:
                self.broken = self._changes(step, before, after, sqnr_db, min(share, 1.0))
        self.before = after

    def end(self, raised: BrokenStep | None) -> None:
        """Take the step that raised as the cause of the compiler's death, unless an earlier one broke the
        model."""
        self.broken = self.broken or raised

    def see_structure(self, step: CompilerStep, before: Graph, after: Graph, glue: Sequence[str]) -> None:
        """Judge a step whose model no CPU computes, by the operators that it loses beside `glue`."""
        self.steps += 1
        counts = Counter(node.kind for node in before.nodes.values())
        counts.subtract(Counter(node.kind for node in after.nodes.values()))
        kinds = {kind for kind, count in counts.items() if count > 0 and not kind.startswith(tuple(glue))}
        gone = [name for name, node in before.nodes.items() if name not in after.nodes and node.kind in kinds]
        if gone and self.broken is None and self.program_db is not None:
            self.broken = BrokenStep(
                **asdict(before.operator_at(gone[0])), node=gone[0], kind="loses", step=step
            )

    def _changes(
        self, step: CompilerStep, before: Graph, after: Graph, sqnr_db: float, share: float
    ) -> BrokenStep:
        name, replaced = changed_node(before, after, sqnr_db + SAME_DB)
        return BrokenStep(
            **asdict(after.operator_at(name)),
            node=name,
            kind="changes",
            step=step,
            replaced=before.operator_at(replaced).place if replaced else "",
            lost=tuple(dict.fromkeys(lost_operators(before, after)))[:NAMED],
            around=(*replaced_lines(before, after), *lines_beside(before, name, replaced)),
            sqnr_db=round(sqnr_db, 1),
            share=round(share, 2),
        )

    def _breaks(self, step: CompilerStep, before: Graph, after: Graph, error: Unrunnable) -> BrokenStep:
        maker = self._makers.get(error.node)
        return BrokenStep(
            **asdict(after.operator_at(error.node)),
            node=error.node,
            kind="breaks",
            step=step,
            error=str(error),
            lost=tuple(dict.fromkeys(lost_operators(before, after)))[:NAMED],
            around=replaced_lines(before, after),
            made_by=maker if maker != step else None,
        )


def changed_node(before: Graph, after: Graph, same_db: float) -> tuple[str, str]:
    """Return the first node whose value a step changed, and the one in whose place it was put, or nothing.
    Nodes of both models are matched by name; values that are nearer than `same_db` count as the same."""
    old_values, new_values = before.values(0), after.values(0)
    for name, node in after.nodes.items():
        if name not in old_values or name not in new_values:
            continue
        if sqnr_between([old_values[name]], [new_values[name]]) < same_db:
            return _new_operand(before.nodes[name].reads, node.reads, after) or (name, "")
    return _new_operand(before.results, after.results, after) or (after.results[0], "")


def _new_operand(old: Sequence[str], new: Sequence[str], after: Graph) -> tuple[str, str] | None:
    """Return the first operand that stands in the place of another one, and that one."""
    for old_name, new_name in zip(old, new, strict=False):
        if old_name != new_name and after.nodes[new_name].kind != CONSTANT:
            return new_name, old_name
    return None


def replaced_lines(before: Graph, after: Graph) -> tuple[str, ...]:
    """Return the lines of the operators that a step took away."""
    names = [name for name in before.nodes if name not in after.nodes]
    return tuple(dict.fromkeys(filter(None, (before.operator_at(name).source for name in names))))


def lines_beside(graph: Graph, *names: str) -> Iterator[str]:
    """Yield the lines of what reads these nodes, or what they read: an operator there may write into it."""
    for name in names:
        node = graph.nodes.get(name)
        for operand in (name, *node.reads) if node else ():
            for reader in graph.readers[operand]:
                if source := graph.operator_at(reader).source:
                    yield source


def lost_operators(before: Graph, after: Graph) -> Iterator[str]:
    """Yield the operators that read weights which the later model no longer reads, with their lines."""
    constants = _constants_read(before).keys() - _constants_read(after).keys()
    for name, node in before.nodes.items():
        if name not in after.nodes and not constants.isdisjoint(node.reads):
            yield before.operator_at(name).place


def _constants_read(graph: Graph) -> Mapping[str, Sequence[str]]:
    return {
        name: graph.readers[name]
        for name, node in graph.nodes.items()
        if node.kind == CONSTANT and node.size > 1 and graph.readers[name]
    }
