"""Regular expressions for text that others wrote: RE2's, which take linear time on any text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast


class BadPattern(ValueError):
    """RE2 does not take it, as what needs look-ahead or a back-reference."""


class Match(Protocol):
    def start(self) -> int: ...

    def end(self) -> int: ...

    def groups(self) -> tuple[bytes | None, ...]: ...


@dataclass(frozen=True)
class Pattern:
    """`^` and `$` are those of a line. Text is bytes, which need not be UTF-8."""

    source: str

    @cached_property
    def compiled(self) -> Any:
        """Raises BadPattern."""
        import re2

        options = re2.Options()
        options.log_errors = False
        try:
            return re2.compile(f"(?m){self.source}", options)
        except re2.error as error:
            (reason,) = error.args
            raise BadPattern(reason.decode() if isinstance(reason, bytes) else reason) from error

    def search(self, text: bytes, start: int = 0) -> Match | None:
        return cast("Match | None", self.compiled.search(text, start))

    def find_all(self, text: bytes, start: int = 0) -> Iterator[Match]:
        return cast("Iterator[Match]", self.compiled.finditer(text, start))
