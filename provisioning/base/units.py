"""Sizes, times, rows and lines as people read them."""

from __future__ import annotations

import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO


def size(count: float) -> str:
    """Bytes in decimal units: `4.2 MB`."""
    if count < 1000:
        return f"{count:.0f} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value:,.0f} GB"


def seconds(value: float) -> str:
    """`0.25 s`, `42 s`, `3 min 05 s`, `2 h 07 min`."""
    if not math.isfinite(value):
        return "? s"
    if value < 9.995:
        return f"{value:.2f} s"
    if value < 119.5:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def roughly(value: float) -> str:
    """A time that is estimated: `8 s`, `4 min`, `2 h 07 min`."""
    number = max(1, round(value))
    return f"{number} s" if number < 100 else seconds(60 * math.ceil(number / 60)).removesuffix(" 00 s")


EXACT_DB = 999.0
"""The SQNR of outputs without any error, for which there is no finite number."""


def decibels(signal: float, noise: float) -> float:
    """The ratio of two powers: EXACT_DB without noise, -EXACT_DB if nothing of the signal is left."""
    if not noise:
        return EXACT_DB
    ratio = signal / noise
    return 10 * math.log10(ratio) if 0 < ratio < math.inf else -EXACT_DB


def format_decibels(value: float) -> str:
    """Format a measured figure."""
    return "bit-equal" if value >= EXACT_DB else f"{value:.1f} dB"


def bound_in_decibels(value: float) -> str:
    """Format the limit that a figure must keep."""
    return f"{value:g} dB"


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())


def columns() -> int:
    """Return the width of the terminal that stdout is; 0 if it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def terminal_width(environ: Mapping[str, str] = os.environ) -> int:
    """Return the terminal's width, within what reads well; logs get 120 columns."""
    columns = environ.get("COLUMNS", "")
    width = (
        int(columns) if columns.isdecimal() and int(columns) else shutil.get_terminal_size((120, 24)).columns
    )
    return min(max(width, 40), 160)


def align(rows: Iterable[Sequence[str]], width: int = 0) -> list[str]:
    """Each row as a line, with its columns below those of the others.

    With `width`, words of the last column go on below it where a line has no room for them; where it has
    none for one word, such as a path, the column stands below the others."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    indent = " " * (sum(widths[:-1]) + 2 * len(widths[:-1]))
    lines = []
    for *cells, last in rows:
        first = "".join(f"{cell:<{length}}  " for cell, length in zip(cells, widths, strict=False))
        line = (first + last).rstrip()
        longest = max(map(len, last.split()), default=0)
        if not width or not last or len(line) <= width:
            lines.append(line)
        elif len(indent) + longest > width:
            lines += [first.rstrip(), *wrap_text(last, width, "  ", "  ")]
        else:
            lines += wrap_text(last, width, first, indent)
    return lines


def wrap_text(text: str, width: int, first: str, indent: str) -> list[str]:
    """Lines of at most `width` columns. No word is broken, so that a path can be pasted."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def readable(text: str, stream: TextIO) -> str:
    """Wrap text to a terminal's width without breaking a word; elsewhere the text stays the same."""
    if not stream.isatty():
        return text
    lines: list[str] = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines += wrap_text(line.lstrip(), terminal_width(), indent, indent) or [""]
    return "".join(f"{line}\n" for line in lines)
