"""What a search for the operator that differs knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ci.explain.cuts import STANDS_OUT, Cuts, Worst
from ci.explain.losses import Loss
from ci.models.model_lines import OperatorAt
from ci.operators.conditions import Traits
from ci.operators.table import Inexact
from provisioning.known_faults import SuspectedFault


@dataclass(frozen=True, slots=True)
class DivergenceLimits:
    least: float
    """The SQNR from which the program matches."""
    seconds: float
    whole: float | None
    """The SQNR of all of it, if that is known."""


@dataclass(frozen=True, slots=True)
class DivergentOperator(OperatorAt):
    traits: Mapping[str, Traits]
    """By node, what else known faults are told by."""
    node: str
    sqnr_db: float
    sample: int
    """The number of that with the least SQNR."""
    faint: float | None
    """The largest value, where all are too small for fp16."""
    rounds: bool
    """Whether it is right but for a step of the quantizer."""
    integers: bool
    """Whether it gives integers: then its figures are those of what reads them."""
    grows: Loss | None
    """The operator that makes most of its rounding."""
    share: float
    """Of the whole program's error."""
    operands: Mapping[str, float | None]
    """By node, its SQNR; None where no program that ends there runs."""
    alike: int
    """How many other places are taken to have its fault."""
    known: tuple[SuspectedFault | Inexact, ...] = ()
    better: str = ""
    """The precision at which the chip is measured to compute it rightly."""

    @property
    def stands_out(self) -> bool:
        """Whether it is more than one of many that round."""
        return self.share >= STANDS_OUT or bool(self.alike)


@dataclass(frozen=True, slots=True)
class DivergenceResult:
    reference: str
    """What the program is compared with."""
    least: float
    """The SQNR from which the program matches."""
    sqnr_db: float
    first: DivergentOperator | None
    cuts: Mapping[str, float]
    """The SQNR by the node at which a program ends."""
    failed: Mapping[str, str]
    """Why a program gave no SQNR, by its node."""
    between: tuple[str, ...]
    """The two nodes between which the search was when its time was over."""


def result_of(
    cuts: Cuts, least: float, best: Worst | None, between: Sequence[str], alike: int
) -> DivergenceResult:
    return DivergenceResult(
        reference=cuts.graph.reference,
        least=least,
        sqnr_db=cuts.whole,
        first=_operator(cuts, *best, alike) if best else None,
        cuts={name: value for name, value in cuts.sqnr.items() if name},
        failed=dict(cuts.failed),
        between=tuple(between),
    )


def _operator(cuts: Cuts, name: str, adds: float, alike: int) -> DivergentOperator:
    graph = cuts.graph
    return DivergentOperator(
        **asdict(graph.operator_at(name)),
        traits=graph.traits(name),
        node=name,
        sqnr_db=cuts.sqnr_of(name),
        sample=cuts.worst.get(name, 0),
        faint=cuts.faint.get(name),
        rounds=name in cuts.rounds,
        integers=name not in graph.operators,
        grows=None,
        share=round(adds / cuts.power(cuts.whole), 2),
        operands={row: cuts.sqnr.get(row) for row in graph.operands_of(name)},
        alike=alike,
    )
