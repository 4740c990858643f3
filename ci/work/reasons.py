"""Compare errors of different runs: what an error says, without what is another one each time, such as paths,
figures and the order of a set."""

from __future__ import annotations

import re

__all__ = ["first_line", "words_of"]

VARIES = re.compile(
    r"(?<![\w.])/[\w.+-]+(?:/[\w.+\[\]-]+)*"  # paths
    r"|(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)"  # figures
    r"|(?<=_)\d{9,}"  # names by a hash
    r"|; its last words.*"
)
CODE = re.compile(r"\b(?:err|error|code|status|signal)\W{0,2}$", re.IGNORECASE)
"""Matches the text before a number that is an error code and no measurement."""
ONLY_A_TYPE = re.compile(r"(?:[\w .]+: )?[\w.]+:\s*")
WORD = re.compile(r"[\w.:]+")
LENGTH = 160


def first_line(error: str) -> str:
    """The first line that says more than the exception's type, without what varies; empty if there is
    none."""
    lines = error.strip().splitlines() or [""]
    sentences = [line for line in lines if line.strip() and not ONLY_A_TYPE.fullmatch(line)] or lines
    return VARIES.sub(_drop_varying, sentences[0])[:LENGTH]


def _drop_varying(match: re.Match[str]) -> str:
    return match[0] if CODE.search(match.string[: match.start()]) else "…"


def words_of(reason: str) -> tuple[str, ...]:
    """The words of a reason in sorted order: two equal reasons may print a set in a different order."""
    return tuple(sorted(WORD.findall(reason)))
