"""Say in words what a search for a divergent operator found, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ci.explain.cuts import EVERY, LEAST_HALF
from ci.explain.divergence import DivergenceResult, DivergentOperator
from ci.explain.graph import FLOAT_MODEL
from ci.models.model_lines import OperatorAt
from ci.suite.figures import describe_figures
from provisioning.base.rendering import plural
from provisioning.base.units import bound_in_decibels, format_decibels

NONE_ALONE = "no single operator causes it: many add a little, or only integers differ"
MANY_ROUND = "no operator stands out: each adds a little rounding error"


def place_of(operator: OperatorAt, node: str) -> str:
    return operator.place if operator.source else f"{operator.operator} ({node})"


def verdict_of(result: DivergenceResult) -> str:
    """Name the operator at fault, or say that none stands out, and how far a search came that ran out of
    time."""
    first, late = result.first, _how_far(result)
    if first is None:
        return late or NONE_ALONE
    faint = _why_faint(first) if result.reference == FLOAT_MODEL else ""
    if not first.stands_out:
        many = f"{MANY_ROUND}: at most {_share(first)} comes from {place_of(first, first.node)}"
        return late or _join(many, faint)
    if first.only_rounds:
        rounding = f"rounding {place_of(first, first.node)} alone ({format_decibels(first.sqnr_db)})"
        # Others may be wrong where not all were searched.
        none_wrong = "" if late else "no operator is wrong: "
        return _join(f"{none_wrong}{rounding} gives {_share(first)}", late)
    return _join(_cause_in_words(first, result.reference), faint, late)


def _how_far(result: DivergenceResult) -> str:
    """Say how far a search came that ran out of time; empty if it did not."""
    if not result.between:
        return ""
    low, high = result.between
    return f"the search ended before the operators between {low or 'the inputs'} and {high} were searched"


def _cause_in_words(first: DivergentOperator, reference: str) -> str:
    operands = []
    for name, sqnr_db in first.operands.items():
        operands.append(f"{name} {'not measured' if sqnr_db is None else format_decibels(sqnr_db)}")
    is_proved = None not in first.operands.values()
    figure = format_decibels(first.sqnr_db)
    if first.integers:
        figure += " where its integers are read"
    words = f"{'the cause is' if is_proved else 'suspected'} {place_of(first, first.node)}"
    words += f": {figure} against {reference}"
    words += f", and {', '.join(operands) or 'exact inputs'} before it; it alone gives {_share(first)}"
    if first.alike:
        words += f", and {plural(first.alike, 'other place')} can have its fault"
    return words


def _share(first: DivergentOperator) -> str:
    return f"{first.share:.0%} of the error"


def _join(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _why_faint(first: DivergentOperator) -> str:
    """Say why fp16 cannot hold the operator's values; empty if it can."""
    if not first.faint:
        return ""
    most = f"its values are at most {first.faint:.1g}"
    return f"{most}, and below {LEAST_HALF:.1g} fp16 has few digits: scale them"


def text_lines(result: DivergenceResult) -> Iterator[str]:
    sqnr = describe_figures({"sqnr_db": result.sqnr_db})
    yield f"the whole program: {sqnr} against {result.reference}"
    if result.sqnr_db >= result.least:
        yield f"it matches: at least {bound_in_decibels(result.least)}"
        return
    yield verdict_of(result)
    if first := result.first:
        is_inside = first.module and not first.module.startswith("(")
        module = f" of {first.module}" if is_inside else ""
        yield f"  node {first.node}{module}"
        for suspect in first.known:
            yield f"  suspected: {suspect.message}"
    yield f"  {plural(len(result.cuts), 'operator')} measured"
    for name, error in result.failed.items():
        verb = "shows" if name == EVERY else "ends at"
        yield f"  the program that {verb} {name} does not compile or run: {error}"


def fix_of(result: DivergenceResult, command: Callable[..., str], advice: str) -> str:
    """Say what to type next. `command` makes a command about the same model from a verb and flags; it is
    empty for a suite's program. `advice` is what was tried if an operator differs."""
    if result.sqnr_db >= result.least:
        where = command("quantize", "--where") if result.reference != FLOAT_MODEL else ""
        if not where:
            return "nothing: both are the same"
        return f"{where} names the operators where quantizing loses"
    if result.first is None and not result.between:
        return "let the model return the floats, and compute the integers on the CPU"
    return advice
