"""What a search for the operator that differs says: while it is at work, of what it found, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.explain.cuts import EVERY, LEAST_HALF, STANDS_OUT
from ci.explain.graph import FLOAT_MODEL
from ci.suite.accuracy import in_words
from ci.suite.findings import operator_place
from provisioning.base.files import replace_text
from provisioning.base.rendering.text import plural
from provisioning.base.units import bound_in_decibels, in_decibels
from provisioning.known_faults import Fault

PARTIAL = "partial.json"
"""What a search knows before each program, for when it is ended during one."""


def keep_partial(folder: Path, result: Mapping[str, Any]) -> None:
    replace_text(folder / PARTIAL, json.dumps(result))


def partial_of(folder: Path) -> dict[str, Any] | None:
    try:
        known: dict[str, Any] = json.loads((folder / PARTIAL).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return known


def known_fault(fault: Fault, line: str = "") -> dict[str, str]:
    """As `known` of an operator has it; `line` is where it is suspected, if the operator does not say it."""
    at = f" at {line}" if line else ""
    return {"message": f"{fault.title} ({fault.id}){at}", "command": fault.fix, "fault": fault.id}


NONE_ALONE = "no single operator causes it: many add a little, or only integers differ"
MANY_ROUND = "no operator stands out: each adds a little rounding error"


def between_in_words(between: Sequence[str]) -> str:
    low, high = between
    return f"the operators between {low or 'the inputs'} and {high}"


def faint_in_words(result: Mapping[str, Any]) -> str:
    """Why fp16 cannot hold what the operator gives, if that is so."""
    faint = result["first"]["faint"] if result["reference"] == FLOAT_MODEL else None
    if not faint:
        return ""
    return f"its values are at most {faint:.1g}, and below {LEAST_HALF:.1g} fp16 has few digits: scale them"


def operands_in_words(first: Mapping[str, Any]) -> str:
    operands = first["operands"].items()
    return ", ".join(
        f"{name} not measured" if value is None else f"{name} {in_decibels(value)}"
        for name, value in operands
    )


def stands_out(first: Mapping[str, Any]) -> bool:
    return first["share"] >= STANDS_OUT or bool(first["alike"])


def alike_in_words(first: Mapping[str, Any]) -> str:
    """Behind its share of the error, how many other places are taken to add as much."""
    return f", and {plural(first['alike'], 'other place')} can have its fault" if first["alike"] else ""


def rounding_in_words(result: Mapping[str, Any]) -> str:
    """Of an operator that is right, and of what makes much of its rounding: a choice between values that are
    nearly equal, or their difference. Others may be wrong where not all were searched."""
    first, words = result["first"], "" if result["between"] else "no operator is wrong: "
    words += f"rounding {operator_place(first)} alone ({in_decibels(first['sqnr_db'])})"
    words += f" gives {first['share']:.0%} of the error"
    if grows := first["grows"]:
        decibels = f"{in_decibels(grows['before_db'])} before it, {in_decibels(grows['after_db'])} after it"
        words += f", and grows most at {operator_place(grows)}: {decibels}"
    return words


def as_text(result: Mapping[str, Any]) -> Iterator[str]:
    whose, least, first = result["reference"], result["least"], result["first"]
    yield f"the whole program: {in_words(result)} against {whose}"
    if result["sqnr_db"] >= least:
        yield f"it matches: at least {bound_in_decibels(least)}"
    elif first is None and result["between"]:
        yield f"not found in time: {between_in_words(result['between'])}"
    elif first is None:
        yield NONE_ALONE
    else:
        yield from _of_operator(result, first)


def _of_operator(result: Mapping[str, Any], first: Mapping[str, Any]) -> Iterator[str]:
    where = f" in {first['module']}" if first["module"][:1] not in ("", "(") else ""
    where += f" at {first['source']} `{first['code']}`" if first["source"] else ""
    yield f"differs most: {first['operator']} ({first['node']}){where}"
    operands = operands_in_words(first) or "the inputs"
    yield f"  there: {in_decibels(first['sqnr_db'])}; at its operands: {operands}"
    if faint := faint_in_words(result):
        yield f"  {faint}"
    if first["rounds"]:
        yield f"  {rounding_in_words(result)}"
    alone = "" if stands_out(first) else f"; {MANY_ROUND}"
    alike = alike_in_words(first)
    yield f"  {first['share']:.0%} of the whole program's error is its own{alone}{alike}"
    for known in first.get("known", ()):
        yield f"  suspected: {known['message']}"
        if not known.get("fault"):
            yield f"    → {known['command']} shows what was measured"
    yield f"  {plural(len(result['cuts']), 'operator')} measured"
    if result["between"]:
        yield f"the time is up: {between_in_words(result['between'])} may add more"
    for name, error in result["failed"].items():
        which = "shows" if name == EVERY else "ends at"
        yield f"  the program that {which} {name} does not compile or run: {error}"


def fix_of(result: Mapping[str, Any], command: Callable[..., str], tried: str) -> str:
    """What to type next. `command` makes a command about the same model, of a verb and flags; it gives none
    for a suite's program. `tried` is what was tried where an operator differs."""
    if result["sqnr_db"] >= result["least"]:
        where = command("quantize", "--where") if result["reference"] != FLOAT_MODEL else ""
        names = f"{where} names the operators where quantizing loses"
        return names if where else "nothing: both are the same"
    if result["first"] is None and not result["between"]:
        return "let the model return the floats, and compute the integers on the CPU"
    return tried
