"""A step's ways to talk to the runner: the files that GITHUB_ENV and others name."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

FILES = ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")


def pairs(path: Path) -> dict[str, str]:
    """The names and values of a GITHUB_ENV or GITHUB_OUTPUT file."""
    return pairs_in(path.read_text(encoding="utf-8"))


def pairs_in(text: str) -> dict[str, str]:
    """Of lines NAME=value, or NAME<<DELIMITER and lines up to one that is only the delimiter."""
    values: dict[str, str] = {}
    lines = iter(text.split("\n"))
    for line in filter(None, lines):
        match = re.fullmatch(r"(.+?)(=|<<)(.*)", line)
        assert match is not None, f"expected NAME=value or NAME<<DELIMITER, found {line!r}"
        name, separator, value = match.groups()
        if separator == "<<":
            value = "\n".join(itertools.takewhile(lambda inner, end=value: inner != end, lines))  # type: ignore[misc]
        values[name] = value
    return values
