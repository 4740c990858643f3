"""The first line of an error, without what differs from run to run."""

from __future__ import annotations

import re

VARIES = re.compile(
    r"(?<![\w.])/[\w.+-]+(?:/[\w.+\[\]-]+)*"  # paths
    r"|(?<!err )(?<!error )(?<!error: )(?<!code )"  # figures that are no code of an error
    r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)"
    r"|(?<=_)\d{9,}"  # names by a hash
    r"|; its last words.*"
)
ONLY_A_TYPE = re.compile(r"(?:[\w .]+: )?[\w.]+:\s*")
WORD = re.compile(r"[\w.:]+")
LENGTH = 160


def first_line(error: str) -> str:
    """The first that says more than the exception's type; empty if there is none."""
    lines = error.strip().splitlines() or [""]
    telling = [line for line in lines if not ONLY_A_TYPE.fullmatch(line)] or lines
    return VARIES.sub("…", telling[0])[:LENGTH]


def words_of(reason: str) -> tuple[str, ...]:
    """Equal for equal reasons: a set is printed in another order in each process."""
    return tuple(sorted(WORD.findall(reason)))
