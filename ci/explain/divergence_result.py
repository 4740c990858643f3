"""What a search for the operator that differs knows, and what it says: while it is at work, of what it found,
and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ci.explain.cuts import EVERY, LEAST_HALF, STANDS_OUT, Cuts, Worst
from ci.explain.graph import FLOAT_MODEL
from ci.explain.losses import Loss
from ci.models.model_lines import OperatorAt
from ci.operators.conditions import Traits
from ci.operators.table import Inexact
from ci.plain import as_json, read
from ci.suite.accuracy import in_words
from provisioning.base.files import replace_text
from provisioning.base.rendering import plural
from provisioning.base.units import bound_in_decibels, in_decibels
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
        faint=cuts.faint.get(name),
        rounds=name in cuts.rounds,
        integers=name not in graph.operators,
        grows=None,
        share=round(adds / cuts.power(cuts.whole), 2),
        operands={row: cuts.sqnr.get(row) for row in graph.operands_of(name)},
        alike=alike,
    )


PARTIAL = "partial.json"
"""What a search knows before each program, for when it is ended during one."""


def keep_partial(folder: Path, result: DivergenceResult) -> None:
    replace_text(folder / PARTIAL, json.dumps(as_json(result)))


def partial_of(folder: Path) -> DivergenceResult | None:
    try:
        return read(DivergenceResult, json.loads((folder / PARTIAL).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def document(result: DivergenceResult) -> dict[str, object]:
    """The evidence of an answer."""
    return as_json(result)


NONE_ALONE = "no single operator causes it: many add a little, or only integers differ"
MANY_ROUND = "no operator stands out: each adds a little rounding error"


def between_in_words(between: Sequence[str]) -> str:
    low, high = between
    return f"the operators between {low or 'the inputs'} and {high}"


def faint_in_words(first: DivergentOperator, reference: str) -> str:
    """Why fp16 cannot hold what the operator gives, if that is so."""
    faint = first.faint if reference == FLOAT_MODEL else None
    if not faint:
        return ""
    return f"its values are at most {faint:.1g}, and below {LEAST_HALF:.1g} fp16 has few digits: scale them"


def operands_in_words(first: DivergentOperator) -> str:
    return ", ".join(
        f"{name} not measured" if value is None else f"{name} {in_decibels(value)}"
        for name, value in first.operands.items()
    )


def figure_in_words(first: DivergentOperator) -> str:
    return in_decibels(first.sqnr_db) + (" where its integers are read" if first.integers else "")


def alike_in_words(first: DivergentOperator) -> str:
    """Behind its share of the error, how many other places are taken to add as much."""
    return f", and {plural(first.alike, 'other place')} can have its fault" if first.alike else ""


def rounding_in_words(first: DivergentOperator, between: Sequence[str]) -> str:
    """Of an operator that is right, and of what makes much of its rounding: a choice between values that are
    nearly equal, or their difference. Others may be wrong where not all were searched."""
    words = "" if between else "no operator is wrong: "
    words += f"rounding {first.place} alone ({in_decibels(first.sqnr_db)})"
    words += f" gives {first.share:.0%} of the error"
    return f"{words}, and grows most at {first.grows.place}: {first.grows.figures}" if first.grows else words


def as_text(result: DivergenceResult) -> Iterator[str]:
    sqnr = in_words({"sqnr_db": result.sqnr_db})
    yield f"the whole program: {sqnr} against {result.reference}"
    if result.sqnr_db >= result.least:
        yield f"it matches: at least {bound_in_decibels(result.least)}"
    elif result.first is None and result.between:
        yield f"not found in time: {between_in_words(result.between)}"
    elif result.first is None:
        yield NONE_ALONE
    else:
        yield from _of_operator(result, result.first)


def _of_operator(result: DivergenceResult, first: DivergentOperator) -> Iterator[str]:
    where = f" in {first.module}" if first.module[:1] not in ("", "(") else ""
    where += f" at {first.source} `{first.code}`" if first.source else ""
    yield f"differs most: {first.operator} ({first.node}){where}"
    operands = operands_in_words(first) or "the inputs"
    yield f"  there: {figure_in_words(first)}; at its operands: {operands}"
    if faint := faint_in_words(first, result.reference):
        yield f"  {faint}"
    if first.rounds:
        yield f"  {rounding_in_words(first, result.between)}"
    alone = "" if first.stands_out else f"; {MANY_ROUND}"
    alike = alike_in_words(first)
    yield f"  {first.share:.0%} of the whole program's error is its own{alone}{alike}"
    for known in first.known:
        yield f"  suspected: {known.message}"
        if isinstance(known, Inexact):
            yield f"    → {known.command} shows what was measured"
    yield f"  {plural(len(result.cuts), 'operator')} measured"
    if result.between:
        yield f"the time is up: {between_in_words(result.between)} may add more"
    for name, error in result.failed.items():
        which = "shows" if name == EVERY else "ends at"
        yield f"  the program that {which} {name} does not compile or run: {error}"


def fix_of(result: DivergenceResult, command: Callable[..., str], tried: str) -> str:
    """What to type next. `command` makes a command about the same model, of a verb and flags; it gives none
    for a suite's program. `tried` is what was tried where an operator differs."""
    if result.sqnr_db >= result.least:
        where = command("quantize", "--where") if result.reference != FLOAT_MODEL else ""
        names = f"{where} names the operators where quantizing loses"
        return names if where else "nothing: both are the same"
    if result.first is None and not result.between:
        return "let the model return the floats, and compute the integers on the CPU"
    return tried
