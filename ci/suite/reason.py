"""The first line of an error, without what differs from run to run."""

from __future__ import annotations

import re

VARIES = re.compile(
    r"(?<![\w.])/[\w.+-]+(?:/[\w.+\[\]-]+)*"  # paths
    r"|(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)"  # figures
    r"|(?<=_)\d{9,}"  # names by a hash
    r"|; its last words.*"
)
CODE = re.compile(r"\b(?:err|error|code|status|signal)\W{0,2}$", re.IGNORECASE)
"""Before a figure that is no measurement."""
ONLY_A_TYPE = re.compile(r"(?:[\w .]+: )?[\w.]+:\s*")
WORD = re.compile(r"[\w.:]+")
LENGTH = 160


def first_line(error: str) -> str:
    """The first that says more than the exception's type; empty if there is none."""
    lines = error.strip().splitlines() or [""]
    telling = [line for line in lines if line.strip() and not ONLY_A_TYPE.fullmatch(line)] or lines
    return VARIES.sub(_without_what_varies, telling[0])[:LENGTH]


def _without_what_varies(found: re.Match[str]) -> str:
    return found[0] if CODE.search(found.string[: found.start()]) else "…"


def words_of(reason: str) -> tuple[str, ...]:
    """Equal for equal reasons: a set is printed in another order in each process."""
    return tuple(sorted(WORD.findall(reason)))
