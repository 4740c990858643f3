"""Regular expressions for text that others wrote: RE2's, which take linear time on any text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

BLANK = re.compile(r"(\\.|\[(?:\\.|[^\]\\])*\])| (?![?*+{])")
"""A blank of a pattern that stands for itself, not one in brackets."""


class BadPattern(ValueError):
    """RE2 does not take it, as what needs look-ahead or a back-reference."""


class Match(Protocol):
    def start(self, group: int = 0) -> int: ...

    def end(self) -> int: ...

    def groups(self) -> tuple[bytes | None, ...]: ...


@dataclass(frozen=True)
class Pattern:
    """`^` and `$` are those of a line, and a blank is any white space, so that a wrapped line matches too.
    Text is bytes, which need not be UTF-8."""

    source: str
    any_case: bool = False

    @property
    def expression(self) -> str:
        flexible = BLANK.sub(lambda found: found[1] or r"\s+", self.source)
        return f"(?{'mi' if self.any_case else 'm'}){flexible}"

    @cached_property
    def compiled(self) -> Any:
        """Raises BadPattern."""
        import re2

        options = re2.Options()
        options.log_errors = False
        try:
            return re2.compile(self.expression, options)
        except re2.error as error:
            (reason,) = error.args
            raise BadPattern(reason.decode() if isinstance(reason, bytes) else reason) from error

    def search(self, text: bytes, start: int = 0) -> Match | None:
        return cast("Match | None", self.compiled.search(text, start))

    def find_all(self, text: bytes, start: int = 0) -> Iterator[Match]:
        return cast("Iterator[Match]", self.compiled.finditer(text, start))


class Index:
    """Which of many patterns may be in a text: passes over it look for the words of all of them. Each pass
    remembers which words it has met, in ever more states of its machine; with fewer words it has few states,
    also in a text that is full of them."""

    PART = 560

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        import re2

        every = list(dict.fromkeys(patterns))
        self._parts = [
            (every[start : start + self.PART], re2.Filter()) for start in range(0, len(every), self.PART)
        ]
        for part, words in self._parts:
            for pattern in part:
                words.Add(pattern.expression)
            words.Compile()

    def possible(self, text: bytes) -> set[Pattern]:
        return {
            part[number] for part, words in self._parts for number in words.Match(text, potential=True) or ()
        }
