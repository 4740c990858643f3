"""Find the operator whose output on the emulator is not the model's.

The strategy is here: `Divergence` decides which programs are worth their time. What a program shows of a node
is measured in `cuts`, and `worst_drop` searches the list of operators. `divergence_text` says the result in
words, and `operator_script` writes a script of the operator."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from ci.explain.cuts import STANDS_OUT, WHOLE, Cuts, Worst
from ci.explain.graph import Graph, Trial
from ci.explain.losses import FOREVER
from ci.explain.worst_drop import worst_drop
from ci.models.model_lines import OperatorAt
from ci.operators import Traits
from ci.work import Facts, Failure, irrelevant
from provisioning.base.files import replace_text
from provisioning.known_faults import SuspectedFault

DIFFERS_DB = 30.0
"""A lower SQNR is a difference, unless the user or a threshold names another one."""
MOST_OF_IT = 1 / 2
"""No other operator adds more than one that adds this share of the whole program's error."""
RIGHT_DB = 60.0
"""An operator that is so near to what it should give is right: fp16's rounding has 66 dB."""
MOST_AT_ONCE = 64
"""One program that shows at most so many operators takes less time than two that each end at a suspect."""
MOST_SUSPECTS = 6
"""At most so many suspects are measured: each takes a program or two."""
SHOWN_SECONDS = 30.0
"""The search has at least so many seconds left once the program that shows all operators is known."""

ALL = ("", "the outputs")
"""The whole program lies between these two."""

Suspects = Mapping[str, Collection[str]]
"""Maps a node to the known faults that it can have, the likeliest node first."""
NO_SUSPECTS: Suspects = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DivergenceLimits:
    least: float
    """The program matches from this SQNR on."""
    seconds: float = field(default=FOREVER, metadata=irrelevant("a time limit: what ends early is not kept"))
    program_db: float | None = field(default=None, metadata=irrelevant("without it the same is measured"))
    """The SQNR of the whole program, if that is known."""


@dataclass(frozen=True, slots=True)
class DivergentOperator(OperatorAt):
    traits: Mapping[str, Traits]
    """They tell, by node, whether a known fault concerns it."""
    node: str
    sqnr_db: float
    sample: int
    """The number of the sample with the least SQNR."""
    faint: float | None
    """The largest value, if all are too small for fp16; else None."""
    rounds: bool
    """Whether it is right except for a step of the quantizer."""
    integers: bool
    """Whether it gives integers; its figures are then those of the operators that read them."""
    share: float
    """The operator's share of the whole program's error."""
    operands: Mapping[str, float | None]
    """Maps each operand to its SQNR; None if no program that ends there runs."""
    alike: int
    """So many other places are taken to have its fault."""
    known: tuple[SuspectedFault, ...] = ()

    @property
    def only_rounds(self) -> bool:
        """Whether nothing is wrong with it, whatever becomes of its rounding later."""
        return self.rounds or self.sqnr_db >= RIGHT_DB

    @property
    def stands_out(self) -> bool:
        """Whether it is more than one of many that round."""
        return self.share >= STANDS_OUT or bool(self.alike)


@dataclass(frozen=True, slots=True)
class DivergenceResult:
    reference: str
    """The program is compared with this."""
    least: float
    """The program matches from this SQNR on."""
    sqnr_db: float
    first: DivergentOperator | None
    cuts: Mapping[str, float]
    """Maps the node at which a program ends to the SQNR."""
    failed: Mapping[str, str]
    """Maps the node at which a program ends to the reason why there is no SQNR."""
    between: tuple[str, ...]
    """The search was between these two nodes when its time was over."""


class Divergence:
    """Find the operator whose output is farthest from what its operands explain.

    In a large model, suspected operators are measured first, with programs that end there. If the fault of
    one may be at other places, too, it is taken to add as much at each of them, because programs that end
    later take longer. Then one program that returns the output of every operator is tried. It changes what
    the compiler fuses, and may hide the fault: then each operator is measured at the end of its own program.
    The two kinds of figures are never mixed, because two programs round each in its own way, and the
    difference looks like an error."""

    def __init__(
        self,
        graph: Graph,
        trial: Trial,
        limits: DivergenceLimits,
        keep: Callable[[DivergenceResult], None] = lambda result: None,
        suspects: Suspects = NO_SUSPECTS,
    ) -> None:
        """`keep` is called before each program with the result so far, as if the time were over."""
        self.graph, self.least, self.keep, self.suspects = graph, limits.least, keep, suspects
        self.cuts = Cuts(graph, trial, limits.program_db)
        self.deadline = time.monotonic() + limits.seconds
        self.between: tuple[str, ...] = ()
        """The search was between these two operators when its time was over."""

    def search(self) -> DivergenceResult:
        """Return the whole program's SQNR, and the operator at fault."""
        cuts = self.cuts
        if cuts.program_db >= self.least:
            return self._result(None)
        self.keep(self._result(None, ALL))
        has_all = len(self.graph.operators) <= MOST_AT_ONCE and cuts.shows_all
        suspect = None if has_all else self._worst_suspect()
        if suspect and self._is_most(suspect):
            return self._result(suspect, alike=len(self._alike(suspect.node)))
        if has_all or (time.monotonic() < self.deadline and cuts.shows_all):
            # What is left is computed on the CPU.
            self.deadline = max(self.deadline, time.monotonic() + SHOWN_SECONDS)
        worst = self._search_all(suspect)
        return self._result(worst or suspect, self.between)

    def _search_all(self, suspect: Worst | None) -> Worst | None:
        """Return the worst of all operators, or the source of integers that it reads; None if no operator
        adds anything, or none was reached in time."""
        cuts = self.cuts

        def stops(low: str, high: str, worst: Worst | None) -> bool:
            is_late = time.monotonic() > self.deadline
            self.between = (low, high) if is_late else ()
            self.keep(self._result(worst or suspect, (low, high)))
            return is_late

        worst = worst_drop(cuts, stops)
        if worst is None or cuts.only_rounds(worst.node) or self.between:
            return worst
        # Nothing is known yet of the integers that it reads.
        self.keep(self._result(worst, ("", worst.node)))
        return cuts.integer_source(worst.node) or worst

    def _worst_suspect(self) -> Worst | None:
        """Return the worst of the suspects that can be measured in half of the time."""
        worst: Worst | None = None
        now = time.monotonic()
        half = now + (self.deadline - now) / 2
        for name in islice(self.suspects, MOST_SUSPECTS):
            if time.monotonic() > half:
                break
            if worst and name in self._alike(worst.node) and self._is_most(worst):
                continue
            # Its operands are not known yet, which may take as long again.
            with_operands = Worst(name, self.cuts.error(name) or 0.0)
            self.keep(self._result(_worse(worst, with_operands), ALL))
            worst = _worse(worst, Worst(name, self.cuts.own_error(name)))
            self.keep(self._result(worst, ALL))
            if worst.adds >= MOST_OF_IT * self._total:
                break
        return worst

    @property
    def _total(self) -> float:
        """It is the whole program's error."""
        return self.cuts.power(self.cuts.program_db)

    def _alike(self, name: str) -> list[str]:
        """Return the other suspects that can have a fault of this one; empty if this one only rounds."""
        if self.cuts.only_rounds(name):
            return []
        faults = {*self.suspects.get(name, ())}
        alike = []
        for node, ids in self.suspects.items():
            if node != name and not faults.isdisjoint(ids):
                alike.append(node)
        return alike

    def _is_most(self, worst: Worst) -> bool:
        """Whether no other operator adds more, if each place of its fault adds as much."""
        places = 1 + len(self._alike(worst.node))
        return worst.adds * places >= MOST_OF_IT * self._total

    def _result(self, worst: Worst | None, between: tuple[str, ...] = (), alike: int = 0) -> DivergenceResult:
        cuts = self.cuts
        return DivergenceResult(
            reference=self.graph.reference,
            least=self.least,
            sqnr_db=cuts.program_db,
            first=self._operator(worst, alike) if worst else None,
            cuts={name: sqnr_db for name, sqnr_db in cuts.sqnr.items() if name != WHOLE},
            failed=dict(cuts.failed),
            between=between,
        )

    def _operator(self, worst: Worst, alike: int) -> DivergentOperator:
        graph, cuts, name = self.graph, self.cuts, worst.node
        sqnr_db, cut = cuts.sqnr_of(name), cuts.cuts.get(name)
        return DivergentOperator(
            **asdict(graph.operator_at(name)),
            traits=graph.traits(name),
            node=name,
            sqnr_db=sqnr_db,
            sample=cut.worst_sample if cut else 0,
            faint=cut.faint if cut else None,
            rounds=cuts.only_rounds(name),
            integers=name not in graph.operators,
            share=round(worst.adds / self._total, 2),
            operands={operand: cuts.sqnr.get(operand) for operand in graph.operands_of(name)},
            alike=alike,
        )


def _worse(one: Worst | None, other: Worst) -> Worst:
    return one if one and one.adds >= other.adds else other


PARTIAL = "partial.json"
"""The file keeps what a search knows before each program, in case its process is ended during one."""


def keep_partial(
    folder: Path, reply_of: Callable[[DivergenceResult], Facts], result: DivergenceResult
) -> None:
    document = {"named": result.first is not None, "reply": reply_of(result)}
    replace_text(folder / PARTIAL, json.dumps(document))


def remains_of(program: object, failure: Failure, folder: Path) -> dict[str, object] | None:
    """Return the reply of a search whose process ended before it replied. It is None if no operator was named
    yet, because the failure of the process then says more; but if time ended it, the search goes on the next
    time."""
    try:
        document = json.loads((folder / PARTIAL).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    reply: dict[str, object] = document["reply"]
    return reply if document["named"] or failure.kind == "timeout" else None
