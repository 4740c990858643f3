"""Regular expressions for text that others wrote: RE2's, which take linear time on any text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

import re2


class BadPattern(ValueError):
    """RE2 does not take it, as what needs look-ahead or a back-reference."""


class Match(Protocol):
    def start(self) -> int: ...

    def end(self) -> int: ...

    def groups(self) -> tuple[bytes | None, ...]: ...


@dataclass(frozen=True, slots=True)
class Pattern:
    """`^` and `$` are those of a line. Text is bytes, which need not be UTF-8."""

    source: str
    _compiled: Any

    def search(self, text: bytes, start: int = 0) -> Match | None:
        return cast("Match | None", self._compiled.search(text, start))

    def find_all(self, text: bytes, start: int = 0) -> Iterator[Match]:
        return cast("Iterator[Match]", self._compiled.finditer(text, start))


@cache
def pattern(source: str) -> Pattern:
    options = re2.Options()
    options.log_errors = False
    try:
        return Pattern(source, re2.compile(f"(?m){source}", options))
    except re2.error as error:
        raise BadPattern(
            error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        ) from error
