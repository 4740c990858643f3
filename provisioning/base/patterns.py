"""Regular expressions for text that others wrote: RE2's, which take linear time on any text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
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

        try:
            return re2.compile(self.expression, _options())
        except re2.error as error:
            (reason,) = error.args
            raise BadPattern(reason.decode() if isinstance(reason, bytes) else reason) from error

    def search(self, text: bytes, start: int = 0) -> Match | None:
        return cast("Match | None", self.compiled.search(text, start))

    def find_all(self, text: bytes, start: int = 0) -> Iterator[Match]:
        return cast("Iterator[Match]", self.compiled.finditer(text, start))


@cache
def _options() -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    return options


class Index:
    """Which of many patterns may be in a text: one pass over it looks for the words of all of them. It
    compiles each pattern, which then need not be compiled again."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        import re2

        self._patterns = list(dict.fromkeys(patterns))
        self._words = re2.Filter()
        for number, pattern in enumerate(self._patterns):
            self._words.Add(pattern.expression, _options())
            pattern.__dict__.setdefault("compiled", self._words.re(number))
        self._words.Compile()

    def possible(self, text: bytes) -> set[Pattern]:
        return {self._patterns[number] for number in self._words.Match(text, potential=True) or ()}
